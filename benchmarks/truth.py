"""Measures every distinct candidate of a recipe sized for a CPU and writes the truth table that searches are played on.

    python -m benchmarks.truth RECIPE --out FILE [--runs N] [--steps K] [--price-steps N] [--no-survey] [OVERRIDE ...]

Peaks, outcomes, losses and gradient norms come from fresh launches, on every rank, by phase. What a step costs comes from one
process in which all settings take turns (``benchmarks/truth_prices.py``). What a survey says comes from a launch of its own,
before all others: it is what a search is given, and shares no process with the prices that it is judged by.
The file is written after each launch; started again, it goes on where it was, on the same code that measures.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

import autotune.trial
from autotune.boundary.boundary import Boundary
from autotune.errors import AutotuneError, RequestError
from autotune.records import dump_json, from_builtins, to_builtins, write_atomically
from autotune.search.survey import EXACT_PEAK_ERROR, EXACT_SAVING_ERROR
from autotune.trial.attend import Limits
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.launch import read_report, run_survey, survey_spec
from autotune.trial.survey.plan import SurveyPlan, base_ladder, followed_steps_of
from autotune.trial.survey.report import SurveyReport
from autotune.workload.architecture import classify
from autotune.workload.pipeline import stages
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload
from benchmarks.truth_prices import step_prices

LIMITS = 10
"""Memory limits of a table, spread over the range of its peaks."""
STEPS = 4
"""As many as a launch of a search has, so that its peaks are the table's to the byte (GateSettings.min_steps)."""


@click.command(help=__doc__)
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--runs", type=int, default=1, show_default=True, help="Fresh launches of each candidate.")
@click.option("--steps", type=int, default=STEPS, show_default=True, help="Of a launch.")
@click.option("--price-steps", type=int, default=400, show_default=True, help="Interleaved steps, over all settings; 0 is none.")
@click.option("--survey/--no-survey", default=True, show_default=True)
def main(*, recipe: str, overrides: tuple[str, ...], out: Path, runs: int, steps: int, price_steps: int, survey: bool) -> None:
    """Measure and write."""
    try:
        workload = resolve_workload(recipe, overrides=overrides)
        table = Table(out, workload)
        with Zygote("cpu") as zygote:
            bench = Bench(workload, zygote)
            if survey and "survey" not in table.data:
                bench.survey(table)  # First: what it says of a setting was written before anyone had seen it run.
            bench.launch_all(table, runs=runs, steps=steps)
            if price_steps and "prices" not in table.data:
                bench.price(table, price_steps)
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))


def candidates_of(workload: Workload) -> list[Boundary]:
    """The distinct candidates of a workload, in their order."""
    from autotune.search.space import build_candidates

    listed = build_candidates(workload, classify(workload))
    return [c.boundary for c in sorted(listed, key=lambda c: c.order) if c.status == "distinct"]


class Table:
    """A truth table on disk.

    Raises:
        RequestError: The file holds another workload's, or what another version of the counting code measured.
    """

    def __init__(self, path: Path, workload: Workload) -> None:
        self._path = path
        fresh: dict[str, Any] = {
            "name": workload.name,
            "measured": {"program": program_digest(), "machine": machine(), "began": _now()},
            "workload": to_builtins(workload),
            "mem_targets_bytes": [],
            "rows": [],
        }
        fresh = msgspec.json.decode(msgspec.json.encode(fresh))
        self.data: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.exists() else fresh
        # As records: a field that came since the table was begun has its default there.
        if from_builtins(self.data.get("workload"), Workload, setting="--out") != workload:
            raise RequestError("--out", str(path), "holds the table of another workload", "name another file")
        if self.data.get("measured", {}).get("program") != fresh["measured"]["program"]:
            raise RequestError("--out", str(path), "was measured by other counting code", "remove it and measure anew")
        self.rows: dict[Boundary, dict[str, Any]] = {Boundary.from_fields(_prefixed(row)): row for row in self.data["rows"]}

    def row(self, boundary: Boundary) -> dict[str, Any]:
        """The row of a setting, made where there is none."""
        return self.rows.setdefault(boundary, {**_fields(boundary), "runs": []})

    def save(self) -> None:
        """Write the file whole."""
        self.data["rows"] = [row for row in self.rows.values() if row["runs"]]
        self.data["measured"]["ended"] = _now()
        peaks = [
            max(rank["allocated_peak_bytes"] for rank in run["ranks"].values())
            for row in self.data["rows"]
            for run in row["runs"]
            if run["outcome"] == "completed"
        ]
        if peaks:
            low, high = min(peaks), max(peaks)
            self.data["mem_targets_bytes"] = [round(low + (high - low) * (place + 0.5) / LIMITS) for place in range(LIMITS)]
        write_atomically(self._path, dump_json(self.data))


