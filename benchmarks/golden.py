"""Measured rows out of a clone of Megatron-LM: the peaks that its functional tests recorded, at every commit of its history.

    python -m benchmarks.golden --repo MEGATRON_LM --out rows.jsonl [--besides measured_rows.jsonl]

``MEGATRON_LM`` is a clone with its history (``git clone https://github.com/NVIDIA/Megatron-LM``). Each row has the arguments,
the environment, the number of ranks and the software of the commit that brought its value; ``benchmarks.accuracy`` scores them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks.golden_git import GoldenFile, History
from benchmarks.golden_recipes import Recipe, Recipes

_MEMORY = ("mem-max-allocated-bytes", "mem_max_allocated_bytes")
_STEADY = ("mem-allocated-bytes", "mem_allocated_bytes")
_FOLDERS = {"moe": "gpt", "moe2.0": "gpt", "mixtral": "gpt", "nemotron": "hybrid", "mamba": "hybrid"}
"""What the tests of a folder train, where no recipe of the repository says it."""
_GPUS = {"a100": "A100", "h100": "H100", "gb200": "GB200", "b200": "B200"}


@click.command(help=__doc__)
@click.option("--repo", required=True, type=click.Path(path_type=Path, exists=True), help="Clone of Megatron-LM, bare or not.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Where the rows go (JSON lines).")
@click.option("--besides", type=click.Path(path_type=Path, exists=True), help="Rows whose peaks are left out.")
def main(repo: Path, out: Path, besides: Path | None) -> None:
    """Write the rows and say how many there are of each kind."""
    known = {(row.get("gpu"), row.get("peak_allocated_bytes")) for row in _lines(besides)} if besides else set()
    rows = [row for row in rows_of(History(repo)) if (row["gpu"], row["peak_allocated_bytes"]) not in known]
    out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    counts = Counter(row["kind"] for row in rows)
    click.echo(f"{len(rows)} rows: " + ", ".join(f"{count} {kind}" for kind, count in counts.most_common()))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield json.loads(line)


def rows_of(history: History) -> Iterator[dict[str, Any]]:
    """One row for each recording: the oldest commit that has its series of peaks for a GPU, renames and copies left out."""
    recipes = Recipes(history)
    seen: set[tuple[Any, ...]] = set()
    for count, found in enumerate(history.golden_files(), 1):
        if count % 500 == 0:
            click.echo(f"{count} golden files read, {len(seen)} recordings", err=True)
        peaks = series(found.values, _MEMORY)
        if not peaks:
            continue
        recipe = recipes.of(found.commit, found.test, gpu_of(found.environment))
        gpu = gpu_of(found.environment) or gpu_of(" ".join(recipe.platforms if recipe else ())) or "A100"
        if (gpu, peaks) in seen:
            continue
        seen.add((gpu, peaks))
        row = _row(history, recipe, found, gpu, peaks)
        if row is not None:
            yield row


def series(values: Mapping[str, Any], names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Step and bytes of what a golden file logged under one of the names, in order of steps."""
    logged = next((values[name] for name in names if name in values), None)
    inner = logged.get("values", logged) if isinstance(logged, Mapping) else logged
    pairs = inner.items() if isinstance(inner, Mapping) else enumerate(inner) if isinstance(inner, list) else ()
    found = [(int(step), int(value)) for step, value in pairs if str(step).isdigit() and isinstance(value, (int, float))]
    return tuple(sorted(found))


def gpu_of(environment: str) -> str | None:
    """The GPU that an environment or a platform names: ``dev_dgxh100_eos`` -> H100; None where it names none."""
    named = [name for name in _GPUS if name in environment.lower()]
    return _GPUS[max(named, key=len)] if named else None


def _row(
    history: History, recipe: Recipe | None, found: GoldenFile, gpu: str, peaks: tuple[tuple[int, int], ...]
) -> dict[str, Any] | None:
    config = history.config(found.commit, found.test, recipe.parts if recipe else {})
    if config is None:
        return None
    note = "" if recipe else "; INCOMPLETE: the number of ranks"
    if found.environment.endswith("_2nd"):
        note += "; INCOMPLETE: a test's second process, which holds what it loads of a checkpoint"
    steady = series(found.values, _STEADY)
    args = {str(name): value for name, value in (config.get("MODEL_ARGS") or {}).items()}
    stack = history.stack(found.commit, lts=found.environment.startswith("lts") or found.environment.endswith("lts"))
    return {
        "id": f"mlm:{found.test}@{found.commit[:10]}:{found.environment}",
        "source": f"NVIDIA/Megatron-LM {found.path}@{found.commit}",
        "source_class": "mlm_golden",
        "kind": _kind(found, recipe, config),
        "gpu": gpu,
        "model_args": args,
        "parallel": {},
        "world_size": recipe.world_size if recipe is not None else None,
        "recorded_on": found.day,
        "stack": stack,
        "rank_logged": "last rank (world_size-1) = last PP stage",
        "peak_allocated_bytes": peaks[-1][1],
        "peak_allocated_bytes_iter_first": peaks[0][1],
        "peak_allocated_bytes_second_logged": peaks[min(1, len(peaks) - 1)][1],
        "steady_allocated_bytes": steady[-1][1] if steady else None,
        "env_vars": {str(name): value for name, value in (config.get("ENV_VARS") or {}).items()},
        "notes": "the newest argument file beside the value when it came" + note,
    }


def _kind(found: GoldenFile, recipe: Recipe | None, config: Mapping[str, Any]) -> str:
    if config.get("MODE", "pretraining") != "pretraining":
        return str(config["MODE"])
    folder = found.test.split("/")[0]
    return recipe.kind if recipe is not None else _FOLDERS.get(folder, folder)


if __name__ == "__main__":
    main()
