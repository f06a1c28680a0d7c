"""What every sampler speaks: proposals and the reason to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from autotune.boundary.boundary import Boundary
from autotune.trial.record import RepeatReason, TrialRecord
from autotune.trial.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One boundary to launch, and why it."""

    boundary: Boundary
    why: str
    repeat_reason: RepeatReason | None = None
    fit_probability: float | None = None
    gain_ms: float | None = None
    survey: bool = False
    """Launch it as the base of a region survey, which prices every setting and may switch to the cheapest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why nothing more is proposed.

    ``answer``: the best is certified as far as it can be. ``none``: nothing passes. ``open``: what is left cannot be run
    here; ``open_boundaries`` names it.
    """

    outcome: Literal["answer", "none", "open"]
    text: str
    open_boundaries: tuple[Boundary, ...] = ()


class Sampler(Protocol):
    """Ask, tell, done. Deterministic under its seed; never proposes a finished or pending point without a reason."""

    def ask(self, count: int = 1) -> list[Proposal]:
        """Up to ``count`` boundaries to launch next; empty when done or when pending trials have to end first."""
        ...

    def tell(self, record: TrialRecord) -> Verdict:
        """Take the record of a launched boundary."""
        ...

    def done(self) -> Stop | None:
        """Why the search is over; None while it is not."""
        ...
