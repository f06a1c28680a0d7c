"""Which settings the memory-against-time plot shows."""

from __future__ import annotations

from autotune.engine.plan import PlanResult
from autotune.report.scatter import Point
from autotune.search.outcome import Recommendation

CHOSEN = "*"
OTHER = "o"


def points(recommendation: Recommendation) -> tuple[Point, ...]:
    """Peak in GB against replay in ms: cheaper settings, the runner-up, and the chosen one last, drawn on top."""
    rows = [*recommendation.certificate, *([recommendation.runner_up] if recommendation.runner_up else [])]
    found = [
        Point(x=row.replay_ms, y=row.peak_bytes / 1e9, mark=OTHER)
        for row in rows
        if row.replay_ms is not None and row.peak_bytes is not None
    ]
    if recommendation.peak_bytes is not None and recommendation.replay_cost is not None:
        found.append(Point(x=recommendation.replay_cost.ms, y=recommendation.peak_bytes / 1e9, mark=CHOSEN))
    return tuple(found)


def plan_points(result: PlanResult) -> tuple[Point, ...]:
    """Every distinct setting of a plan, the cheapest that fits on top."""
    usable = [
        row for row in result.candidates if row.peak_bytes is not None and row.replay_ms is not None and row.status == "distinct"
    ]
    chosen = min((row for row in usable if row.fits), key=lambda row: (row.replay_ms or 0.0, row.order), default=None)
    ordered = [row for row in usable if row is not chosen] + ([chosen] if chosen else [])
    return tuple(
        Point(x=row.replay_ms or 0.0, y=(row.peak_bytes or 0) / 1e9, mark=CHOSEN if row is chosen else OTHER) for row in ordered
    )
