"""The points of a prediction, one for each pipeline stage, iteration and phase, and which of them can be the peak."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.ledger.prediction import Prediction

Place = tuple[int, str, str]
"""Stage, iteration and phase of a point."""


def totals_of(prediction: Prediction) -> dict[Place, int]:
    """Bytes of every point."""
    return {(s.stage, p.iteration, p.phase): p.peak_bytes for s in prediction.stages for p in s.phases}


def leading_points(prediction: Prediction) -> list[tuple[Place, Mapping[str, int]]]:
    """Points that can bind, with their terms: of each phase its two heaviest, within 20 % of the peak; the heaviest always."""
    by_phase: dict[str, list[tuple[int, Place, Mapping[str, int]]]] = {}
    for stage in prediction.stages:
        for point in stage.phases:
            place = (stage.stage, point.iteration, point.phase)
            by_phase.setdefault(point.phase, []).append((point.peak_bytes, place, point.terms))
    found = []
    for _, points in sorted(by_phase.items()):
        points.sort(key=lambda p: (-p[0], p[1]))
        found += [(place, terms) for size, place, terms in points[:2] if size > 0.8 * prediction.peak_bytes]
    return found or [((prediction.stage, "steady", prediction.phase), {"all": prediction.peak_bytes})]
