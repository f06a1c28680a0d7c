"""The planner: which boundary to launch next, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.early_stop import NOT_ACTIVATIONS, not_an_activation_problem, widest_selective
from autotune.search.evidence import Evidence, launchable
from autotune.search.posterior import FailureSeen, PeakSeen, Posterior, PriorSpread, StepSeen
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import Lacks, due_repeats, stuck
from autotune.trial.gates import hot_rank
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When more launches are not worth it.

    Attributes:
        worth: A saving below this share of a step is none.
        chance: Stop when no candidate is within the limit and that much cheaper with at least this probability ...
        expected: ... and none is expected to save this share of a step.
        doubt: A pair of timed boundaries is repeated where the worlds rank it the other way with this probability.
        most_runs: ... until each of them was run so often.
        hopeless: Without a pass: stop when every candidate's probability of fitting is below this, and full and the broadest
            selective set were tried.
    """

    worth: float = 0.01
    chance: float = 0.05
    expected: float = 0.002
    doubt: float = 0.7
    most_runs: int = 3
    hopeless: float = 0.02


class Planner:
    """Ask and tell over the physics.

    Before anything passes it proposes the cheapest candidate that is more likely to fit than not (else the likeliest); after
    that, the candidate with the largest expected saving. It never proposes a finished or pending boundary but as a repeat with
    its reason, and is deterministic under its seed.

    Args:
        candidates: The space, with predictions.
        evidence: Where records go; may already hold some.
        lacks: What the backend cannot run.
        seed: Of the posterior's draws.
        rule: When to stop.
        exhaust: Go on until everything that can be run has been (a table's rows cost nothing).
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        evidence: Evidence,
        lacks: Lacks,
        *,
        seed: int = 0,
        rule: StopRule | None = None,
        spread: PriorSpread | None = None,
        draws: int = 2000,
        exhaust: bool = False,
    ) -> None:
        self._candidates = launchable(candidates)
        self._evidence = evidence
        self._lacks = lacks
        self._rule = rule or StopRule()
        self._exhaust = exhaust
        self._pending: set[Boundary] = set()
        predictions = {c.boundary: c.prediction for c in self._candidates if c.prediction is not None}
        self.posterior = Posterior(predictions, spread=spread, seed=seed, draws=draws) if predictions else None
        for record in evidence.records:
            self._learn(record)

    def fit(self, boundary: Boundary) -> float | None:
        """Probability that a boundary is within the limit; None where the physics does not know it."""
        if self.posterior is None or not self.posterior.knows(boundary):
            return None
        return self.posterior.fit(boundary, self._evidence.settings.limit_bytes)

    def ask(self, count: int = 1) -> list[Proposal]:
        """The launches that promise most, best first."""
        if stuck(self._evidence) is not None or not_an_activation_problem(self._candidates, self._evidence):
            return []
        repeats = [r for r in due_repeats(self._evidence, self._lacks) if r.boundary not in self._pending]
        urgent = [r for r in repeats if r.repeat_reason != "near_limit"][:count]
        proposals = urgent + (self._ranked()[: count - len(urgent)] if len(urgent) < count else [])
        if not proposals and not self._pending:
            proposals = [*self._noise_pair(), *repeats][:count]
        self._pending.update(proposal.boundary for proposal in proposals)
        return proposals

    def tell(self, record: TrialRecord) -> Verdict:
        """Take a record and learn from it."""
        self._pending.discard(record.boundary)
        verdict = self._evidence.add(record)
        self._learn(record)
        return verdict

    def done(self) -> Stop | None:
        """Over when nothing is worth a launch and no repeat is due."""
        halted = stuck(self._evidence)
        if halted is not None:
            return Stop(outcome="open", text="a retry failed by infrastructure too", open_boundaries=(halted,))
        if not_an_activation_problem(self._candidates, self._evidence):
            return Stop(outcome="none", text=NOT_ACTIVATIONS)
        if self._pending or any(due_repeats(self._evidence, self._lacks)) or self._ranked() or self._noise_pair():
            return None
        untried = [c.boundary for c in self._candidates if self._evidence.runs(c.boundary) == 0]
        best = self._evidence.best()
        if best is not None:
            cannot = tuple(
                b for b in untried if self._lacks(b, 0) is not None and self._evidence.cost_ms(b) < self._evidence.cost_ms(best)
            )
            return Stop(outcome="answer", text="no other candidate is worth a launch", open_boundaries=cannot)
        cannot = tuple(b for b in untried if self._lacks(b, 0) is not None)
        if cannot:
            return Stop(outcome="open", text="no candidate that was run passes", open_boundaries=cannot)
        return Stop(outcome="none", text="no boundary passes, full and the broadest selective set among those tried")

    # ------------------------------------------------------------------------------------------------------------------

    def _learn(self, record: TrialRecord) -> None:
        if self.posterior is None or record.kind == "predicted":
            return
        verdict = self._evidence.verdicts[record.boundary]
        peaks = [rank.allocated_peak_bytes for rank in record.ranks.values()]
        if record.completed and record.failure is None and peaks:
            phases: dict[str, int] = {}
            for rank in record.ranks.values():
                for phase, size in rank.phases.items():
                    phases[phase] = max(phases.get(phase, 0), size)
            seen: list[PeakSeen | FailureSeen | StepSeen] = [
                PeakSeen(boundary=record.boundary, peak_bytes=max(peaks), phases=phases)
            ]
            if record.step_ms and verdict.status != "invalid":
                seen.append(StepSeen(boundary=record.boundary, step_ms=sorted(record.step_ms)[len(record.step_ms) // 2]))
            self.posterior.see(seen)
        elif record.failure is not None and record.failure.failure_class in _MEMORY_FAILURES:
            hot = hot_rank(record)
            reached = record.ranks[hot].allocated_peak_bytes if hot is not None else 0
            above = max(self._evidence.settings.limit_bytes, reached + (record.failure.requested_bytes or 0))
            self.posterior.see([FailureSeen(boundary=record.boundary, above_bytes=above)])

    def _fresh(self) -> list[Candidate]:
        return [
            c
            for c in self._candidates
            if self._evidence.runs(c.boundary) == 0 and c.boundary not in self._pending and self._lacks(c.boundary, 0) is None
        ]

    def _ranked(self) -> list[Proposal]:
        fresh = self._fresh()
        best = self._evidence.best()
        if best is None:
            return self._before_a_pass(fresh)
        return self._after_a_pass(fresh, best)

    def _before_a_pass(self, fresh: list[Candidate]) -> list[Proposal]:
        rule = self._rule
        known = [(c, self.fit(c.boundary)) for c in fresh]
        by_price = sorted(known, key=lambda p: (self._price(p[0].boundary), len(p[0].boundary.modules), p[0].order))
        likely = [(c, fit) for c, fit in by_price if fit is None or fit >= 0.5]
        rest = sorted((p for p in by_price if p not in likely), key=lambda p: -(p[1] or 0.0))
        proposals = [
            Proposal(boundary=c.boundary, why="cheapest that is likelier to fit than not", fit_probability=fit)
            for c, fit in likely
        ]
        last_resort = self._last_resort()
        for candidate, fit in rest:
            # Peaks are not monotonic: full and the broadest selective set are tried before giving up.
            must = candidate.boundary in last_resort
            if (fit or 0.0) >= rule.hopeless or must or self._exhaust:
                why = "tried before giving up" if must else "likeliest to fit"
                proposals.append(Proposal(boundary=candidate.boundary, why=why, fit_probability=fit))
        return proposals

    def _after_a_pass(self, fresh: list[Candidate], best: Boundary) -> list[Proposal]:
        rule, limit = self._rule, self._evidence.settings.limit_bytes
        verdict = self._evidence.verdicts[best]
        posterior = self.posterior
        scored = []
        for candidate in fresh:
            boundary = candidate.boundary
            if posterior is None or not (posterior.knows(boundary) and posterior.knows(best)):
                if candidate.order < self._order(best) or self._exhaust:
                    scored.append((0.0, candidate, Proposal(boundary=boundary, why="not predicted, narrower than the best")))
                continue
            # Without step times yet, a step is taken as twenty times what the best replays: 1 % of it is a fifth of that.
            step_ms = verdict.step_ms or 20 * max(posterior.price_ms(best), 1.0)
            expected, chance = posterior.gain(boundary, limit, best, step_ms, rule.worth)
            if chance >= rule.chance or expected >= rule.expected * step_ms or self._exhaust:
                proposal = Proposal(
                    boundary=boundary,
                    why="largest expected saving",
                    fit_probability=posterior.fit(boundary, limit),
                    gain_ms=round(expected, 3),
                )
                scored.append((expected, candidate, proposal))
        scored.sort(key=lambda s: (-s[0], s[1].order, s[1].boundary.key))
        return [proposal for _, _, proposal in scored]

    def _noise_pair(self) -> list[Proposal]:
        """One more run of the best, or of the boundary that the physics holds to be cheaper although its step was slower.

        Step times of two launches differ by some percent for no reason of the boundary's, so such a pair is run again, the one
        with fewer runs first.
        """
        best, rule = self._evidence.best(), self._rule
        if best is None or self.posterior is None or not self.posterior.knows(best):
            return []
        step_ms = self._evidence.verdicts[best].step_ms
        if step_ms is None:
            return []
        doubtful = []
        for boundary, verdict in self._evidence.verdicts.items():
            if boundary == best or not verdict.eligible or verdict.step_ms is None or not self.posterior.knows(boundary):
                continue
            cheaper = self.posterior.cheaper(boundary, best, rule.worth * step_ms)
            if cheaper >= rule.doubt:
                doubtful.append((-cheaper, boundary.key, boundary))
        for _, _, rival in sorted(doubtful):
            for boundary in sorted((rival, best), key=lambda b: (self._evidence.runs(b), b == best)):
                runs = self._evidence.runs(boundary)
                if runs < rule.most_runs and self._lacks(boundary, runs) is None:
                    other = best if boundary == rival else rival
                    why = f"its step is to be told from that of {other.key}"
                    return [Proposal(boundary=boundary, why=why, repeat_reason="noise_pair")]
        return []

    def _price(self, boundary: Boundary) -> float:
        if self.posterior is not None and self.posterior.knows(boundary):
            return self.posterior.price_ms(boundary)
        return self._evidence.replay_ms(boundary)

    def _order(self, boundary: Boundary) -> int:
        return next((c.order for c in self._candidates if c.boundary == boundary), 0)

    def _last_resort(self) -> set[Boundary]:
        """Full over everything, and the selective set with the most labels."""
        full = [c for c in self._candidates if c.boundary.granularity == "full"]
        widest = widest_selective(self._candidates)
        found = {widest} if widest is not None else set()
        if full:
            found.add(min(full, key=lambda c: (self._expected_peak(c), c.order)).boundary)
        return found

    def _expected_peak(self, candidate: Candidate) -> float:
        return float(candidate.prediction.peak_bytes) if candidate.prediction is not None else 0.0


_MEMORY_FAILURES = frozenset({"oom_capacity", "oom_loss_path", "oom_optimizer", "oom_graph_capture", "over_limit"})
"""Failures that prove a peak; fragmentation proves none."""
