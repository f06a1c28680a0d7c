"""One rule for settings that cost the same, so that answer and breakpoints never disagree."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary


def preference(boundary: Boundary, peak_bytes: int) -> tuple[bool, int, int, str]:
    """Sorts settings of one price: selective before full, fewer labels, the smaller peak, the name."""
    return (boundary.granularity == "full", len(boundary.modules), peak_bytes, boundary.key)
