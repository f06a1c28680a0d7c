"""Every candidate once, in the seeded order or by prediction."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.search.candidate import Candidate
from autotune.search.every_candidate import EveryCandidate
from autotune.search.evidence import Evidence, launchable
from autotune.search.fit import fit_probability
from autotune.search.proposal import Proposal, Stop
from autotune.search.ties import preference
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


class ExhaustiveSampler(EveryCandidate):
    """Launches every candidate that the backend can run, narrow to broad to full; then the repeats that are due."""

    why = "next in the order narrow, broad, full"


class PredictedSampler:
    """Proposes the cheapest candidate whose 95 % peak is within the limit: the answer without trials."""

    def __init__(self, candidates: Sequence[Candidate], evidence: Evidence) -> None:
        limit = evidence.settings.limit_bytes
        known = [(c, c.prediction) for c in launchable(candidates) if c.prediction is not None]
        known.sort(key=lambda pair: (pair[1].replay_ms, *preference(pair[0].boundary, pair[1].peak_p95_bytes)))
        self._evidence = evidence
        self._fitting = next((c for c, prediction in known if prediction.peak_p95_bytes <= limit), None)
        self._maybe = [c.boundary for c, prediction in known if fit_probability(prediction, limit) >= 0.05]

    def ask(self, count: int = 1) -> list[Proposal]:
        """The one answer, once."""
        if self._fitting is None or self._evidence.verdicts:
            return []
        why = "cheapest candidate whose predicted 95 % peak is within the limit"
        return [Proposal(boundary=self._fitting.boundary, why=why)]

    def tell(self, record: TrialRecord) -> Verdict:
        """Take the predicted record."""
        return self._evidence.add(record)

    def done(self) -> Stop | None:
        """Over at once."""
        if self._evidence.best() is not None:
            return Stop(outcome="answer", text="cheapest candidate whose predicted 95 % peak is within the limit")
        if self._fitting is not None:
            return None
        if self._maybe:
            text = "no candidate's predicted 95 % peak is within the limit; only a launch can tell"
            return Stop(outcome="open", text=text, open_boundaries=tuple(self._maybe))
        return Stop(outcome="none", text="every candidate's predicted 5 % peak is over the limit")
