"""The planner: which boundary to launch next, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.early_stop import NOT_ACTIVATIONS, last_resort, not_an_activation_problem
from autotune.search.evidence import Evidence, launchable
from autotune.search.held import held_bytes
from autotune.search.neighbours import unproven
from autotune.search.noise_pair import noise_pair
from autotune.search.observations import PeakSeen, PriorSpread
from autotune.search.posterior import Posterior
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import Lacks, due_repeats, stuck
from autotune.search.seen import seen_in_launch, seen_in_survey
from autotune.search.spreads import around_a_survey, around_the_ledger
from autotune.search.stop_rule import HINT_SCATTER, JITTER, NEAR, SURVEYED_RULE, StopRule
from autotune.search.survey import SurveyFindings, candidates_after_survey
from autotune.search.worth import Outlook, outlook, saving, saving_of_a_repeat
from autotune.trial.gates import peaks_bytes
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


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
        exhaust: Go on until everything that can be run has been (a table's rows cost nothing). Boundaries are then ranked by
            their own steps alone; otherwise by prices that predictions and all steps together give.
        jitter: Relative scatter of the peak of one boundary between launches (0.6 % with free routing of experts).
        survey: Begin with a region survey; its result comes through ``tell_survey``.
        first: Launched before anything else that is not a survey: an earlier answer that has to be validated again.
        prove: Go on until every immediate neighbour of the answer was launched.
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
        draws: int = 1500,
        exhaust: bool = False,
        jitter: float = JITTER,
        survey: bool = False,
        prove: bool = False,
        first: Boundary | None = None,
    ) -> None:
        self._space = tuple(candidates)
        self._candidates = launchable(candidates)
        self._evidence = evidence
        self._lacks = lacks
        self._given_rule, self._rule = rule, rule or StopRule()
        self._exhaust, self._prove, self._first = exhaust, prove, first
        self._seed, self._draws, self.jitter = seed, draws, jitter
        self._pending: set[Boundary] = set()
        self._step_ms: float | None = None
        self._surveyed = False
        self._bases = [b for b in last_resort(self._candidates) if lacks(b, 0) is None] if survey else []
        self._metric = evidence.settings.mem_metric
        spread = spread or around_the_ledger(jitter, self._metric)
        predictions = {c.boundary: c.prediction for c in self._candidates if c.prediction is not None}
        self.posterior = Posterior(predictions, spread=spread, seed=seed, draws=draws) if predictions else None
        if not exhaust:
            evidence.pricing, evidence.chance = self._known_price, self._chance
            evidence.risk, evidence.premium = self.risk, self._premium_ms
        for record in evidence.known_records:
            self._learn(record)

    def fit(self, boundary: Boundary) -> float | None:
        """Probability that a boundary is within the limit; None where the physics does not know it."""
        known = self._knowing(boundary)
        return known.fit(boundary, self._evidence.settings.limit_bytes) if known is not None else None

    def risk(self, boundary: Boundary) -> float:
        """Probability that a passing boundary near the limit is over it in the mean of its launches.

        Where peaks repeat (``jitter``), what was within the limit stays there.
        """
        verdict, known = self._evidence.verdicts.get(boundary), self._knowing(boundary)
        limit = self._evidence.settings.limit_bytes
        if self.jitter <= JITTER or known is None or verdict is None or (verdict.peak_bytes or 0) <= NEAR * limit:
            return 0.0
        return known.over(boundary, limit)

    def _knowing(self, boundary: Boundary) -> Posterior | None:
        return self.posterior if self.posterior is not None and self.posterior.knows(boundary) else None

    def _safe(self, boundary: Boundary) -> float | None:
        known = self._knowing(boundary)
        return known.safe(boundary, self._evidence.settings.limit_bytes) if known is not None else None

    def ask(self, count: int = 1) -> list[Proposal]:
        """The launches that promise most, best first."""
        if stuck(self._evidence) is not None or not_an_activation_problem(self._candidates, self._evidence):
            return []
        if self._bases:
            if self._pending:
                return []
            self._pending.add(self._bases[0])
            return [Proposal(boundary=self._bases[0], why="a survey of every setting, under the broadest", survey=True)]
        repeats = [r for r in due_repeats(self._evidence, self._lacks) if r.boundary not in self._pending]
        urgent = [*(r for r in repeats if r.repeat_reason != "near_limit"), *self._risky()][:count]
        proposals = urgent + (self._ranked()[: count - len(urgent)] if len(urgent) < count else [])
        if not proposals and not self._pending:
            proposals = [*self._noise_pair(), *repeats, *self._unproven()][:count]
        self._pending.update(proposal.boundary for proposal in proposals)
        return proposals

    def tell(self, record: TrialRecord) -> Verdict:
        """Take a record and learn from it."""
        self._pending.discard(record.boundary)
        verdict = self._evidence.add(record)
        self._learn(record)
        return verdict

    def hint(self, record: TrialRecord) -> None:
        """Learn roughly from a launch of another revision or workload; it is no evidence of this run."""
        peaks = peaks_bytes(record, self._metric)
        if self.posterior is not None and record.completed and record.failure is None and peaks:
            seen = PeakSeen(boundary=record.boundary, peak_bytes=max(peaks.values()), phases={}, scatter=HINT_SCATTER)
            self.posterior.see([seen])

    def tell_survey(self, record: TrialRecord, findings: SurveyFindings | None) -> Verdict:
        """Take a survey launch. Its predictions replace the ledger's; what it switched to is evidence, never a pass.

        Args:
            record: The launch, its boundary the base.
            findings: None where the launch ended before it could predict anything: then its failure is the base's own, and
                the next base is asked for.
        """
        self._pending.discard(record.boundary)
        if findings is None:
            memory = record.failure is not None and record.failure.failure_class.startswith("oom")
            self._bases = self._bases[1:] if memory else []
            verdict = self._evidence.add(record)
            self._learn(record)
            return verdict
        self._bases, self._surveyed = [], True
        verdict = self._evidence.add_survey(record, findings.switched)
        self._space = candidates_after_survey(self._space, findings, metric=self._metric)
        self._candidates = launchable(self._space)
        predictions = {c.boundary: c.prediction for c in self._candidates if c.prediction is not None}
        self._rule = self._given_rule or SURVEYED_RULE
        base_steps = findings.base_step_ms or record.step_ms
        self._step_ms = median(base_steps) if base_steps else None
        spread = around_a_survey(findings, self.jitter, self._metric)
        self.posterior = Posterior(predictions, spread=spread, seed=self._seed, draws=self._draws) if predictions else None
        for earlier in self._evidence.known_records:
            if earlier.number != record.number:  # A base that ran out of memory before it is a lower bound.
                self._learn(earlier)
        if self.posterior is not None:
            pools = {boundary: prediction.graph_pool_bytes for boundary, prediction in predictions.items()}

            def held(boundary: Boundary, size: int) -> int:
                return held_bytes(size, pools.get(boundary, 0), self._metric)

            self.posterior.see(seen_in_survey(record, findings, self._evidence.settings.limit_bytes, held=held))
        return verdict

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The whole space with the predictions that hold now: the survey's, once there was one."""
        return self._space

    def done(self) -> Stop | None:
        """Over when nothing is worth a launch and no repeat is due."""
        halted = stuck(self._evidence)
        if halted is not None:
            return Stop(outcome="open", text="a retry failed by infrastructure too", open_boundaries=(halted,))
        if not_an_activation_problem(self._candidates, self._evidence):
            return Stop(outcome="none", text=NOT_ACTIVATIONS)
        if (
            self._pending
            or self._bases
            or any(due_repeats(self._evidence, self._lacks))
            or self._risky()
            or self._ranked()
            or self._noise_pair()
        ):
            return None
        if self._unproven():
            return None
        untried = [c.boundary for c in self._candidates if self._evidence.runs(c.boundary) == 0]
        best = self._evidence.best()
        if best is not None:
            cannot = tuple(
                b for b in untried if self._lacks(b, 0) is not None and self._evidence.cost_ms(b) < self._evidence.cost_ms(best)
            )
            text = "every neighbour of it was launched" if self._prove else "no other candidate is worth a launch"
            return Stop(outcome="answer", text=text, open_boundaries=cannot)
        cannot = tuple(b for b in untried if self._lacks(b, 0) is not None)
        if cannot:
            return Stop(outcome="open", text="no candidate that was run passes", open_boundaries=cannot)
        return Stop(outcome="none", text="no boundary passes, full and the broadest selective set among those tried")

    def _known_price(self, boundary: Boundary) -> float | None:
        known = self._knowing(boundary)
        return known.price_ms(boundary) if known is not None else None

    @property
    def _a_step_ms(self) -> float:
        """A step: the median of those measured, else surveyed; without any, twenty times the cheapest replay that passed."""
        verdicts = self._evidence.verdicts
        known = [v.step_ms for v in verdicts.values() if v.step_ms is not None]
        replays = [self._price(b) for b, v in verdicts.items() if v.eligible]
        return median(known) if known else self._step_ms or 20 * max(min(replays, default=0.0), 1.0)

    @property
    def _launch_ms(self) -> float:
        return self._rule.expected * self._a_step_ms

    @property
    def _wrong_ms(self) -> float:
        return self._rule.wrong * self._a_step_ms

    def _premium_ms(self, boundary: Boundary) -> float:
        return self.risk(boundary) * self._wrong_ms

    def _chance(self, boundary: Boundary, answer: Boundary | None) -> float | None:
        """Probability that a boundary that is not the answer should be it."""
        posterior, limit = self.posterior, self._evidence.settings.limit_bytes
        if posterior is None or not posterior.knows(boundary) or (self.jitter <= JITTER and self._evidence.runs(boundary)):
            return None  # where peaks repeat, a launch has told
        if answer is None:
            return 1 - posterior.over(boundary, limit)
        if not posterior.knows(answer):
            return None
        return posterior.better(boundary, answer, limit, self._rule.worth * self._a_step_ms)

    def _risky(self) -> list[Proposal]:
        """One more run of the best, where it lies so near the limit that knowing better is worth a launch."""
        best, rule, posterior = self._evidence.best(), self._rule, self.posterior
        if best is None or best in self._pending or posterior is None or self._many():
            return []
        runs, risk = self._evidence.runs(best), self.risk(best)
        if not risk or runs >= rule.most_runs or self._lacks(best, runs) is not None:
            return []
        shows, otherwise = self._outlook(best), self._otherwise_ms(best)
        if saving_of_a_repeat(shows, wrong_ms=self._wrong_ms, risk=risk, otherwise_ms=otherwise) < self._launch_ms:
            return []
        why = f"over the limit in the mean of its launches with {risk:.1%}"
        return [Proposal(boundary=best, why=why, repeat_reason="near_limit")]

    def _many(self) -> bool:
        """Whether so much was launched that what is left lies within the scatter of launches."""
        return sum(record.kind != "switched" for record in self._evidence.records) >= self._rule.most_launches

    def _outlook(self, boundary: Boundary) -> Outlook:
        assert self.posterior is not None
        return outlook(self.posterior, boundary, self._evidence.settings.limit_bytes, settles=self.jitter <= JITTER)

    def _otherwise_ms(self, best: Boundary) -> float:
        """How much dearer what would be the answer without the best is, its risk included; no answer counts as a wrong one."""
        assert self.posterior is not None
        rivals = [
            self._evidence.cost_ms(b) - self._evidence.cost_ms(best) + self._premium_ms(b)
            for b, v in self._evidence.verdicts.items() if v.eligible and b != best and not self._evidence.too_slow(b)
        ]  # fmt: skip
        sure = self._sure()
        if sure is not None and self.posterior.knows(best):
            rivals.append(self._score_ms(sure) - self._price(best) + self._launch_ms)
        return min([*rivals, self._wrong_ms])

    def _sure(self) -> Boundary | None:
        """The cheapest that was not launched and is sure to pass."""
        sure = [c.boundary for c in self._fresh() if (self._safe(c.boundary) or 0.0) >= self._rule.sure]
        return min(sure, key=lambda b: (self._score_ms(b), len(b.modules), self._order(b)), default=None)

    def _score_ms(self, boundary: Boundary) -> float:
        """Price of a boundary that was not launched, with the risk that a pass would leave."""
        return self._price(boundary) + (self._outlook(boundary).risk * self._wrong_ms if self._knowing(boundary) else 0.0)

    def _worth(self, boundary: Boundary, answer: Boundary) -> float | None:
        """Expected saving of a launch over an answer (ms a step); None where it is not worth one."""
        assert self.posterior is not None
        shows, launched = self._outlook(boundary), answer in self._evidence.verdicts
        risk = self.risk(answer) if launched else self._outlook(answer).risk
        expected, any_ = saving(self.posterior, boundary, answer, shows, wrong_ms=self._wrong_ms, answer_risk=risk)
        # An answer that was not launched yet costs a launch that a pass of this one saves.
        spared = 0.0 if launched else any_ * self._launch_ms
        return expected if expected + spared >= self._launch_ms else None

    def _learn(self, record: TrialRecord) -> None:
        if self.posterior is not None and record.kind != "predicted":
            invalid = self._evidence.verdicts[record.boundary].status == "invalid"
            limit = self._evidence.settings.limit_bytes
            self.posterior.see(seen_in_launch(record, limit, timed=not invalid, metric=self._metric))

    def _fresh(self) -> list[Candidate]:
        return [
            c
            for c in self._candidates
            if self._evidence.runs(c.boundary) == 0 and c.boundary not in self._pending and self._lacks(c.boundary, 0) is None
        ]

    def _ranked(self) -> list[Proposal]:
        fresh = self._fresh()
        again = [c for c in fresh if c.boundary == self._first]
        if again:
            why = "the answer of an earlier run, to be validated again"
            return [Proposal(boundary=again[0].boundary, why=why, fit_probability=self.fit(again[0].boundary))]
        best = self._evidence.best()
        return self._before_a_pass(fresh) if best is None else self._after_a_pass(fresh, best)

    def _before_a_pass(self, fresh: list[Candidate]) -> list[Proposal]:
        rule = self._rule
        known = [(c, self._safe(c.boundary)) for c in fresh]
        by_price = sorted(known, key=lambda p: (self._score_ms(p[0].boundary), len(p[0].boundary.modules), p[0].order))
        likely = [(c, fit) for c, fit in by_price if fit is None or fit >= 0.5]
        rest = sorted((p for p in by_price if p not in likely), key=lambda p: -(p[1] or 0.0))
        proposals = self._worth_before(fresh)
        proposals += [
            Proposal(boundary=c.boundary, why="cheapest that is likelier to fit than not", fit_probability=fit)
            for c, fit in likely
            if all(p.boundary != c.boundary for p in proposals)
        ]
        rest = [(c, fit) for c, fit in rest if all(p.boundary != c.boundary for p in proposals)]
        resort = last_resort(self._candidates)
        # After full and the broadest set failed, the first of them as surveys, little else can fit.
        hopeless = rule.beyond if all(self._evidence.runs(b) for b in resort) else rule.hopeless
        for candidate, fit in rest:
            # Peaks are not monotonic: full and the broadest selective set are tried before giving up.
            must = candidate.boundary in resort
            if ((fit or 0.0) >= hopeless and not self._many()) or must or self._exhaust:
                why = "tried before giving up" if must else "likeliest to fit"
                proposals.append(Proposal(boundary=candidate.boundary, why=why, fit_probability=fit))
        return proposals

    def _worth_before(self, fresh: list[Candidate]) -> list[Proposal]:
        """What would be launched after the cheapest sure setting passed is launched before it: a pass saves that launch.

        Only after a survey: without one, what the sure setting shows decides whether the other is worth a launch at all.
        """
        sure = self._sure() if self._surveyed else None
        if sure is None:
            return []
        return self._after_a_pass([c for c in fresh if self._price(c.boundary) < self._price(sure)], sure)

    def _after_a_pass(self, fresh: list[Candidate], best: Boundary) -> list[Proposal]:
        limit, posterior = self._evidence.settings.limit_bytes, self.posterior
        scored = []
        if self._many() and not self._exhaust:
            return []
        for candidate in fresh:
            boundary = candidate.boundary
            if posterior is None or not (posterior.knows(boundary) and posterior.knows(best)):
                if candidate.order < self._order(best) or self._exhaust:
                    scored.append((0.0, candidate, Proposal(boundary=boundary, why="not predicted, narrower than the best")))
                continue
            worth = self._worth(boundary, best)
            if worth is not None or self._exhaust:
                expected = worth or 0.0
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
        if self.posterior is None:
            return []
        return noise_pair(self._evidence, self.posterior, self._rule, self._lacks)

    def _unproven(self) -> list[Proposal]:
        best = self._evidence.best()
        return unproven(self._fresh(), self._candidates, best, self.fit) if self._prove and best is not None else []

    def _price(self, boundary: Boundary) -> float:
        known = self._known_price(boundary)
        return self._evidence.replay_ms(boundary) if known is None else known

    def _order(self, boundary: Boundary) -> int:
        return next((c.order for c in self._candidates if c.boundary == boundary), 0)
