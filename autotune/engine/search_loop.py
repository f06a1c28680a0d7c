"""Ask, run, write, tell: resumable at every point."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from autotune.engine.events import Event, OnEvent
from autotune.engine.run_directory import RunDirectory
from autotune.errors import StoppedError
from autotune.records import to_builtins
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal, Sampler, Stop
from autotune.trial.backends.base import TrialBackend, TrialRequest
from autotune.trial.comparison import compare
from autotune.trial.record import TrialRecord
from autotune.units import format_gb

if TYPE_CHECKING:
    from autotune.engine.calibration import Calibrator
    from autotune.search.planner import Planner
    from autotune.search.study import Started, StudyLog
    from autotune.trial.survey.plan import SurveyPlan
    from autotune.trial.verdict import Verdict


@runtime_checkable
class Driver(Protocol):
    """A backend that runs many trials itself, several side by side where it has room (Ray Tune)."""

    def drive(self, source: SearchLoop, folder: Path) -> None:
        """Run what ``next_request`` gives and tell each result to ``accept``, until ``finished``."""
        ...


@dataclass(slots=True, kw_only=True)
class SearchLoop:
    """The source of a run's trials and the place of their results; drives the backends that run one trial at a time.

    The order for a trial is: proposal into the journal, boundary.json, the trial itself, record.json, result into the journal.
    A kill between any two leaves either a trial to run again under its own number, or a record to tell.
    """

    backend: TrialBackend
    sampler: Sampler
    evidence: Evidence
    study: StudyLog
    directory: RunDirectory
    workload_digest: str
    world_size: int
    on_event: OnEvent
    max_trials: int | None = None
    max_gpu_hours: float | None = None
    """Of all trials together, by their wall time and the world size; no trial is begun after it."""
    survey: SurveyPlan | None = None
    """What a proposed survey is to do; None where the sampler proposes none."""
    calibrator: Calibrator | None = None
    """Compares each measurement with its prediction and learns from it."""
    stop: Stop | None = None
    _left: list[Started] = field(default_factory=list)
    _pending: dict[int, Proposal] = field(default_factory=dict)

    def run(self) -> Stop:
        """Search until the sampler is done or the budget is spent (trials of earlier sittings count).

        Raises:
            StoppedError: The cluster was lost, or the disk is full; the run can be resumed.
        """
        try:
            self._resume()
            if isinstance(self.backend, Driver):
                if self._look() is None:
                    self.backend.drive(self, self.directory.path)
            else:
                while (request := self.next_request()) is not None:
                    self.accept(request, self.backend.run(request, partial(self.progress, request)))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            where = f"{self.directory.path}: {error.strerror}"
            raise StoppedError(f"the run directory cannot be written any more ({where}); make room and add --resume") from error
        assert self.stop is not None
        return self.stop

    @property
    def finished(self) -> bool:
        """Whether nothing more will be asked for; running trials may still end."""
        return self.stop is not None

    def next_request(self) -> TrialRequest | None:
        """The next trial; None where running ones have to end first, or where the search has stopped."""
        if self._left:
            started = self._left.pop(0)
            self.on_event(Event(kind="note", text=f"trial {started.number} was cut off and runs again under its number"))
            return self._request(started.number, started.proposal)
        if self._look() is not None:
            return None
        proposals = self.sampler.ask(1)
        if not proposals:
            if not self._pending:
                self.stop = Stop(outcome="open", text="the sampler has nothing to propose")
            return None
        if proposals[0].boundary in {proposal.boundary for proposal in self._pending.values()}:
            return None  # Left behind by a kill and running again: the sampler of this sitting does not know that yet.
        return self._request(self.study.begin(proposals[0]), proposals[0])

    def accept(self, request: TrialRequest, record: TrialRecord) -> None:
        """Take the result of a trial."""
        record = self._compared(record)
        if not self._pending[request.number].survey:  # a survey's peaks are of many settings
            record = self._against_prediction(record)
        self.directory.save(record)
        self._tell(record, self._pending.pop(request.number))

    def progress(self, request: TrialRequest, figures: Mapping[str, Any]) -> None:
        """Pass on figures of a running trial."""
        name = request.boundary.key
        data = {"number": request.number, "name": name, **figures}
        self.on_event(Event(kind="trial_progress", text=_progress_line(request, figures), data=data))

    def _look(self) -> Stop | None:
        """Whether the search stops here. With trials under way it does not yet: they may change what there is to do."""
        if self.stop is None and not self._left:
            stop = self.sampler.done()
            if stop is not None and not self._pending:
                self.stop = stop
            elif (spent := self._spent()) is not None:
                if not self._pending:
                    self.stop = self._out_of_budget(spent)
                return self.stop or Stop(outcome="open", text="the budget is given out")
            elif stop is not None:
                return stop
        return self.stop

    def _resume(self) -> None:
        """Tell what finished trials have shown, then what a kill left behind."""
        finished = self.study.finished()
        for started in finished:
            record = self.directory.saved(started.number)
            if record is not None:
                self._take(record, started.proposal)
        if finished:
            self.on_event(Event(kind="note", text=f"resumed: {len(finished)} finished trials kept, none is repeated"))
        for started in self.study.unfinished():
            self.study.resume(started.number)
            record = self.directory.saved(started.number)
            if record is not None:
                self._tell(record, started.proposal)
            else:
                self._left.append(started)
        self.evidence.begin_sitting()

    def _request(self, number: int, proposal: Proposal) -> TrialRequest:
        folder = self.directory.open_trial(number, proposal.boundary)
        name = proposal.boundary.key
        repeat = f" (repeat: {proposal.repeat_reason.replace('_', ' ')})" if proposal.repeat_reason else ""
        text = f"trial {number}: {name}{repeat}: {proposal.why}"
        self.on_event(Event(kind="trial_started", text=text, data={"number": number, "name": name}))
        settings = self.evidence.settings
        plan = self.survey if proposal.survey else None
        self._pending[number] = proposal
        return TrialRequest(
            number=number,
            boundary=proposal.boundary,
            workload_digest=self.workload_digest,
            world_size=self.world_size,
            run_index=self.evidence.runs(proposal.boundary),
            steps=settings.min_steps if plan is None else plan.steps,
            limit_bytes=settings.limit_bytes,
            repeat_reason=proposal.repeat_reason,
            folder=folder,
            survey=to_builtins(plan) if plan is not None else None,
        )

    def _take(self, record: TrialRecord, proposal: Proposal) -> Verdict:
        """Give a record to the sampler, with what its survey found where it was one."""
        if not proposal.survey:
            if self.calibrator is not None:
                self.calibrator.take(record)
            return self.sampler.tell(record)
        from autotune.engine.survey_stage import findings_of
        from autotune.trial.survey.launch import read_report

        report = read_report((self.directory.path / self.directory.place(record.number)).parent)
        found = findings_of(report, record, to_the_bit=self.backend.to_the_bit) if report is not None else None
        return cast("Planner", self.sampler).tell_survey(record, found)

    def _tell(self, record: TrialRecord, proposal: Proposal) -> None:
        verdict = self._take(record, proposal)
        self.study.finish(record, verdict, self.evidence, place=self.directory.place(record.number))
        step = f", step {verdict.step_ms:.2f} ms" if verdict.step_ms is not None else ""
        peak = (
            f", peak {format_gb(verdict.peak_bytes)}" if verdict.peak_bytes is not None and "peak" not in verdict.reason else ""
        )
        text = f"trial {record.number}: {record.boundary.key}: {verdict.status} ({verdict.reason}{peak}{step}) [{record.kind}]"
        data = {"number": record.number, "name": record.boundary.key, "status": verdict.status, "peak_bytes": verdict.peak_bytes}
        self.on_event(Event(kind="trial_ended", text=text, data=data))

    def _compared(self, record: TrialRecord) -> TrialRecord:
        """Fill the fields that only a second trial can: against the reference, else against the trial before."""
        before = [r for r in self.evidence.records if r.kind == record.kind and r.boundary != record.boundary]
        other = self.evidence.reference or (before[-1] if before else None)
        if other is None or other.boundary == record.boundary or record.kind == "predicted":
            return record
        return replace(record, details={**record.details, "comparison": to_builtins(compare(record, other))})

    def _against_prediction(self, record: TrialRecord) -> TrialRecord:
        """Note how far the prediction made before the trial was from it."""
        error = self.calibrator.error(record) if self.calibrator is not None else None
        if error is None:
            return record
        data = {"number": record.number, "name": record.boundary.key, **to_builtins(error)}
        self.on_event(Event(kind="prediction", text=f"trial {record.number}: {record.boundary.key}: {error.text}", data=data))
        return replace(record, details={**record.details, "prediction": to_builtins(error)})

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the trials that ended."""
        return sum(float(r.details.get("wall_s", 0.0)) * r.world_size for r in self.evidence.records) / 3600

    def _spent(self) -> str | None:
        """Which budget is spent, by its option."""
        begun = len(self.evidence.records) + len(self._pending)
        if self.max_trials is not None and begun >= self.max_trials:
            return f"--max-trials {self.max_trials}"
        if self.max_gpu_hours is not None and self.gpu_hours >= self.max_gpu_hours:
            return f"--max-gpu-hours {self.max_gpu_hours:g} ({self.gpu_hours:.2f} used)"
        return None

    def _out_of_budget(self, spent: str) -> Stop:
        left = tuple(proposal.boundary for proposal in self.sampler.ask(8))
        best = self.evidence.best()
        text = f"stopped after {spent}"
        return Stop(outcome="open" if best is None else "answer", text=text, open_boundaries=left)


def _progress_line(request: TrialRequest, figures: Mapping[str, Any]) -> str:
    """What a running trial is doing: step, phase, peak so far."""
    text = f"trial {request.number}: {request.boundary.key}"
    if figures.get("step"):
        text += f", step {figures['step']} of {request.steps}"
    if figures.get("phase"):
        text += f", {str(figures['phase']).replace('_', ' ')}"
    text += f", peak so far {format_gb(figures['peak_bytes'])}" if figures.get("peak_bytes") else ""
    return text + (f", about {figures['left_s']:.0f} s left" if figures.get("left_s") else "")
