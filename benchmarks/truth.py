"""Measures every distinct candidate of a recipe sized for a CPU and writes the truth table that searches are played on.

    python -m benchmarks.truth RECIPE --out FILE [--runs N] [--steps K] [--no-survey] [OVERRIDE ...]

Each run is a fresh launch on every rank. The file is written after each launch; started again, it goes on where it was.
A table holds peaks per rank and phase, step times and outcomes, and what one survey launch says of the same recipe.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from autotune.boundary.boundary import Boundary
from autotune.errors import AutotuneError, RequestError
from autotune.records import dump_json, to_builtins, write_atomically
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.launch import run_survey
from autotune.trial.survey.plan import SurveyPlan
from autotune.trial.survey.report import SurveyReport
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

LIMITS = 10
"""Memory limits of a table, spread over the range of its peaks."""


@click.command(help=__doc__)
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--runs", type=int, default=1, show_default=True, help="Fresh launches of each candidate.")
@click.option("--steps", type=int, default=4, show_default=True, help="Steps of a launch; the first makes the optimizer state.")
@click.option("--survey/--no-survey", default=True, show_default=True)
def main(*, recipe: str, overrides: tuple[str, ...], out: Path, runs: int, steps: int, survey: bool) -> None:
    """Measure and write."""
    try:
        workload = resolve_workload(recipe, overrides=overrides)
        measure(workload, out, runs=runs, steps=steps, survey=survey)
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))


def candidates_of(workload: Workload) -> list[Boundary]:
    """The distinct candidates of a workload, in their order."""
    from autotune.search.space import build_candidates
    from autotune.workload.architecture import classify

    listed = build_candidates(workload, classify(workload))
    return [c.boundary for c in sorted(listed, key=lambda c: c.order) if c.status == "distinct"]


def measure(workload: Workload, out: Path, *, runs: int, steps: int, survey: bool) -> None:
    """Launch what the file does not have yet."""
    table = _begun(out, workload)
    rows: dict[Boundary, list[dict[str, Any]]] = {Boundary.from_fields(_prefixed(row)): row["runs"] for row in table["rows"]}
    boundaries = candidates_of(workload)
    root = Path(tempfile.mkdtemp(prefix="truth-"))
    launches = 0

    def spec(boundary: Boundary) -> TrialSpec:
        nonlocal launches
        launches += 1
        return TrialSpec(
            number=launches,
            workload=workload,
            boundary=boundary,
            world_size=workload.parallel.world_size,
            steps=steps,
            backend="cpu",
            folder=str(root / f"{launches:03d}"),
        )

    with Zygote("cpu") as zygote:
        for place, boundary in enumerate(boundaries):
            while len(rows.setdefault(boundary, [])) < runs:
                record = run_trial(spec(boundary), zygote=zygote)
                rows[boundary].append(run_of(record))
                _write(out, table, rows)
                click.echo(f"{place + 1}/{len(boundaries)} {boundary.key}: {_said(record)}", err=True)
        if survey and "survey" not in table:
            plan = SurveyPlan(
                labels=tuple(sorted({label for b in boundaries for label in b.modules})),
                candidates=tuple(boundaries),
                switch_to=0,
                timed_steps=5,
            )
            outcome = run_survey(spec, plan, lambda trial: run_trial(trial, zygote=zygote))
            if outcome.report is not None:
                table["survey"] = survey_of(outcome.report)
                _write(out, table, rows)


def run_of(record: TrialRecord) -> dict[str, Any]:
    """One run in the form of a truth table."""
    failure = record.failure
    return {
        "outcome": "completed"
        if record.completed
        else "oom"
        if failure and failure.failure_class.startswith("oom")
        else "failed",
        "failed": None if failure is None else to_builtins(failure),
        "ranks": {
            str(rank): {
                "allocated_peak_bytes": of_rank.allocated_peak_bytes,
                "reserved_peak_bytes": of_rank.reserved_peak_bytes,
                "phases": dict(of_rank.phases),
            }
            for rank, of_rank in record.ranks.items()
        },
        "step_ms": [round(value, 3) for value in record.step_ms],
        "steps_run": record.steps_run,
    }


def survey_of(report: SurveyReport) -> dict[str, Any]:
    """What the survey says, in the form of a truth table: regions of rank 0, prices and peaks of every candidate."""
    return {
        "base": _fields(report.base),
        "regions": [to_builtins(region) for region in report.regions],
        "switchable": list(report.labels),
        "inert": list(report.inert_labels),
        "predicted": [
            {
                **_fields(setting.boundary),
                "peak_bytes": setting.peak_bytes,
                "rank": setting.rank,
                "phase": setting.phase,
                "replay_ms": round(setting.price.replay_ms, 3),
                "replay_error_ms": round(setting.price.standard_error_ms, 3),
            }
            for setting in report.predicted
        ],
    }


def _begun(out: Path, workload: Workload) -> dict[str, Any]:
    fresh: dict[str, Any] = {"name": workload.name, "workload": to_builtins(workload), "mem_targets_bytes": [], "rows": []}
    if not out.exists():
        return fresh
    table: dict[str, Any] = msgspec.json.decode(out.read_bytes())
    if table.get("workload") != msgspec.json.decode(msgspec.json.encode(fresh["workload"])):
        raise RequestError("--out", str(out), "holds the table of another workload", "name another file")
    return table


def _write(out: Path, table: dict[str, Any], rows: Mapping[Boundary, list[dict[str, Any]]]) -> None:
    table["rows"] = [{**_fields(boundary), "runs": runs} for boundary, runs in rows.items() if runs]
    peaks = [
        max(rank["allocated_peak_bytes"] for rank in run["ranks"].values())
        for runs in rows.values()
        for run in runs
        if run["outcome"] == "completed"
    ]
    if peaks:
        low, high = min(peaks), max(peaks)
        table["mem_targets_bytes"] = [round(low + (high - low) * (place + 0.5) / LIMITS) for place in range(LIMITS)]
    write_atomically(out, dump_json(table))


def _fields(boundary: Boundary) -> dict[str, Any]:
    return {name.removeprefix("recompute_"): value for name, value in boundary.to_fields().items()}


def _prefixed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"recompute_{name}": row.get(name) for name in ("granularity", "modules", "method", "num_layers")}


def _said(record: TrialRecord) -> str:
    if not record.completed:
        return record.failure.failure_class if record.failure else "failed"
    return f"{max(rank.allocated_peak_bytes for rank in record.ranks.values()) / 1e6:.3f} MB measured"


if __name__ == "__main__":
    main()
