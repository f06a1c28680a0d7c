"""What one trial shows against another of the same workload."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.trial.gates import hot_rank, peaks_bytes
from autotune.trial.record import TrialRecord

SAME_PEAK_RATIO = 0.0002
"""Peaks closer than this are one peak: 0.02 %, the flutter of identical settings in one process (docs/survey.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Fields of the measurement contract that only a second trial can fill.

    Attributes:
        compared_with: Number of the other trial.
        farther_but_still_oom: Both ran out of memory, this one at a later step or, in the same step, with a higher peak.
        hot_rank_moved: The rank with the highest peak is another one.
        label_without_effect: The labels differ, both completed, and the peaks are the same.
    """

    compared_with: int
    farther_but_still_oom: bool
    hot_rank_moved: bool
    label_without_effect: bool


def compare(record: TrialRecord, other: TrialRecord) -> Comparison:
    """Compare two trials; neither has to have completed."""
    ours, theirs = peaks_bytes(record), peaks_bytes(other)
    both_out = all(r.failure is not None and r.failure.failure_class.startswith("oom") for r in (record, other))
    farther = False
    if both_out:
        assert record.failure is not None and other.failure is not None
        step, other_step = record.failure.step or 0, other.failure.step or 0
        farther = step > other_step or (step == other_step and max(ours.values(), default=0) > max(theirs.values(), default=0))
    shared = ours.keys() & theirs.keys()
    both_completed = record.completed and other.completed and record.failure is None and other.failure is None
    same = bool(shared) and all(abs(ours[r] - theirs[r]) <= SAME_PEAK_RATIO * theirs[r] for r in shared)
    # With one rank reported there is nothing a hot rank could move between.
    moved = len(shared) > 1 and hot_rank(record) != hot_rank(other)
    return Comparison(
        compared_with=other.number,
        farther_but_still_oom=farther,
        hot_rank_moved=moved,
        label_without_effect=both_completed and same and record.boundary != other.boundary,
    )
