"""What a survey launch is asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.workload.workload import Workload

MARGIN = 0.005
EXPERT_MARGIN = 0.01
"""Where experts are spread over ranks, a fresh launch routes other tokens than the frozen batch did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyPlan:
    """A survey launch, as JSON in the trial's spec.

    The trial's own boundary is the base: the setting under which the survey itself runs, the broadest that fits.
    """

    labels: tuple[str, ...]
    """The model is built with these on; they have to be valid together."""
    full: bool = True
    """Whether full recompute can run; beside captured scopes it cannot, and the widest selective set is the base."""
    captured: Mapping[str, str] = field(default_factory=dict)
    """Labels left out, since captured graphs run without their checkpoints and no predicted peak is lower with them; and why."""
    warmup_only: tuple[str, ...] = ()
    """Labels that captured graphs run without too, but that lower a peak of the eager steps before; their replays are free."""
    candidates: tuple[Boundary, ...] = ()
    """Settings to predict. Empty: every set of labels found, and full recompute of every size."""
    limit_bytes: int | None = None
    """Memory limit of a rank. None: every candidate counts as fitting."""
    margin: float = MARGIN
    """Relative error that a prediction may have: up to so far above the limit a setting is still tried, last."""
    plain_steps: int = 1
    """Steps under the base before anything is recorded: the optimizer state exists after the first."""
    followed_steps: int = 1
    """Steps recorded after these. They train as an ordinary launch does, so each has that launch's batch and weights; all
    later steps repeat the last one. Where every step moves the same bytes one is enough, else as many as a launch has."""
    timed_steps: int = 3
    cost_rounds: int = 0
    """Rounds of a plain, a recorded, a plain and a timed step before the survey's own: what recording costs, in pairs."""
    switch_to: int = 4
    """How many settings to switch to: the cheapest predicted to fit, and as many that are cheaper still and predicted to be over
    the limit by less than the margin. -1: all."""
    steps_each: int = 2
    """Steps of each setting; the first still holds what the setting before it left, so the last ones count."""
    interleaved_rounds: int = 3
    """Rounds over all settings that fitted, one step each, for step times."""
    recorded_units: int = 4
    """Forward passes recorded of a step without pipeline stages; with stages all are."""

    def charged(self, boundary: Boundary) -> Boundary:
        """A setting by the labels whose replays every step pays for, one after the capture of graphs too."""
        if boundary.granularity != "selective":
            return boundary
        return Boundary.selective(label for label in boundary.modules if label not in self.warmup_only)

    @property
    def steps(self) -> int:
        """An upper bound of the steps of the launch."""
        settings = 2 * self.switch_to if self.switch_to >= 0 else len(self.candidates) or 2 ** len(self.labels) + 200
        survey = self.plain_steps + self.followed_steps + 1 + 4 * self.cost_rounds + self.timed_steps
        return survey + settings * self.steps_each + self.interleaved_rounds * (settings + 1)


def not_surveyable(workload: Workload) -> str | None:
    """Why a workload's settings cannot be surveyed and switched in one process; None where they can."""
    features, precision = workload.features, workload.precision
    if precision.fp8 is not None or precision.fp4 is not None:
        return "under FP8 and FP4 a label changes at build time what Transformer Engine saves (set_save_original_input)"
    if features.cuda_graph_impl in ("full_iteration", "local") or "full_iteration" in features.cuda_graph_modules:
        return f"cuda_graph_impl={features.cuda_graph_impl} captures layers before a step could be surveyed"
    if features.cpu_offloading or features.fine_grained_activation_offloading:
        return "activation offloading installs saved-tensor hooks of its own"
    if features.overlap_moe_expert_parallel_comm:
        return "the expert-parallel overlap schedule does not go through schedules.forward_step"
    if features.distribute_saved_activations:
        return "distribute_saved_activations replaces the data of checkpoint inputs, which have to be no views"
    return None


def margin_of(workload: Workload) -> float:
    """Relative error that the predicted peaks of a workload may have against a fresh launch."""
    return EXPERT_MARGIN if workload.spreads_experts else MARGIN


def followed_steps_of(workload: Workload, launch_steps: int) -> int:
    """How many steps of a launch a survey records: with experts on several ranks each routes its own tokens, else one is all."""
    return max(launch_steps - 1, 1) if workload.spreads_experts else 1


def base_ladder(labels: Sequence[str], *, full: bool = True) -> tuple[Boundary, ...]:
    """Bases to try, in this order: peaks are not monotonic, so the broadest selective set may fit where full does not.

    Args:
        labels: Those that are valid together.
        full: Whether full recompute can run.
    """
    return (*((Boundary.full("uniform", 1),) if full else ()), Boundary.selective(labels))


def require_surveyable(workload: Workload) -> None:
    """Refuse a survey of a workload that cannot be surveyed.

    Raises:
        RequestError: It cannot.
    """
    reason = not_surveyable(workload)
    if reason is not None:
        raise RequestError("survey", workload.name, reason, "launch one candidate a trial")
