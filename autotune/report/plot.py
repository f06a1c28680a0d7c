"""Which settings the memory-against-time plot shows, and by which mark."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.engine.plan import PlanResult
from autotune.report.scatter import Point
from autotune.report.text import Scale
from autotune.search.outcome import Recommendation

CHOSEN, TRIED, PREDICTED = "*", "o", "."
_LEGEND = {CHOSEN: "chosen", TRIED: "from trials", PREDICTED: "predicted"}


def legend(found: Sequence[Point]) -> str:
    """What the marks mean, as far as they occur: ``* chosen, . predicted``."""
    marks = {point.mark for point in found}
    return ", ".join(f"{mark} {text}" for mark, text in _LEGEND.items() if mark in marks)


def points(recommendation: Recommendation, scale: Scale) -> tuple[Point, ...]:
    """Peak against replay in ms: cheaper settings, the runner-up, and the chosen one last, drawn on top."""
    rows = [*recommendation.certificate, *([recommendation.runner_up] if recommendation.runner_up else [])]
    found = [
        Point(x=row.replay_ms, y=row.peak_bytes / scale.factor, mark=PREDICTED if row.basis == "predicted" else TRIED)
        for row in rows
        if row.replay_ms is not None
        and row.peak_bytes is not None
        and row.basis in ("predicted", "measured", "replayed", "switched")
    ]
    if recommendation.peak_bytes is not None and recommendation.replay_cost is not None:
        found.append(Point(x=recommendation.replay_cost.ms, y=recommendation.peak_bytes / scale.factor, mark=CHOSEN))
    return tuple(found)


def plan_points(result: PlanResult, scale: Scale) -> tuple[Point, ...]:
    """Every distinct setting of a plan, the cheapest that fits on top."""
    chosen = min((row for row in result.candidates if row.fits), key=lambda row: (row.replay_ms or 0.0, row.order), default=None)
    return tuple(
        Point(x=row.replay_ms, y=row.peak_bytes / scale.factor, mark=CHOSEN if row is chosen else PREDICTED)
        for row in sorted(result.candidates, key=lambda row: row is chosen)
        if row.peak_bytes is not None and row.replay_ms is not None and row.status == "distinct"
    )
