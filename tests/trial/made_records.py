"""Records made by hand: a small training run whose every figure is a parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.trial.gates import GateSettings
from autotune.trial.record import Failure, Kind, RankRecord, RepeatReason, TrialRecord

GIB = 2**30


def gates(limit_bytes: float, **settings: Any) -> GateSettings:
    return GateSettings(limit_bytes=round(limit_bytes), **settings)


def iterations(count: int, *, loss: float = 6.9, grad_norm: float | None = 1.5, **extra: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"step": i + 1, "loss": loss - i / 10, "grad_norm": grad_norm, "step_ms": 100.0, **extra} for i in range(count))


def rank(
    number: int, peak_bytes: float, *, steps: Sequence[Mapping[str, Any]] | None = None, reserved: float | None = None
) -> RankRecord:
    return RankRecord(
        rank=number,
        allocated_peak_bytes=round(peak_bytes),
        reserved_peak_bytes=None if reserved is None else round(reserved),
        iterations=tuple(iterations(10) if steps is None else steps),
    )


def record(
    ranks: Sequence[RankRecord],
    *,
    boundary: Boundary | None = None,
    number: int = 0,
    kind: Kind = "measured",
    world_size: int | None = None,
    completed: bool = True,
    steps_run: int = 10,
    step_ms: Sequence[float] = (100.0, 101.0, 99.0),
    failure: Failure | None = None,
    repeat_reason: RepeatReason | None = None,
    details: Mapping[str, Any] | None = None,
) -> TrialRecord:
    return TrialRecord(
        number=number,
        kind=kind,
        boundary=boundary or Boundary.selective(["core_attn"]),
        workload_digest="w",
        world_size=len(ranks) if world_size is None else world_size,
        completed=completed,
        ranks={r.rank: r for r in ranks},
        step_ms=tuple(step_ms) if completed else (),
        steps_run=steps_run,
        failure=failure,
        repeat_reason=repeat_reason,
        details=details or {},
    )


def oom(ranks: Sequence[RankRecord], *, step: int = 2, on_rank: int | None = 0, **fields: Any) -> TrialRecord:
    failure = Failure(failure_class="oom_capacity", stage="first_forward", rank=on_rank, step=step)
    return record(ranks, completed=False, steps_run=step - 1, failure=failure, **fields)
