"""The whole curve in one run: from which memory limit on which boundary is the cheapest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence, launchable
from autotune.search.outcome import Breakpoint
from autotune.search.ties import preference


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


def breakpoints(points: Iterable[Point], *, tie_ratio: float = 0.0) -> tuple[Breakpoint, ...]:
    """The answer at every limit, from the smallest up: the same choice that a search under that limit makes.

    Args:
        points: Of one kind only: kinds are never mixed.
        tie_ratio: Costs closer than this share are one price, as ``Evidence.best`` takes them.
    """
    found: list[Breakpoint] = []
    within: list[Point] = []
    chosen: Point | None = None
    for point in sorted(points, key=lambda p: p.peak_bytes):
        within.append(point)
        if tie_ratio:
            bound = min(p.cost_ms for p in within) * (1 + tie_ratio)
            best = min((p for p in within if p.cost_ms <= bound), key=lambda p: preference(p.boundary, p.peak_bytes))
        else:
            best = point if chosen is None else min(chosen, point, key=_price)
        if best is chosen:
            continue
        if found and found[-1].from_bytes == point.peak_bytes:
            found.pop()
        chosen = best
        row = Breakpoint(
            from_bytes=point.peak_bytes,
            name=best.boundary.key,
            boundary=best.boundary.to_fields(),
            kind=best.kind,
            replay_ms=best.replay_ms,
            step_ms=best.step_ms,
        )
        found.append(row)
    return tuple(found)


def _price(point: Point) -> tuple[object, ...]:
    return (point.cost_ms, *preference(point.boundary, point.peak_bytes))
