"""All that trials have shown so far: records, their verdicts, the reference, and the best boundary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.trial.gates import GateSettings
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict, judge

TIE_RATIO = 0.01
"""Steps closer than this share are one price; the answer is right to within it."""


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
        self._verdicts: dict[Boundary, Verdict] = {}

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

    @property
    def verdicts(self) -> Mapping[Boundary, Verdict]:
        """Verdict of every boundary that was tried."""
        return self._verdicts

    @property
    def records(self) -> tuple[TrialRecord, ...]:
        """All records in the order of their numbers."""
        return tuple(sorted((r for records in self._records.values() for r in records), key=lambda r: r.number))

    def of(self, boundary: Boundary) -> tuple[TrialRecord, ...]:
        """Records of one boundary."""
        return tuple(self._records.get(boundary, ()))

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
        """What ranks boundaries: the measured step, else the predicted replay on top of what the measured steps leave."""
        verdict = self._verdicts.get(boundary)
        if verdict is not None and verdict.step_ms is not None:
            return verdict.step_ms
        return self._base_ms() + self.replay_ms(boundary)

    def _base_ms(self) -> float:
        known = [
            verdict.step_ms - self.replay_ms(boundary)
            for boundary, verdict in self._verdicts.items()
            if verdict.step_ms is not None and self.replay_ms(boundary) != float("inf")
        ]
        return median(known) if known else 0.0

    def too_slow(self, boundary: Boundary) -> bool:
        """Whether a timed boundary exceeds ``max_slowdown`` against the reference."""
        reference = self.reference
        if self.max_slowdown is None or reference is None or not reference.step_ms:
            return False
        verdict = self._verdicts.get(boundary)
        if verdict is None or verdict.step_ms is None:
            return False
        return verdict.step_ms > median(reference.step_ms) * (1 + self.max_slowdown)

    def best(self) -> Boundary | None:
        """The cheapest eligible boundary; ties within ``TIE_RATIO`` go to fewer labels, then to the smaller peak."""
        eligible = [b for b, v in self._verdicts.items() if v.eligible and not self.too_slow(b)]
        if not eligible:
            return None
        cost = {b: self.cost_ms(b) for b in eligible}
        bound = min(cost.values()) * (1 + TIE_RATIO)
        timed = any(self._verdicts[b].step_ms is not None for b in eligible)
        tied = [b for b in eligible if cost[b] <= bound] if timed else [b for b in eligible if cost[b] == min(cost.values())]

        def rank(boundary: Boundary) -> tuple[bool, int, int, float, str]:
            peak = self._verdicts[boundary].peak_bytes or 0
            return (boundary.granularity == "full", len(boundary.modules), peak, cost[boundary], boundary.key)

        return min(tied, key=rank)
