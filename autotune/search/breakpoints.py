"""The whole curve in one run: from which memory limit on which boundary is the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence, launchable
from autotune.search.outcome import Breakpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A boundary with the memory it needs and what ranks it; for predictions the memory is the 95 % peak."""

    boundary: Boundary
    peak_bytes: int
    cost_ms: float
    kind: Literal["measured", "switched", "predicted", "replayed"]
    replay_ms: float | None = None
    step_ms: float | None = None


def predicted_points(candidates: Sequence[Candidate]) -> list[Point]:
    """Points of all launchable candidates that have a prediction."""
    return [
        Point(
            boundary=c.boundary,
            peak_bytes=c.prediction.peak_p95_bytes,
            cost_ms=c.prediction.replay_ms,
            kind="predicted",
            replay_ms=c.prediction.replay_ms,
        )
        for c in launchable(candidates)
        if c.prediction is not None
    ]


def recorded_points(evidence: Evidence) -> list[Point]:
    """Points of all boundaries that completed with a peak and a step time, whatever the limit was."""
    points = []
    for boundary, verdict in evidence.verdicts.items():
        if verdict.peak_is_lower_bound or verdict.peak_bytes is None or verdict.step_ms is None or verdict.status == "invalid":
            continue
        if verdict.kind == "predicted" or verdict.status == "flaky":
            continue
        points.append(
            Point(
                boundary=boundary,
                peak_bytes=verdict.peak_bytes,
                cost_ms=verdict.step_ms,
                kind=verdict.kind,
                step_ms=verdict.step_ms,
            )
        )
    return points


def breakpoints(points: Iterable[Point]) -> tuple[Breakpoint, ...]:
    """The lower envelope, from the smallest limit up. Points of one kind only: kinds are never mixed."""
    found: list[Breakpoint] = []
    best_ms = float("inf")
    by_peak = sorted(points, key=lambda p: (p.peak_bytes, p.cost_ms, len(p.boundary.modules), p.boundary.key))
    for point in by_peak:
        if point.cost_ms >= best_ms:
            continue
        best_ms = point.cost_ms
        row = Breakpoint(
            from_bytes=point.peak_bytes,
            name=point.boundary.key,
            boundary=point.boundary.to_fields(),
            kind=point.kind,
            replay_ms=point.replay_ms,
            step_ms=point.step_ms,
        )
        # Two points of one peak are one breakpoint: the cheaper was sorted first.
        found.append(row)
    return tuple(found)
