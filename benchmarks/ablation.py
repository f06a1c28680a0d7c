"""What each rule of the ledger is worth: the error of the measured rows with one rule taken away.

    python -m benchmarks.ablation --rows FILE [--half A|B]

A rule is taken away by telling the ledger that the workload is what it is not (no dropout, padded vocabulary ignored ...),
or by leaving a group of terms out of every phase.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click

from autotune.errors import AutotuneError
from autotune.ledger.ledger import Ledger
from autotune.workload.workload import Stack, Workload
from benchmarks.rows import Row, load_rows
from benchmarks.score import peak_of, score_row, stages_of

Change = Callable[[Workload], Workload]


def _set(section: str, **fields: object) -> Change:
    return lambda workload: replace(workload, **{section: replace(getattr(workload, section), **fields)})


def _one_microbatch(workload: Workload) -> Workload:
    batch = workload.train.micro_batch_size * workload.parallel.data_parallel_size
    return replace(workload, train=replace(workload.train, global_batch_size=batch))


WORKLOADS: Mapping[str, Change] = {
    "cross entropy assumed in place": lambda workload: replace(
        workload,
        features=replace(workload.features, cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te"),
        stack=replace(workload.stack, transformer_engine="2.17.1"),
    ),
    "attention assumed fused": _set("features", attention_backend="fused"),
    "determinism ignored": _set("train", deterministic_mode=False),
    "dropout assumed 0": _set("model", hidden_dropout=0.0, attention_dropout=0.0),
    "distributed optimizer assumed": _set("optimizer", use_distributed_optimizer=True),
    "gradients assumed BF16": _set("precision", grad_dtype="bf16"),
    "vocabulary not padded": _set("model", should_pad_vocab=False),
    "positions assumed rotary": _set("model", position_embedding_type="rope"),
    "dense mask ignored": _set("train", create_attention_mask_in_dataloader=False),
    "gradient accumulation assumed fused": _set("features", gradient_accumulation_fusion=True),
    "one micro batch in flight": _one_microbatch,
    "activations assumed to stay on the device": _set("features", fine_grained_activation_offloading=False, cpu_offloading=False),
    "software assumed the newest": lambda workload: replace(workload, stack=Stack()),
}
"""Rules taken away by changing what the ledger is told."""
GROUPS = ("workspaces", "p2p", "transient", "logits", "norm", "hidden", "attention", "mlp", "moe")
"""Term groups left out, one at a time."""


@click.command(help=__doc__)
@click.option("--rows", required=True, type=click.Path(path_type=Path), help="Measured rows (JSON lines) or tables (JSON).")
@click.option("--half", type=click.Choice(["A", "B"]), help="Only the rows of one half (benchmarks/split.py).")
def main(rows: Path, half: str | None) -> None:
    """Print the table, the costliest rule first."""
    try:
        loaded = [row for row in load_rows(rows) if half is None or row.half == half]
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    click.echo(render(ablate([row for row in loaded if score_row(row).counts])))


def ablate(rows: list[Row]) -> dict[str, tuple[float, float]]:
    """Mean and largest absolute error in percent over scored rows, with everything and with one rule taken away."""
    table = {"everything": [abs(score_row(row).error or 0) for row in rows]}
    for name, change in WORKLOADS.items():
        table[name] = [abs(_error(row, change, None)) for row in rows]
    for group in GROUPS:
        table[f"without {group}"] = [abs(_error(row, None, group)) for row in rows]
    return {name: (100 * sum(errors) / len(errors), 100 * max(errors)) for name, errors in table.items() if errors}


def _error(row: Row, change: Change | None, group: str | None) -> float:
    assert row.workload is not None and row.boundary is not None and row.measured_bytes
    workload = change(row.workload) if change is not None else row.workload
    prediction = Ledger(workload).predict(row.boundary)
    peak = max(peak_of(stage, row.iterations, without=group)[0] for stage in stages_of(row, prediction))
    return peak / row.measured_bytes - 1


def render(table: Mapping[str, tuple[float, float]]) -> str:
    """The table as text."""
    lines = [f"{'rule taken away':<38} {'MAPE %':>8} {'max %':>8}"]
    ordered = sorted(table.items(), key=lambda item: (item[0] != "everything", -item[1][0]))
    lines += [f"{name:<38} {mean:8.2f} {largest:8.1f}" for name, (mean, largest) in ordered]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
