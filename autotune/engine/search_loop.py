"""Ask, run, write, tell: one trial after the other, resumable at every point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.engine.events import Event, OnEvent
from autotune.engine.run_directory import RunDirectory
from autotune.records import to_builtins
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal, Sampler, Stop
from autotune.trial.backends.base import TrialBackend, TrialRequest
from autotune.trial.comparison import compare
from autotune.trial.record import TrialRecord
from autotune.units import format_gb

if TYPE_CHECKING:
    from autotune.search.study import StudyLog


@dataclass(slots=True, kw_only=True)
class SearchLoop:
    """Drives one run.

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

    def run(self, *, max_trials: int | None = None) -> Stop:
        """Search until the sampler is done or the budget is spent (trials of earlier sittings count)."""
        self._resume()
        while True:
            stop = self.sampler.done()
            if stop is not None:
                return stop
            if max_trials is not None and len(self.evidence.records) >= max_trials:
                return self._out_of_budget(max_trials)
            proposals = self.sampler.ask(1)
            if not proposals:
                return Stop(outcome="open", text="the sampler has nothing to propose")
            self._launch(self.study.begin(proposals[0]), proposals[0])

    def _resume(self) -> None:
        """Tell what finished trials have shown, then finish what a kill left behind."""
        finished = self.study.finished()
        for started in finished:
            record = self.directory.saved(started.number)
            if record is not None:
                self.sampler.tell(record)
        if finished:
            self.on_event(Event(kind="note", text=f"resumed: {len(finished)} finished trials kept, none is repeated"))
        for started in self.study.unfinished():
            self.study.resume(started.number)
            record = self.directory.saved(started.number)
            if record is not None:
                self._tell(record)
            else:
                self.on_event(Event(kind="note", text=f"trial {started.number} was cut off and runs again under its number"))
                self._launch(started.number, started.proposal)

    def _launch(self, number: int, proposal: Proposal) -> None:
        folder = self.directory.open_trial(number, proposal.boundary)
        name = proposal.boundary.key
        repeat = f" (repeat: {proposal.repeat_reason.replace('_', ' ')})" if proposal.repeat_reason else ""
        text = f"trial {number}: {name}{repeat}: {proposal.why}"
        self.on_event(Event(kind="trial_started", text=text, data={"number": number, "name": name}))
        settings = self.evidence.settings
        record = self.backend.run(
            TrialRequest(
                number=number,
                boundary=proposal.boundary,
                workload_digest=self.workload_digest,
                world_size=self.world_size,
                run_index=self.evidence.runs(proposal.boundary),
                steps=settings.min_steps,
                limit_bytes=settings.limit_bytes,
                repeat_reason=proposal.repeat_reason,
                folder=folder,
            ),
            lambda figures: self.on_event(
                Event(kind="trial_progress", text=f"trial {number}: {name}", data={"number": number, "name": name, **figures})
            ),
        )
        record = self._compared(record)
        self.directory.save(record)
        self._tell(record)

    def _tell(self, record: TrialRecord) -> None:
        verdict = self.sampler.tell(record)
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

    def _out_of_budget(self, max_trials: int) -> Stop:
        left = tuple(proposal.boundary for proposal in self.sampler.ask(8))
        best = self.evidence.best()
        text = f"stopped after --max-trials {max_trials}"
        return Stop(outcome="open" if best is None else "answer", text=text, open_boundaries=left)
