"""The record of one trial: the measurement contract. Plain data, JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.boundary.boundary import Boundary

Kind = Literal["measured", "switched", "predicted", "replayed"]
RepeatReason = Literal["near_limit", "noise_pair", "allocator", "infrastructure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first failure of a trial in time. Classes and stages: trial/failure.py."""

    failure_class: str
    stage: str
    rank: int | None = None
    step: int | None = None
    requested_bytes: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank reported."""

    rank: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    """Allocated peak of each phase over all iterations, in bytes."""
    iterations: tuple[Mapping[str, Any], ...] = ()
    """One mapping an iteration: step, step_ms, loss, grad_norm, skipped, nan, phases."""
    tokens_per_expert: tuple[int, ...] | None = None
    allocator_retries: int | None = None
    device_used_bytes: int | None = None
    steps_run: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """Everything known of one trial. ``ranks`` holds the ranks that reported; the others are unknown, never assumed."""

    number: int
    kind: Kind
    boundary: Boundary
    workload_digest: str
    world_size: int
    completed: bool
    ranks: Mapping[int, RankRecord]
    step_ms: tuple[float, ...] = ()
    """Steady step times."""
    steps_run: int = 0
    failure: Failure | None = None
    repeat_reason: RepeatReason | None = None
    revisions: Mapping[str, str | None] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    """Rest of the contract: environment, backends that ran, topology, throughput, clocks, losses."""
