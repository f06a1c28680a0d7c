"""Phase peaks of any recompute setting, from one surveyed step of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.index import Index
from autotune.trial.survey.survival import Survival
from autotune.trial.survey.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingPeaks:
    """Predicted allocated peaks of one setting on one rank, in bytes."""

    boundary: Boundary
    phases: Mapping[str, int]
    peak_bytes: int
    phase: str
    """The binding phase."""
    forward_end_bytes: int
    """Level after the last forward pass that precedes a backward pass of the step's peak unit: what is kept for backward."""


class Predictor:
    """Predicts settings of one timeline.

    Example:
        >>> Predictor(timeline).predict(Boundary.selective(["mlp"])).peak_bytes  # doctest: +SKIP
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._index = Index(timeline)
        self._level_floor = [moment.level_bytes for moment in timeline.moments]
        self._peak_floor = [moment.peak_bytes for moment in timeline.moments]

    def predict(self, boundary: Boundary) -> SettingPeaks:
        """Peaks of every phase under a setting."""
        phases: dict[str, int] = {}

        def reach(phase: str, level_bytes: int) -> None:
            if level_bytes > phases.get(phase, 0):
                phases[phase] = level_bytes

        walk = Survival(self._index, boundary, self._level_floor, self._peak_floor, reach)
        forward_end = 0
        for number, moment in enumerate(self._timeline.moments):
            walk.before(number)
            walk.after(number)
            if moment.kind == "unit_out":
                forward_end = max(forward_end, self._level_floor[number] + walk.total_bytes)
        for phase, surplus in self._timeline.surplus_bytes.items():
            if phase in phases:
                phases[phase] += surplus
        binding = max(phases, key=lambda phase: phases[phase])
        return SettingPeaks(
            boundary=boundary, phases=phases, peak_bytes=phases[binding], phase=binding, forward_end_bytes=forward_end
        )
