"""When more recompute cannot help, seen from what failed."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence, launchable

NOT_ACTIVATIONS = (
    "not an activation problem: out of memory in the optimizer both without recompute and under the widest selective set"
)


def widest_selective(candidates: Sequence[Candidate]) -> Boundary | None:
    """The launchable label set with the most labels; the earliest of equals."""
    selective = [c for c in launchable(candidates) if c.boundary.granularity == "selective"]
    return max(selective, key=lambda c: (len(c.boundary.modules), -c.order)).boundary if selective else None


def last_resort(candidates: Sequence[Candidate]) -> list[Boundary]:
    """What is tried before "nothing passes": full over everything, then the broadest selective set.

    Peaks are not monotonic, so either may fit alone. They are also the bases of a survey, in this order. Where full/uniform/1
    is no candidate, the full setting with the lowest predicted peak stands for it.
    """
    full = [c for c in launchable(candidates) if c.boundary.granularity == "full"]
    lowest = min(
        full,
        key=lambda c: (c.boundary != Boundary.full("uniform", 1), c.prediction.peak_bytes if c.prediction else 0, c.order),
        default=None,
    )
    widest = widest_selective(candidates)
    return [b for b in (lowest.boundary if lowest is not None else None, widest) if b is not None]


def not_an_activation_problem(candidates: Sequence[Candidate], evidence: Evidence) -> bool:
    """Whether the control and the widest selective set both ran out of memory in the optimizer step, and nothing passed."""
    widest = widest_selective(candidates)
    if widest is None or not widest.modules or evidence.best() is not None:
        return False
    failed = {b for b, v in evidence.verdicts.items() if v.failure is not None and v.failure.failure_class == "oom_optimizer"}
    return widest in failed and any(boundary.is_control for boundary in failed)
