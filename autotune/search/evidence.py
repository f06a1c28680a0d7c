"""All that trials have shown so far: records, their verdicts, the reference, and the best boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import cast

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.ties import preference
from autotune.trial.gates import GateSettings, peaks_bytes
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Status, Verdict, judge

TIE_RATIO = 0.01
"""Steps closer than this share are one price; the answer is right to within it."""
WORTH_SAYING = 0.001
"""A smaller risk of an answer near the limit is not worth a word."""
DOUBTFUL = 0.01
"""An answer that is over the limit in the mean of its launches with more than this has not passed: it is ``unproven``."""
PRICED_TIE_RATIO = 0.001
"""The same where steps are not measured alone but priced by all that is known of them."""


def launchable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that may be launched, in their order."""
    return sorted((c for c in candidates if c.status in ("distinct", "not_checkable")), key=lambda c: c.order)


class Evidence:
    """Records by boundary, judged together.

    Args:
        candidates: The space; predictions price what was not timed.
        settings: The gates.
        max_slowdown: Largest step time against the reference, as a share; None is no bound.
    """

    def __init__(self, candidates: Iterable[Candidate], settings: GateSettings, *, max_slowdown: float | None = None) -> None:
        self.settings = settings
        self.max_slowdown = max_slowdown
        self._replay_ms = {c.boundary: c.prediction.replay_ms for c in candidates if c.prediction is not None}
        self._records: dict[Boundary, list[TrialRecord]] = {}
        self._switched: dict[Boundary, list[TrialRecord]] = {}
        self._surveys: list[TrialRecord] = []
        self.pricing: Callable[[Boundary], float | None] | None = None
        """Replay price of a boundary from predictions and all measured steps together; ranks boundaries where it is set."""
        self.premium: Callable[[Boundary], float] | None = None
        """What the risk of a boundary that passed near the limit counts for beside its price, in ms a step."""
        self.risk: Callable[[Boundary], float] | None = None
        """Probability that a boundary that passed near the limit is over it in the mean of its launches."""
        self.chance: Callable[[Boundary, Boundary | None], float | None] | None = None
        """Probability that a boundary is within the limit in the mean of its launches and, where there is an answer, cheaper than
        that by more than a tie."""
        self._verdicts: dict[Boundary, Verdict] = {}
        self._earlier: frozenset[int] = frozenset()

    def begin_sitting(self) -> None:
        """What is known now is of earlier sittings: a resumed run begins here."""
        self._earlier = frozenset(record.number for record in self.known_records)

    def add(self, record: TrialRecord) -> Verdict:
        """Take one record; judges its boundary again, and all others where the reference changed."""
        before = self.reference
        self._records.setdefault(record.boundary, []).append(record)
        self._verdicts[record.boundary] = judge(self._records[record.boundary], self.settings, before)
        after = self.reference
        if after is not before:
            for boundary, records in self._records.items():
                self._verdicts[boundary] = judge(records, self.settings, after)
        return self._verdicts[record.boundary]

    def add_survey(self, launch: TrialRecord, switched: Iterable[TrialRecord]) -> Verdict:
        """Take a survey launch that got as far as its predictions, and what it switched to. None of it is ever a pass."""
        record = replace(launch, kind="switched")
        self._surveys.append(record)
        whole = [record] if launch.completed or launch.failure is not None else []
        for one in [*(replace(r, completed=True, failure=None, step_ms=()) for r in whole), *switched]:
            self._switched.setdefault(one.boundary, []).append(one)
        return judge([record], self.settings, self.reference)

    @property
    def switched(self) -> Mapping[Boundary, list[TrialRecord]]:
        """What survey launches ran, by boundary: evidence, never a pass."""
        return self._switched

    def switched_within(self, boundary: Boundary) -> bool:
        """Whether a survey launch ran a boundary within the limit."""
        metric, limit = self.settings.mem_metric, self.settings.limit_bytes
        for record in self._switched.get(boundary, ()):
            peaks = peaks_bytes(record, metric)
            if record.completed and peaks and max(peaks.values()) <= limit:
                return True
        return False

    @property
    def verdicts(self) -> Mapping[Boundary, Verdict]:
        """Verdict of every boundary that was tried."""
        return self._verdicts

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All launches of this run in the order of their numbers, surveys among them."""
        return tuple(r for r in self.known_records if r.number >= 0)

    @property
    def known_records(self) -> tuple[TrialRecord, ...]:
        """The same with launches of earlier runs, whose numbers are negative."""
        return tuple(sorted((*self._surveys, *(r for rs in self._records.values() for r in rs)), key=lambda r: r.number))

    def of(self, boundary: Boundary) -> tuple[TrialRecord, ...]:
        """Launches of one boundary; a survey under it is none of its own."""
        return tuple(self._records.get(boundary, ()))

    def of_this_sitting(self, boundary: Boundary) -> tuple[TrialRecord, ...]:
        """Launches of one boundary since the run was begun or resumed."""
        return tuple(record for record in self.of(boundary) if record.number not in self._earlier)

    def runs(self, boundary: Boundary) -> int:
        """How often a boundary was run."""
        return len(self._records.get(boundary, ()))

    @property
    def reference(self) -> TrialRecord | None:
        """What others are compared with: the control where it completed, else the completed boundary with the least replay.

        A boundary counts whether it is within the limit or not: its loss and its step time are those of a whole run.
        """
        whole = [r for records in self._records.values() for r in records if r.completed and r.failure is None]
        if not whole:
            return None
        return min(whole, key=lambda r: (not r.boundary.is_control, self.replay_ms(r.boundary), r.boundary.key, r.number))

    def replay_ms(self, boundary: Boundary) -> float:
        """Predicted replay of a boundary; infinite where nothing is known of it."""
        if boundary.is_control:
            return 0.0
        return self._replay_ms.get(boundary, float("inf"))

    def cost_ms(self, boundary: Boundary) -> float:
        """What ranks boundaries: its price where there is pricing, else the measured step, else the predicted replay.

        Prices and replays stand on top of what the measured steps leave.
        """
        price = self.pricing(boundary) if self.pricing is not None else None
        if price is not None:
            return self._base_ms() + price
        verdict = self._verdicts.get(boundary)
        if verdict is not None and verdict.step_ms is not None:
            return verdict.step_ms
        return self._base_ms() + self.replay_ms(boundary)

    def _base_ms(self) -> float:
        prices = {b: self._price_ms(b) for b, verdict in self._verdicts.items() if verdict.step_ms is not None}
        known = [(self._verdicts[b].step_ms or 0.0) - price for b, price in prices.items() if price != float("inf")]
        return median(known) if known else 0.0

    def _price_ms(self, boundary: Boundary) -> float:
        price = self.pricing(boundary) if self.pricing is not None else None
        return self.replay_ms(boundary) if price is None else price

    def too_slow(self, boundary: Boundary) -> bool:
        """Whether a timed boundary exceeds ``max_slowdown`` against the reference."""
        reference = self.reference
        if self.max_slowdown is None or reference is None or not reference.step_ms:
            return False
        verdict = self._verdicts.get(boundary)
        if verdict is None or verdict.step_ms is None:
            return False
        return verdict.step_ms > median(reference.step_ms) * (1 + self.max_slowdown)

    def doubted(self, boundary: Boundary) -> str | None:
        """What speaks against a boundary that passed; None where nothing does."""
        risk = self.risk(boundary) if self.risk is not None else 0.0
        return f"passed, but over the limit in the mean of its launches with {risk:.1%}" if risk >= WORTH_SAYING else None

    def answered(self, boundary: Boundary) -> Verdict:
        """The verdict of an answer: no pass where it may as well be over the limit in the mean of its launches."""
        verdict, doubt = self._verdicts[boundary], self.doubted(boundary)
        if verdict.status != "pass" or doubt is None:
            return verdict
        assert self.risk is not None
        status = "unproven" if self.risk(boundary) > DOUBTFUL else "pass"
        return replace(verdict, status=cast(Status, status), reason=f"{doubt}; {verdict.reason}")

    def best(self) -> Boundary | None:
        """The cheapest eligible boundary, its risk counted; ties within ``TIE_RATIO`` go by ``preference``."""
        eligible = [b for b, v in self._verdicts.items() if v.eligible and not self.too_slow(b)]
        if not eligible:
            return None
        cost = {b: self.cost_ms(b) + (self.premium(b) if self.premium is not None else 0.0) for b in eligible}
        bound = min(cost.values()) * (1 + (TIE_RATIO if self.pricing is None else PRICED_TIE_RATIO))
        timed = any(self._verdicts[b].step_ms is not None for b in eligible)
        tied = [b for b in eligible if cost[b] <= bound] if timed else [b for b in eligible if cost[b] == min(cost.values())]
        return min(tied, key=lambda boundary: preference(boundary, self._verdicts[boundary].peak_bytes or 0))
