"""From records to what the posterior learns of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median, stdev

from autotune.boundary.boundary import Boundary
from autotune.search.observations import FailureSeen, PeakSeen, StepSeen
from autotune.search.stop_rule import SMALLEST_SCATTER
from autotune.search.survey import SurveyFindings
from autotune.trial.gates import peaks_bytes
from autotune.trial.record import TrialRecord

Seen = PeakSeen | FailureSeen | StepSeen

_MEMORY_FAILURES = frozenset({"oom_capacity", "oom_loss_path", "oom_optimizer", "oom_graph_capture", "over_limit"})
"""Failures that prove a peak; fragmentation proves none."""


def seen_in_launch(record: TrialRecord, limit_bytes: int, *, timed: bool, metric: str = "allocated") -> list[Seen]:
    """Peak and step of a whole launch; of one that ran out of memory, what that proves.

    Args:
        record: The launch.
        limit_bytes: Memory of a rank.
        timed: Whether its step time counts (not where the training itself went wrong).
        metric: Which counter is held against the limit. Phases are counted in allocated bytes only.
    """
    peaks = peaks_bytes(record, metric).values()
    if record.completed and record.failure is None and peaks:
        phases: dict[str, int] = {}
        for rank in record.ranks.values() if metric == "allocated" else ():
            for phase, size in rank.phases.items():
                phases[phase] = max(phases.get(phase, 0), size)
        seen: list[Seen] = [PeakSeen(boundary=record.boundary, peak_bytes=max(peaks), phases=phases)]
        if record.step_ms and timed:
            seen.append(StepSeen(boundary=record.boundary, step_ms=sorted(record.step_ms)[len(record.step_ms) // 2]))
        return seen
    if record.failure is not None and record.failure.failure_class in _MEMORY_FAILURES:
        reached = max(peaks, default=0)
        return [
            FailureSeen(boundary=record.boundary, above_bytes=max(limit_bytes, reached + (record.failure.requested_bytes or 0)))
        ]
    return []


def seen_in_survey(
    launch: TrialRecord,
    findings: SurveyFindings,
    limit_bytes: int,
    *,
    held: Callable[[Boundary, int], int] = lambda _, size: size,
) -> list[Seen]:
    """Peaks against each other, interleaved steps by their own scatter, an out-of-memory as a lower bound.

    Args:
        launch: The survey launch.
        findings: What it found.
        limit_bytes: Memory of a rank.
        held: From a boundary's allocated peak to what is held against the limit: the process as a whole says nothing of the
            reserved bytes of one of its settings.
    """
    seen: list[Seen] = []
    peaks = findings.measured_bytes
    if findings.base_peak_bytes is not None:
        peaks = {findings.base: findings.base_peak_bytes, **peaks}
    base = replace(launch, completed=True, failure=None, step_ms=findings.base_step_ms) if launch.ranks else launch
    for record in (base, *findings.switched):
        if record.completed and record.boundary in peaks:
            peak = held(record.boundary, peaks[record.boundary])
            seen.append(PeakSeen(boundary=record.boundary, peak_bytes=peak, phases={}, in_process=True))
        if record.completed and record.step_ms:
            middle, count = median(record.step_ms), len(record.step_ms)
            scatter = max(stdev(record.step_ms) / middle / count**0.5, SMALLEST_SCATTER) if count > 1 else None
            seen.append(StepSeen(boundary=record.boundary, step_ms=middle, process=launch.number, scatter=scatter))
        elif record.failure is not None and record.failure.failure_class in _MEMORY_FAILURES:
            above = limit_bytes + findings.other_steps_bytes(record.boundary)
            seen.append(FailureSeen(boundary=record.boundary, above_bytes=above, in_process=True))
    return seen
