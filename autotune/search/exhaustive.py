"""Every candidate once, in the seeded order or by prediction."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.early_stop import NOT_ACTIVATIONS, not_an_activation_problem
from autotune.search.evidence import Evidence, launchable
from autotune.search.fit import fit_probability
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import Lacks, due_repeats, stuck
from autotune.search.ties import preference
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


class ExhaustiveSampler:
    """Launches every candidate that the backend can run, narrow to broad to full; then the repeats that are due."""

    def __init__(self, candidates: Sequence[Candidate], evidence: Evidence, lacks: Lacks) -> None:
        self._candidates = launchable(candidates)
        self._evidence = evidence
        self._lacks = lacks
        self._pending: set[Boundary] = set()

    def ask(self, count: int = 1) -> list[Proposal]:
        """The next candidates of the order."""
        if stuck(self._evidence) is not None or not_an_activation_problem(self._candidates, self._evidence):
            return []
        proposals: list[Proposal] = []
        for candidate in self._candidates:
            boundary = candidate.boundary
            fresh = self._evidence.runs(boundary) == 0 and boundary not in self._pending
            if len(proposals) < count and fresh and self._lacks(boundary, 0) is None:
                proposals.append(Proposal(boundary=boundary, why="next in the order narrow, broad, full"))
        if not proposals and not self._pending:
            proposals = list(due_repeats(self._evidence, self._lacks))[:count]
        self._pending.update(proposal.boundary for proposal in proposals)
        return proposals

    def tell(self, record: TrialRecord) -> Verdict:
        """Take a record."""
        self._pending.discard(record.boundary)
        return self._evidence.add(record)

    def done(self) -> Stop | None:
        """Over when every candidate that can be run has been."""
        halted = stuck(self._evidence)
        if halted is not None:
            return Stop(outcome="open", text="a retry failed by infrastructure too", open_boundaries=(halted,))
        if not_an_activation_problem(self._candidates, self._evidence):
            return Stop(outcome="none", text=NOT_ACTIVATIONS)
        untried = [c.boundary for c in self._candidates if self._evidence.runs(c.boundary) == 0]
        if self._pending or any(self._lacks(b, 0) is None for b in untried) or any(due_repeats(self._evidence, self._lacks)):
            return None
        if self._evidence.best() is not None:
            return Stop(outcome="answer", text="every candidate that can be run was run", open_boundaries=tuple(untried))
        text = "no candidate that was run passes"
        return Stop(outcome="open" if untried else "none", text=text, open_boundaries=tuple(untried))


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
