"""The answer of a run: ``recommendation.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.ledger.prediction import PhasePeak

Basis = Literal[
    "measured", "replayed", "switched", "predicted", "invalid", "no effect", "same effect", "not checkable here", "open"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRow:
    """Why one candidate that is cheaper than the answer is not the answer.

    ``basis`` says what the reason rests on: trials (``measured``, ``replayed``, ``switched``), a ``predicted`` peak, a
    rule (``invalid``, ``no effect``, ``same effect``), or nothing yet (``open``). A prediction is never called a failure.
    """

    name: str
    boundary: Mapping[str, Any]
    basis: Basis
    reason: str
    peak_bytes: int | None = None
    peak_p95_bytes: int | None = None
    replay_ms: float | None = None
    step_ms: float | None = None
    fit_probability: float | None = None
    """Probability that the peak is within the limit, from the prediction's interval or the posterior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRisk:
    """A cheaper candidate whose predicted point fits and whose 95 % peak does not: launch these first."""

    name: str
    boundary: Mapping[str, Any]
    peak_bytes: int
    peak_p95_bytes: int
    replay_ms: float
    fit_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    """From this limit on, up to the next breakpoint, ``boundary`` is the cheapest that is within it."""

    from_bytes: int
    name: str
    boundary: Mapping[str, Any]
    kind: Literal["measured", "switched", "predicted", "replayed"]
    replay_ms: float | None = None
    step_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCost:
    """Extra time of one step against ``reference`` (the control, or the named stand-in), and where it was read from.

    ``ratio`` is None where no step time is known (predictions price the replay only).
    """

    ms: float
    ratio: float | None
    reference: str
    basis: Literal["pair of fresh launches", "interleaved steps of one process", "predicted", "recorded steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """One trial in one row."""

    number: int
    name: str
    boundary: Mapping[str, Any]
    kind: str
    status: str
    reason: str
    peak_bytes: int | None = None
    hot_rank: int | None = None
    step_ms: float | None = None
    repeat_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingTimeline:
    """Predicted peak of every phase of one setting on the pipeline stage that is heaviest under it, by term group."""

    name: str
    boundary: Mapping[str, Any]
    stage: int
    rank: int
    phases: tuple[PhasePeak, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The answer and all it rests on.

    ``boundary`` is None where there is no answer; ``exit_status`` then is 3 (no boundary passes) or 4 (stopped, with
    ``open`` naming what would have to be launched), and ``verdict_reason`` says why.
    """

    recipe: str
    kind: Literal["measured", "switched", "predicted", "replayed"]
    backend: str
    backend_reason: str = ""
    boundary: Mapping[str, Any] | None
    name: str | None
    mem_target_bytes: int
    mem_metric: str
    peak_bytes: int | None
    peak_p05_bytes: int | None
    peak_p95_bytes: int | None
    hot_rank: int | None
    reserved_peak_bytes: int | None = None
    ranks_measured: int
    world_size: int
    steps_run: int = 0
    step_ms: float | None
    replay_cost: ReplayCost | None
    verdict: str
    verdict_reason: str
    exit_status: int
    certificate: tuple[CertificateRow, ...] = ()
    at_risk: tuple[AtRisk, ...] = ()
    open: tuple[str, ...] = ()
    runner_up: CertificateRow | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    wall: Any = None
    remedies: tuple[Any, ...] = ()
    calibration: Any = None
    """Offsets of the ledger by phase and the device's limits, as the trials teach them; None where nothing is predicted."""
    claims: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    trials: tuple[TrialSummary, ...] = ()
    timelines: tuple[SettingTimeline, ...] = ()
    """Of the control and of the answer, as predicted; of the control alone where there is no answer."""
    sampler: str = "planner"
    seed: int = 0
    run_directory: str | None = None
    workload_source: Mapping[str, Any] = field(default_factory=dict)
    revisions: Mapping[str, str | None] = field(default_factory=dict)
