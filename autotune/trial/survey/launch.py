"""A survey as the search sees it: which launch to make, and what to take from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.boundary.boundary import Boundary
from autotune.records import load_json, to_builtins
from autotune.trial.record import RankRecord, TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.phase_peaks import Predictor, SettingPeaks
from autotune.trial.survey.plan import SurveyPlan, base_ladder
from autotune.trial.survey.report import SurveyReport
from autotune.trial.survey.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyOutcome:
    """What the survey's launches gave."""

    report: SurveyReport | None
    """None where not even the broadest bases got through the recorded step."""
    launches: tuple[TrialRecord, ...]
    """Records of the launches, in order; the last is the survey's own."""
    folder: Path


def survey_spec(spec: TrialSpec, plan: SurveyPlan, base: Boundary) -> TrialSpec:
    """The spec of a survey launch from that of an ordinary trial."""
    return replace(spec, boundary=base, steps=plan.steps, survey=to_builtins(plan))


def run_survey(
    make_spec: Callable[[Boundary], TrialSpec], plan: SurveyPlan, run: Callable[[TrialSpec], TrialRecord]
) -> SurveyOutcome:
    """Launch a survey under the first base that fits: full/uniform/1 where it can run, else the broadest selective set.

    Args:
        make_spec: An ordinary trial's spec for a base, with a folder and a number of its own.
        plan: What the survey is to do.
        run: Runs one trial to its end.
    """
    launches: list[TrialRecord] = []
    folder = Path()
    for base in base_ladder(plan.labels, full=plan.full):
        spec = survey_spec(make_spec(base), plan, base)
        folder = Path(spec.folder)
        launches.append(run(spec))
        report = read_report(folder)
        if report is not None:
            return SurveyOutcome(report=report, launches=tuple(launches), folder=folder)
        failure = launches[-1].failure
        if failure is None or not failure.failure_class.startswith("oom"):
            break
    return SurveyOutcome(report=None, launches=tuple(launches), folder=folder)


def read_report(folder: Path) -> SurveyReport | None:
    """The report of a survey launch; None where it ended before there was one."""
    path = folder / "survey.json"
    return load_json(path, SurveyReport) if path.exists() else None


def switched_records(report: SurveyReport, launch: TrialRecord, first_number: int) -> list[TrialRecord]:
    """The settings that the launch switched to, as records of kind "switched".

    If the launch failed in a switched step, the setting that was running has the failure.
    """
    records = [
        TrialRecord(
            number=first_number + place,
            kind="switched",
            boundary=setting.boundary,
            workload_digest=launch.workload_digest,
            world_size=launch.world_size,
            completed=True,
            ranks={rank: _rank_record(rank, phases) for rank, phases in setting.ranks.items()},
            step_ms=setting.step_ms,
            revisions=launch.revisions,
            details={"launch": launch.number, "loss": setting.loss, "grad_norm": setting.grad_norm},
        )
        for place, setting in enumerate(report.switched)
    ]
    if report.trying is not None and launch.failure is not None:
        records.append(
            TrialRecord(
                number=first_number + len(records),
                kind="switched",
                boundary=report.trying,
                workload_digest=launch.workload_digest,
                world_size=launch.world_size,
                completed=False,
                ranks={},
                failure=launch.failure,
                revisions=launch.revisions,
                details={"launch": launch.number},
            )
        )
    return records


def _rank_record(rank: int, phases: Mapping[str, int]) -> RankRecord:
    return RankRecord(rank=rank, allocated_peak_bytes=max(phases.values()), phases=phases)


def predict_later(folder: Path, boundary: Boundary) -> dict[int, SettingPeaks]:
    """Predict one more setting from the traces that a survey left in its folder: by rank, its step with the highest peak."""
    found: dict[int, SettingPeaks] = {}
    for path in sorted((folder / "survey").glob("step-*/*.json")):
        trace = load_json(path, Trace)
        peaks = Predictor(normalise(trace)).predict(boundary)
        if trace.rank not in found or peaks.peak_bytes > found[trace.rank].peak_bytes:
            found[trace.rank] = peaks
    return found