class Bench:
    """Launches of one workload."""

    def __init__(self, workload: Workload, zygote: Zygote) -> None:
        self._workload, self._zygote = workload, zygote
        self._root = Path(tempfile.mkdtemp(prefix="truth-"))
        self._launches = 0
        self._boundaries = candidates_of(workload)
        self._labels = tuple(sorted({label for b in self._boundaries for label in b.modules}))

    def _spec(self, boundary: Boundary, steps: int = STEPS) -> TrialSpec:
        self._launches += 1
        return TrialSpec(
            number=self._launches,
            workload=self._workload,
            boundary=boundary,
            world_size=self._workload.parallel.world_size,
            steps=steps,
            backend="cpu",
            folder=str(self._root / f"{self._launches:03d}"),
        )

    def _run(self, spec: TrialSpec) -> TrialRecord:
        return run_trial(spec, zygote=self._zygote, limits=Limits(wall_s=3600.0))

    def launch_all(self, table: Table, *, runs: int, steps: int) -> None:
        """Launch every candidate until the table has so many runs of it."""
        for place, boundary in enumerate(self._boundaries):
            row = table.row(boundary)
            while len(row["runs"]) < runs:
                record = self._run(self._spec(boundary, steps))
                table.data.setdefault("revisions", dict(record.revisions))
                row["runs"].append(run_of(record))
                table.save()
                click.echo(f"{place + 1}/{len(self._boundaries)} {boundary.key}: {_said(record)}", err=True)

    def survey(self, table: Table) -> None:
        """What one survey launch says of all candidates, with the time at which it said so."""
        plan = SurveyPlan(
            labels=self._labels,
            candidates=tuple(self._boundaries),
            followed_steps=followed_steps_of(self._workload, STEPS),
            switch_to=0,
            timed_steps=5,
        )
        outcome = run_survey(self._spec, plan, self._run)
        if outcome.report is None:
            raise AutotuneError(f"the survey ended before its report: {outcome.launches[-1].failure}")
        table.data["survey"] = {"predicted_at": _now(), **survey_of(outcome.report)}
        table.save()

    def price(self, table: Table, steps: int) -> None:
        """Interleaved steps of all candidates in one process, and the price of each from them."""
        rounds = max(2, round(steps / len(self._boundaries)))
        plan = SurveyPlan(
            labels=self._labels,
            candidates=tuple(self._boundaries),
            timed_steps=1,
            switch_to=-1,
            steps_each=1,
            interleaved_rounds=rounds,
        )
        base = next(b for b in base_ladder(self._labels) if b in self._boundaries)
        launch = survey_spec(self._spec(base), plan, base)
        record = self._run(launch)
        report = read_report(Path(launch.folder))
        if report is None or not record.completed:
            raise AutotuneError(f"the interleaved steps did not end: {record.failure}")
        samples = {s.boundary: s.step_ms for s in report.switched} | {base: report.base_step_ms}
        kinds = classify(self._workload).layers
        found = step_prices(samples, [kinds[layer] for layer in stages(self._workload)[0].layers], self._boundaries)
        for boundary, price in found.prices.items():
            table.row(boundary).update(
                true_step_ms=round(found.control_ms + price.replay_ms, 3),
                true_step_error_ms=round(price.standard_error_ms, 3),
                interleaved_ms=[round(value, 1) for value in samples.get(boundary, ())],
            )
        table.data["prices"] = {
            "basis": "interleaved steps of one process, main thread's own time on the rank where it is longest",
            "base": _fields(base),
            "rounds": found.rounds,
            "noise_ms": round(found.noise_ms, 3),
            "own_ms": round(found.own_ms, 3),
            "load_1m": round(os.getloadavg()[0], 2),
        }
        table.save()


def run_of(record: TrialRecord) -> dict[str, Any]:
    """One run in the form of a truth table."""
    failure, last = record.failure, record.ranks.get(record.world_size - 1)
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
        "loss": [step["loss"] for step in last.iterations] if last is not None else [],
        "grad_norm": [step["grad_norm"] for step in last.iterations] if last is not None else [],
        "wall_s": record.details["wall_s"],
        "load_1m": round(os.getloadavg()[0], 2),
        "ended_at": _now(),
    }


def survey_of(report: SurveyReport) -> dict[str, Any]:
    """What the survey says, in the form of a truth table: regions of rank 0, prices and peaks of every candidate."""
    return {
        "base": _fields(report.base),
        "regions": [to_builtins(region) for region in report.regions],
        "peak_error": EXACT_PEAK_ERROR,
        "saving_error": EXACT_SAVING_ERROR,
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


def program_digest() -> str:
    """Of the code that decides what is counted and under which phase."""
    trial = Path(autotune.trial.__file__).parent
    digest = hashlib.sha256()
    for path in [*sorted(trial.glob("prelude/**/*.*")), trial / "probe.py"]:
        if path.suffix in (".py", ".cpp"):
            digest.update(path.relative_to(trial).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def machine() -> dict[str, Any]:
    """Of this machine, what step times hang on."""
    names = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "memory_bytes": memory}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
