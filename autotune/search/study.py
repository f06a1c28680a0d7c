"""The Optuna study of a run: what was asked and what came back, in ``study.journal``.

Optuna is storage here, and what ``optuna-dashboard`` opens: one Optuna trial is one trial of the run, with the labels and the
granularity as parameters, the step time as value, and signed constraints. A boundary that fails, by memory or otherwise,
is a COMPLETE trial with a positive finite violation.
"""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict

STUDY_NAME = "recompute-boundary"
SMALLEST_VIOLATION = 0.001
"""Violation, as a share of the limit, of a failure whose peak is unknown or was reported under the limit."""


class _KernelLock:
    """A lock that the kernel takes back from a killed process; Optuna's own leaves a file that blocks the next for 30 s."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._file = self._path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Give it back."""
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A trial that was asked for, finished or not."""

    number: int
    proposal: Proposal


class StudyLog:
    """The study of one run directory.

    Args:
        path: The journal; made where it is absent. A last line that a kill cut off is dropped.
        boundaries: The launchable boundaries, from which the parameters are made.
    """

    def __init__(self, path: Path, boundaries: Sequence[Boundary]) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _drop_cut_line(path)
        self._distributions = distributions(boundaries)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = JournalStorage(JournalFileBackend(str(path), _KernelLock(path.with_name(path.name + ".lock"))))
            # Proposals are enqueued whole; the random sampler only stands in for parameters that none of them leaves open.
            sampler = optuna.samplers.RandomSampler(seed=0)
            self._study = optuna.create_study(
                storage=storage, study_name=STUDY_NAME, direction="minimize", load_if_exists=True, sampler=sampler
            )

    @property
    def study(self) -> optuna.Study:
        """The Optuna study itself."""
        return self._study

    def begin(self, proposal: Proposal) -> int:
        """Write down that a boundary is launched; its number. The proposal is in the journal before anything runs."""
        attrs = {"proposal": to_builtins(proposal), "boundary": proposal.boundary.key}
        self._study.enqueue_trial(parameters(proposal.boundary, self._distributions), user_attrs=attrs)
        trial = self._study.ask(self._distributions)
        return int(trial.number)

    def unfinished(self) -> list[Started]:
        """Trials that a killed run left behind, asked or only enqueued."""
        left = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING))
        return [_started(trial) for trial in left]

    def finished(self) -> list[Started]:
        """Trials that have their result."""
        return [_started(trial) for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))]

    def resume(self, number: int) -> None:
        """Take up a trial that was left behind; one that was only enqueued becomes running."""
        if self._study.get_trials(deepcopy=False)[number].state == TrialState.WAITING:
            self._study.ask(self._distributions)

    def finish(self, record: TrialRecord, verdict: Verdict, evidence: Evidence, *, place: str) -> None:
        """Tell the result of a trial. Telling a finished trial again changes nothing.

        Args:
            record: The trial's record; its number is the study's.
            verdict: What the gates said when it came in.
            evidence: For the price of a boundary that has no step time.
            place: Where the record lies, relative to the run directory.
        """
        trial_id = self._study._storage.get_trial_id_from_study_id_trial_number(self._study._study_id, record.number)
        trial = optuna.Trial(self._study, trial_id)
        if self._study.get_trials(deepcopy=False)[record.number].state.is_finished():
            return
        known = trial.constraints  # a killed run may have written one of them
        for name, value in constraints(record, verdict, evidence).items():
            if name not in known:
                trial.set_constraint(name, value)
        # One attribute, one line of the journal: every line is synced to the disk.
        result: dict[str, Any] = {
            "record": place,
            "kind": record.kind,
            "verdict": verdict.status,
            "reason": verdict.reason,
            "peak_bytes": verdict.peak_bytes,
            "hot_rank": verdict.hot_rank,
            "ranks_measured": verdict.ranks_measured,
            "objective": "median step, ms" if record.step_ms else "estimated step, ms",
        }
        trial.set_user_attr("result", result)
        cost = evidence.cost_ms(record.boundary)
        self._study.tell(record.number, cost if cost != float("inf") else 0.0)


def distributions(boundaries: Sequence[Boundary]) -> dict[str, BaseDistribution]:
    """The study's parameters: one switch a label, the granularity, and which full variant."""
    labels = sorted({label for boundary in boundaries for label in boundary.modules})
    full = sorted({boundary.key for boundary in boundaries if boundary.granularity == "full"})
    found: dict[str, BaseDistribution] = {"granularity": CategoricalDistribution(["none", "selective", "full"])}
    found |= {f"label.{label}": CategoricalDistribution([False, True]) for label in labels}
    if full:
        found["full"] = CategoricalDistribution(["-", *full])
    return found


def parameters(boundary: Boundary, known: dict[str, BaseDistribution]) -> dict[str, Any]:
    """A boundary as parameters of the study."""
    values: dict[str, Any] = {"granularity": boundary.granularity or "none"}
    values |= {name: name.removeprefix("label.") in boundary.modules for name in known if name.startswith("label.")}
    if "full" in known:
        values["full"] = boundary.key if boundary.granularity == "full" else "-"
    return values


def constraints(record: TrialRecord, verdict: Verdict, evidence: Evidence) -> dict[str, float]:
    """Signed constraints of one trial, feasible at or below 0: ``memory`` in GB over the limit, ``valid`` as -1 or 1."""
    limit = evidence.settings.limit_bytes
    over = (verdict.peak_bytes - limit) if verdict.peak_bytes is not None else 0
    memory_failure = record.failure is not None and record.failure.failure_class.startswith("oom")
    if memory_failure or (verdict.peak_bytes is None and not verdict.eligible):
        over = max(over, round(SMALLEST_VIOLATION * limit))
    wrong = verdict.status in ("invalid", "flaky") or (verdict.status == "fail" and over <= 0)
    return {"memory": over / 1e9, "valid": 1.0 if wrong else -1.0}


def _started(trial: FrozenTrial) -> Started:
    attrs = trial.user_attrs.get("proposal")
    proposal = from_builtins(attrs, Proposal, setting=f"study.journal, trial {trial.number}")
    return Started(number=trial.number, proposal=proposal)


def _drop_cut_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        with path.open("r+b") as file:
            file.truncate(len(whole))
