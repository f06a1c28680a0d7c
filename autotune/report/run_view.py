"""A run directory, read back: what every output is rendered from, during a run and long after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.boundary.boundary import Boundary
from autotune.engine.plan import PlanResult
from autotune.errors import RequestError
from autotune.records import load_json
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord
from autotune.workload.workload import Workload

if TYPE_CHECKING:
    from autotune.trial.survey.report import SurveyReport


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One finished or stopped run."""

    folder: Path
    recommendation: Recommendation
    workload: Workload
    plan: PlanResult | None
    trials: tuple[TrialRecord, ...]
    """The launch of a survey is of kind ``switched``."""
    survey: SurveyReport | None = None
    """What the survey launch found; None where there was none or it ended before its predictions."""

    @property
    def launches(self) -> tuple[TrialRecord, ...]:
        """Trials that ran one setting from start to end: not predictions, and not a survey, which switches between many."""
        return tuple(trial for trial in self.trials if trial.kind not in ("predicted", "switched"))

    @property
    def answer(self) -> Boundary | None:
        """The recommended boundary."""
        fields = self.recommendation.boundary
        return None if fields is None else Boundary.from_fields(fields)

    @property
    def answer_trial(self) -> TrialRecord | None:
        """The completed trial of the recommended boundary with the highest peak; None where nothing ran."""
        found = [trial for trial in self.launches if trial.boundary == self.answer and trial.ranks]
        return max(found, key=lambda trial: max(rank.allocated_peak_bytes for rank in trial.ranks.values()), default=None)


def read_run(folder: Path) -> RunView:
    """Read a run directory.

    Raises:
        RequestError: The folder holds no run, or one that has no recommendation yet.
    """
    from autotune.trial.survey.launch import read_report  # A plan is shown without it.

    if not (folder / "workload.json").is_file():
        raise RequestError(
            "RUN", str(folder), "this folder holds no run (no workload.json)", "name a directory that `autotune run` wrote"
        )
    if not (folder / "recommendation.json").is_file():
        raise RequestError(
            "RUN", str(folder), "this run has no recommendation yet", "finish it: `autotune run ... --out DIR --resume`"
        )
    recommendation = load_json(folder / "recommendation.json", Recommendation)
    records = sorted(folder.glob("trials/*/record.json"))
    trials = [load_json(path, TrialRecord) for path in records]
    surveys = [report for path in records if (report := read_report(path.parent)) is not None]
    return RunView(
        folder=folder,
        recommendation=recommendation,
        workload=load_json(folder / "workload.json", Workload),
        plan=load_json(plan, PlanResult) if (plan := folder / "candidates.json").is_file() else None,
        trials=tuple(trials),
        survey=surveys[-1] if surveys else None,
    )
