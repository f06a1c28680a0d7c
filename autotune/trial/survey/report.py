"""What a survey launch found: ``survey.json`` in the trial's folder. Evidence of kind "switched", never a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.prices import Price
from autotune.trial.survey.summary import RegionSummary

GuardName = Literal[
    "unknown_call_sites",
    "closing_balance",
    "surveyed_peak_is_plain_peak",
    "base_is_predicted",
    "frozen_batch",
    "same_numbers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSetting:
    """One setting as the survey predicts it, kind "predicted"."""

    boundary: Boundary
    peak_bytes: int
    """Highest over the ranks."""
    rank: int
    phase: str
    ranks: Mapping[int, Mapping[str, int]]
    """Rank to phase to peak bytes, over all steps that were recorded: a launch has the same ones."""
    price: Price
    """Of the rank whose replays take longest."""
    step_peaks_bytes: tuple[int, ...] = ()
    """Highest over the ranks, by recorded step; empty where one was recorded."""
    frozen: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """As ``ranks``, of the last recorded step, which all later ones repeat; empty where one was recorded."""

    @property
    def frozen_ranks(self) -> Mapping[int, Mapping[str, int]]:
        """What the steps that the launch switches have to show."""
        return self.frozen or self.ranks

    @property
    def frozen_peak_bytes(self) -> int:
        """Highest over the ranks in those steps."""
        return max(max(phases.values()) for phases in self.frozen.values()) if self.frozen else self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedSetting:
    """One setting as measured in the same process, kind "switched"."""

    boundary: Boundary
    peak_bytes: int
    ranks: Mapping[int, Mapping[str, int]]
    """Rank to phase to peak bytes, over the setting's steps but the first."""
    step_ms: tuple[float, ...]
    """Interleaved steps by the report's clock, the slowest rank of each."""
    loss: float | None = None
    grad_norm: float | None = None
    error_fraction: float = 0.0
    """Predicted over measured peak of a frozen step, minus 1, of the rank where it is farthest off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A check of the survey on itself."""

    name: GuardName
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyReport:
    """One survey launch, all ranks."""

    kind: Literal["switched"] = "switched"
    base: Boundary
    world_size: int
    limit_bytes: int | None
    margin: float
    labels: tuple[str, ...]
    """Labels with a region on some rank."""
    inert_labels: tuple[str, ...]
    """Labels that the model was built with and that no rank has a region of."""
    captured_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that were left out, since captured graphs run without their checkpoints, and why; ``SurveyPlan.captured``."""
    warmup_labels: tuple[str, ...] = ()
    """Labels that act in the eager steps before capture alone: in every price their replays cost nothing."""
    after_capture: Literal["no graphs", "not measured"] = "no graphs"
    """``not measured``: the launch ended before graphs were captured, so peaks after capture are those that the ledger predicts
    until a fresh launch measures them; all peaks here are of eager steps."""
    predicted: tuple[PredictedSetting, ...]
    regions: tuple[RegionSummary, ...] = ()
    """Labels by kind of layer, on rank 0."""
    base_measured: Mapping[int, Mapping[str, int]]
    """The base's phases by rank, over the recorded steps; recording moves no peak, which a guard checks."""
    base_step_ms: tuple[float, ...] = ()
    """Interleaved steps of the base."""
    clock: Literal["device", "main thread"] = "device"
    """What interleaved steps are timed by. On a CPU the main thread's own time: a wall clock would time its neighbours, too."""
    switched: tuple[SwitchedSetting, ...] = ()
    trying: Boundary | None = None
    """The setting that was running when the process ended, if it did not end by itself."""
    guards: tuple[Guard, ...] = ()
    surveyed_step_ms: Mapping[str, float] = field(default_factory=dict)
    """Host time of the plain, recorded and timed steps, and of prediction, on rank 0."""
    host_thread_ms: Mapping[str, float] = field(default_factory=dict)
    """The same steps by the main thread's own time on rank 0, which other processes do not disturb."""
    recording_cost_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Of ``SurveyPlan.cost_rounds``, rank 0: a recorded (``bytes``) and a timed (``times``) step over the plain one before it."""
    retained_bytes: Mapping[int, int] = field(default_factory=dict)
    """Per rank: what modules keep of the base's recomputed graphs between steps."""
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Regions, saved entries and events recorded on rank 0."""

    def prediction(self, boundary: Boundary) -> PredictedSetting | None:
        """The prediction of a setting."""
        return next((setting for setting in self.predicted if setting.boundary == boundary), None)

    def measurement(self, boundary: Boundary) -> SwitchedSetting | None:
        """The switched measurement of a setting."""
        return next((setting for setting in self.switched if setting.boundary == boundary), None)

    @property
    def trustworthy(self) -> bool:
        """Whether every guard passed."""
        return all(guard.passed for guard in self.guards)
