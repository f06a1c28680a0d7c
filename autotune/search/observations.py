"""What the posterior starts from and learns from: the prior's widths, and observations of launches and surveys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.boundary.boundary import Boundary
from autotune.ledger.spread import relative_deviation

IN_PROCESS = 0.0007
"""Relative scatter of peaks between settings of one process with a frozen batch (0 bytes on one rank, gloo jitter on more)."""
WIDTHS: Mapping[float, float] = {1.0: 0.62, 2.0: 0.22, 4.0: 0.11, 8.0: 0.05}
"""How many times wider than the ledger says its errors may be, and how probable that is before any trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorSpread:
    """How wide the worlds are before any trial, as standard deviations.

    Attributes:
        group: Relative, of a term group's factor; None: what the ledger says of each group. Scaled so that the draws are as wide
            as the predictions' own intervals.
        offset: Of the offset that all phases share, as a share of the heaviest peak.
        phase_offset: Of each phase's own offset, likewise.
        saving: Relative, of the bytes a label saves (full recompute counts as one label).
        least_saving: What a label's deviation is taken of at least, as a share of the heaviest peak.
        own: Of a boundary's own deviation, likewise: what breaks monotonicity. None: as wide as each prediction's interval.
        run: Of one run's peak around the boundary's own, likewise (routing, allocator).
        price: Of the logarithm of a label's price factor.
        price_width: Prices are at most so many times less known where a world's bytes are.
        step: Relative, of a step time between two launches.
        inert: Chance that a label does nothing.
        by_chance: Chance that a boundary within the limit fails.
        by_chance_in_process: The same inside a survey launch.
        surveyed: Prices come from a survey: they are known better than the step of one launch.
        widths: Times that all of these may be too narrow, with their probabilities: what a trial shows decides.
    """

    group: float | None = None
    offset: float = 0.006
    phase_offset: float = 0.006
    saving: float = 0.12
    least_saving: float = 0.03
    own: float | None = 0.003
    run: float = 0.003
    price: float = 0.3
    price_width: float = 2.0
    step: float = 0.03
    inert: float = 0.05
    by_chance: float = 0.03
    by_chance_in_process: float = 0.03
    surveyed: bool = False
    widths: Mapping[float, float] = field(default_factory=lambda: dict(WIDTHS))

    def of_group(self, group: str) -> float:
        """Relative deviation of a term group's factor before scaling."""
        return relative_deviation(group, balanced=False) if self.group is None else self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakSeen:
    """A whole run's peak, and its phases where they were reported."""

    boundary: Boundary
    peak_bytes: int
    phases: Mapping[str, int]
    scatter: float | None = None
    """Relative, where it is known only roughly (another revision's launch)."""
    in_process: bool = False
    """Seen inside the survey launch: against its other settings it scatters little, all of them share the launch's deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSeen:
    """A failure that proves a peak of more than ``above_bytes``."""

    boundary: Boundary
    above_bytes: int
    in_process: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen:
    """A step time. Only steps of one ``process`` are compared with its narrower scatter; launches with one another."""

    boundary: Boundary
    step_ms: float
    process: int | None = None
    """Which survey launch the step was interleaved in; None for a launch of its own."""
    scatter: float | None = None
    """Relative scatter of the step; None is that of launches."""
