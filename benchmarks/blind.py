"""Settings that nobody has looked at: predicted by a survey and written down first, launched by themselves afterwards.

    python -m benchmarks.blind RECIPE --out FILE [--settings N] [--seed S] [OVERRIDE ...]

Settings are drawn by seed from all sets of labels and all depths of full recompute; what is measured is the peak of a whole
launch. The file holds the predictions with their time before the first of them is launched; measurements are added one by one.
"""

from __future__ import annotations

import random
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from autotune.boundary.boundary import Boundary
from autotune.errors import AutotuneError
from autotune.records import dump_json, write_atomically
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.choose import all_settings
from autotune.trial.survey.launch import run_survey
from autotune.trial.survey.plan import SurveyPlan, followed_steps_of
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload
from benchmarks.survey import labels_of
from benchmarks.truth import STEPS


@click.command(help=__doc__)
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--settings", "count", type=int, default=10, show_default=True)
@click.option("--seed", type=int, required=True, help="One that was not used before.")
def main(*, recipe: str, overrides: tuple[str, ...], out: Path, count: int, seed: int) -> None:
    """Predict, write, measure, write, print."""
    try:
        table = measure(resolve_workload(recipe, overrides=overrides), out, count=count, seed=seed)
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    click.echo(render(table), nl=False)


def measure(workload: Workload, out: Path, *, count: int, seed: int) -> dict[str, Any]:
    """One survey launch, then one launch of each setting drawn."""
    labels = labels_of(workload)
    root = Path(tempfile.mkdtemp(prefix="blind-"))
    launches = 0

    def spec(boundary: Boundary) -> TrialSpec:
        nonlocal launches
        launches += 1
        return TrialSpec(
            number=launches,
            workload=workload,
            boundary=boundary,
            world_size=workload.parallel.world_size,
            steps=STEPS,
            backend="cpu",
            folder=str(root / f"{launches:03d}"),
        )

    with Zygote("cpu") as zygote:
        layers = workload.model.num_layers // workload.parallel.pipeline_model_parallel_size
        drawn = random.Random(f"{workload.name}/{seed}").sample(all_settings(labels, layers), count)
        followed = followed_steps_of(workload, STEPS)
        plan = SurveyPlan(labels=labels, candidates=tuple(drawn), followed_steps=followed, switch_to=0, interleaved_rounds=0)
        report = run_survey(spec, plan, lambda trial: run_trial(trial, zygote=zygote)).report
        if report is None:
            raise AutotuneError("the survey ended before its report")
        rows: list[dict[str, Any]] = [
            {
                "setting": setting.boundary.key,
                "predicted_bytes": {str(rank): max(phases.values()) for rank, phases in setting.ranks.items()},
                "phase": setting.phase,
            }
            for setting in report.predicted
        ]
        table: dict[str, Any] = {
            "recipe": workload.name,
            "seed": seed,
            "base": report.base.key,
            "predicted_at": _now(),
            "rows": rows,
        }
        write_atomically(out, dump_json(table))
        for boundary, row in zip(drawn, rows, strict=True):
            record = run_trial(spec(boundary), zygote=zygote)
            row["measured_at"] = _now()
            if record.completed:
                row["measured_bytes"] = {str(rank): of_rank.allocated_peak_bytes for rank, of_rank in record.ranks.items()}
                row["error_percent"] = max(
                    (100 * (row["predicted_bytes"][rank] / peak - 1) for rank, peak in row["measured_bytes"].items()), key=abs
                )
            else:
                row["failure"] = record.failure.message if record.failure is not None else "unknown"
            write_atomically(out, dump_json(table))
    return table


def render(table: dict[str, Any]) -> str:
    """The table for a terminal."""
    errors = [abs(row["error_percent"]) for row in table["rows"] if "error_percent" in row]
    lines = [f"{row['setting']}  {row.get('error_percent', float('nan')):+.4f} %" for row in table["rows"]]
    lines.append(
        f"{table['recipe']}: {len(errors)} settings, {sum(e == 0 for e in errors)} exact, worst {max(errors, default=0):.3f} %"
    )
    return "\n".join(lines) + "\n"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    main()
