"""What samplers without a certificate share: every candidate once, then the repeats that are due."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.early_stop import NOT_ACTIVATIONS, not_an_activation_problem
from autotune.search.evidence import Evidence, launchable
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import Lacks, due_repeats, stuck
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


class EveryCandidate:
    """Launches every candidate that the backend can run, in the order that a subclass chooses.

    Args:
        candidates: The space.
        evidence: Where records go; may already hold some.
        lacks: What the backend cannot run.
    """

    why = "not tried yet"

    def __init__(self, candidates: Sequence[Candidate], evidence: Evidence, lacks: Lacks) -> None:
        self._candidates = launchable(candidates)
        self._evidence = evidence
        self._lacks = lacks
        self._pending: set[Boundary] = set()

    def choose(self, fresh: Sequence[Boundary]) -> Boundary:
        """Which of the untried boundaries is next; the first, unless a subclass knows better."""
        return fresh[0]

    def ask(self, count: int = 1) -> list[Proposal]:
        """The next untried boundaries; without any, and with none under way, the repeats that are due."""
        if self._halted() is not None:
            return []
        proposals: list[Proposal] = []
        while len(proposals) < count and (fresh := self._fresh()):
            boundary = self.choose(fresh)
            self._pending.add(boundary)
            proposals.append(Proposal(boundary=boundary, why=self.why))
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
        halted = self._halted()
        if halted is not None or self._pending or self._fresh() or any(due_repeats(self._evidence, self._lacks)):
            return halted
        untried = tuple(c.boundary for c in self._candidates if self._evidence.runs(c.boundary) == 0)
        if self._evidence.best() is not None:
            return Stop(outcome="answer", text="every candidate that can be run was run", open_boundaries=untried)
        text = "no candidate that was run passes"
        return Stop(outcome="open" if untried else "none", text=text, open_boundaries=untried)

    def _halted(self) -> Stop | None:
        boundary = stuck(self._evidence)
        if boundary is not None:
            return Stop(outcome="open", text="a retry failed by infrastructure too", open_boundaries=(boundary,))
        if not_an_activation_problem(self._candidates, self._evidence):
            return Stop(outcome="none", text=NOT_ACTIVATIONS)
        return None

    def _fresh(self) -> list[Boundary]:
        return [
            c.boundary
            for c in self._candidates
            if self._evidence.runs(c.boundary) == 0 and c.boundary not in self._pending and self._lacks(c.boundary, 0) is None
        ]
