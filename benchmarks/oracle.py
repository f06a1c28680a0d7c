"""A sampler that knows the truth: what no search can beat under the rules of repeats and flaky settings."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import due_repeats
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict
from benchmarks.played_truth import Truth


class Oracle:
    """Launches what truly fits, cheapest first, until one passes as often as the rules ask.

    It knows every peak and price, so its first launch is the optimum; where that is out of memory in one launch by the scatter of
    launches it is flaky and lost to it as to everyone. Where nothing fits it launches nothing.
    """

    def __init__(self, truth: Truth, evidence: Evidence) -> None:
        limit = evidence.settings.limit_bytes
        fitting = [b for b in truth.rows if truth.peak_bytes(b) <= limit]
        self._order = sorted(fitting, key=lambda b: (truth.step_ms(b), b.key))
        self._evidence = evidence

    def ask(self, count: int = 1) -> list[Proposal]:
        """The next of its order, or the repeat that its peak near the limit asks for."""
        repeats = list(due_repeats(self._evidence, lambda boundary, run: None))
        fresh = [b for b in self._order if self._evidence.runs(b) == 0]
        return repeats[:1] or [Proposal(boundary=b, why="cheapest that truly fits") for b in fresh[:1]]

    def tell(self, record: TrialRecord) -> Verdict:
        """Take a record."""
        return self._evidence.add(record)

    def done(self) -> Stop | None:
        """Over when something passed and no repeat is due, or when nothing is left."""
        best: Boundary | None = self._evidence.best()
        if any(due_repeats(self._evidence, lambda boundary, run: None)):
            return None
        if best is not None:
            return Stop(outcome="answer", text="the oracle's")
        return None if any(self._evidence.runs(b) == 0 for b in self._order) else Stop(outcome="none", text="nothing fits")
