"""From records to what the posterior learns of them."""

from __future__ import annotations

from dataclasses import replace
from statistics import median, stdev

from autotune.search.observations import FailureSeen, PeakSeen, StepSeen
from autotune.search.stop_rule import SMALLEST_SCATTER
from autotune.search.survey import SurveyFindings
from autotune.trial.gates import hot_rank
from autotune.trial.record import TrialRecord

Seen = PeakSeen | FailureSeen | StepSeen

_MEMORY_FAILURES = frozenset({"oom_capacity", "oom_loss_path", "oom_optimizer", "oom_graph_capture", "over_limit"})
"""Failures that prove a peak; fragmentation proves none."""


def seen_in_launch(record: TrialRecord, limit_bytes: int, *, timed: bool) -> list[Seen]:
    """Peak and step of a whole launch; of one that ran out of memory, what that proves.

    Args:
        record: The launch.
        limit_bytes: Memory of a rank.
        timed: Whether its step time counts (not where the training itself went wrong).
    """
    peaks = [rank.allocated_peak_bytes for rank in record.ranks.values()]
    if record.completed and record.failure is None and peaks:
        phases: dict[str, int] = {}
        for rank in record.ranks.values():
            for phase, size in rank.phases.items():
                phases[phase] = max(phases.get(phase, 0), size)
        seen: list[Seen] = [PeakSeen(boundary=record.boundary, peak_bytes=max(peaks), phases=phases)]
        if record.step_ms and timed:
            seen.append(StepSeen(boundary=record.boundary, step_ms=sorted(record.step_ms)[len(record.step_ms) // 2]))
        return seen
    if record.failure is not None and record.failure.failure_class in _MEMORY_FAILURES:
        hot = hot_rank(record)
        reached = record.ranks[hot].allocated_peak_bytes if hot is not None else 0
        return [
            FailureSeen(boundary=record.boundary, above_bytes=max(limit_bytes, reached + (record.failure.requested_bytes or 0)))
        ]
    return []


def seen_in_survey(launch: TrialRecord, findings: SurveyFindings, limit_bytes: int) -> list[Seen]:
    """Peaks against each other, interleaved steps by their own scatter, an out-of-memory as a lower bound."""
    seen: list[Seen] = []
    base = replace(launch, completed=True, failure=None, step_ms=()) if launch.ranks else launch
    for record in (base, *findings.switched):
        peaks = [rank.allocated_peak_bytes for rank in record.ranks.values()]
        if record.completed and peaks:
            seen.append(PeakSeen(boundary=record.boundary, peak_bytes=max(peaks), phases={}, in_process=True))
        if record.completed and record.step_ms:
            middle, count = median(record.step_ms), len(record.step_ms)
            scatter = max(stdev(record.step_ms) / middle / count**0.5, SMALLEST_SCATTER) if count > 1 else None
            seen.append(StepSeen(boundary=record.boundary, step_ms=middle, process=launch.number, scatter=scatter))
        elif record.failure is not None and record.failure.failure_class in _MEMORY_FAILURES:
            seen.append(FailureSeen(boundary=record.boundary, above_bytes=limit_bytes, in_process=True))
    return seen
