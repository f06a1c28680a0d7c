"""The gates of a trial: each a small named check of one record. ``verdict.py`` combines what they find."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from autotune.trial.record import RankRecord, TrialRecord
from autotune.units import format_gb
from autotune.workload.workload import Workload

Outcome = Literal["fail", "invalid", "unproven", "flag"]

INFRASTRUCTURE_CLASSES = frozenset({"infrastructure", "port", "launch_error", "rank_killed", "node_lost"})
"""Failures that say nothing about the boundary: one retry, then the run stops."""
INVALID_CLASSES = frozenset({"config_invalid", "no_gradient", "nondeterministic_replay"})
"""Failures that no memory limit would mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """What a trial has to satisfy.

    Attributes:
        limit_bytes: Memory limit per rank.
        mem_metric: Which counter is held against it.
        steady_steps: Steps that have to follow optimizer initialisation and graph capture (K).
        warmup_steps: ``cuda_graph_warmup_steps`` where graphs are used, else None.
        near_limit_ratio: A passing peak closer to the limit than this share of it is repeated.
        growth_ratio: Growth over the steady steps, as a share of the first of them, that is flagged.
        loss_ratio: Largest relative difference of loss and gradient norm to the reference; 0 is equality to the bit,
            None means that they cannot be compared (dropout).
    """

    limit_bytes: int
    mem_metric: Literal["allocated", "reserved"] = "allocated"
    steady_steps: int = 3
    warmup_steps: int | None = None
    near_limit_ratio: float = 0.02
    growth_ratio: float = 0.01
    loss_ratio: float | None = 0.01

    @classmethod
    def for_workload(
        cls,
        workload: Workload,
        limit_bytes: int,
        *,
        mem_metric: Literal["allocated", "reserved"] = "allocated",
        steady_steps: int = 3,
        to_the_bit: bool = False,
    ) -> GateSettings:
        """Settings of one run; ``to_the_bit`` for backends whose arithmetic is deterministic.

        A gated shared expert is compared within a band even there: its input goes to the expert and to its gate, and a
        checkpoint around both (moe_layer.py:MoELayer.shared_experts_compute) adds their two gradients before those of the
        routed experts, in 16 bits.
        """
        to_the_bit = to_the_bit and not workload.model.moe_shared_expert_gate
        graphs = workload.features.cuda_graph_impl != "none"
        dropout = workload.model.hidden_dropout > 0 or workload.model.attention_dropout > 0
        return cls(
            limit_bytes=limit_bytes,
            mem_metric=mem_metric,
            steady_steps=steady_steps,
            warmup_steps=workload.features.cuda_graph_warmup_steps if graphs else None,
            loss_ratio=None if dropout else (0.0 if to_the_bit else 0.01),
        )

    @property
    def min_steps(self) -> int:
        """Steps a passing trial has run: one that makes the optimizer state (or warm-up and capture), then K more."""
        before = 1 if self.warmup_steps is None else max(2, self.warmup_steps + 1)
        return before + self.steady_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one gate says: ``fail``, ``invalid`` and ``unproven`` decide the verdict, ``flag`` is shown with it."""

    gate: str
    outcome: Outcome
    text: str


def rank_peak_bytes(rank: RankRecord, metric: str = "allocated") -> int | None:
    """Highest count of one rank over all its phases and iterations; None where the counter was not reported."""
    if metric == "reserved":
        counts = [rank.reserved_peak_bytes, *(_maybe_int(i.get("reserved_peak_bytes")) for i in rank.iterations)]
    else:
        counts = [rank.allocated_peak_bytes, *rank.phases.values(), *map(iteration_peak_bytes, rank.iterations)]
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def iteration_peak_bytes(iteration: Mapping[str, Any]) -> int | None:
    """Allocated peak of one iteration, from its own count or its phases."""
    counts = [_maybe_int(iteration.get("allocated_peak_bytes")), *map(_maybe_int, (iteration.get("phases") or {}).values())]
    known = [count for count in counts if count is not None]
    return max(known) if known else None


def peaks_bytes(record: TrialRecord, metric: str = "allocated") -> dict[int, int]:
    """Peak of every rank that reported the counter."""
    peaks = {rank: rank_peak_bytes(ranks, metric) for rank, ranks in record.ranks.items()}
    return {rank: peak for rank, peak in peaks.items() if peak is not None}


def hot_rank(record: TrialRecord, metric: str = "allocated") -> int | None:
    """The rank with the highest peak; the lowest of them on a tie."""
    peaks = peaks_bytes(record, metric)
    return min(peaks, key=lambda rank: (-peaks[rank], rank)) if peaks else None


def _maybe_int(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


def _kind(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    if record.kind == "predicted":
        yield Finding(gate="kind", outcome="unproven", text="predicted, not measured")
    elif record.kind == "switched":
        yield Finding(gate="kind", outcome="unproven", text="switched inside another launch, not a launch of its own")


def _failure(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    failure = record.failure
    if failure is None:
        return
    where = f"{failure.failure_class} in {failure.stage}"
    where += f", rank {failure.rank}" if failure.rank is not None else ""
    where += f", step {failure.step}" if failure.step is not None else ""
    first_line = failure.message.strip().splitlines()[0].strip() if failure.message.strip() else ""
    where += f": {first_line[:160]}" if first_line else ""
    if failure.stage == "teardown" and record.completed:
        yield Finding(gate="teardown", outcome="flag", text=f"result kept, but the end of the trial was not clean ({where})")
    elif failure.failure_class in INFRASTRUCTURE_CLASSES:
        yield Finding(gate="infrastructure", outcome="unproven", text=where)
    elif failure.failure_class in INVALID_CLASSES:
        yield Finding(gate="failure", outcome="invalid", text=where)
    else:
        yield Finding(gate="failure", outcome="fail", text=where)


def _completed(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    if not record.completed and record.failure is None:
        planned = record.details.get("steps_planned")
        of = f" of {planned}" if planned is not None else ""
        yield Finding(gate="completed", outcome="unproven", text=f"{record.steps_run} steps run{of}, end not seen")


def _ranks(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    reported = peaks_bytes(record, settings.mem_metric)
    if record.kind == "predicted" or len(reported) >= record.world_size:
        return
    if not reported:
        text = f"no rank of {record.world_size} reported {settings.mem_metric} memory"
    elif len(reported) == 1:
        text = f"rank {next(iter(reported))} only, of {record.world_size}"
    else:
        text = f"{len(reported)} of {record.world_size} ranks reported"
    yield Finding(gate="ranks", outcome="unproven", text=text)


def _steps(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    if record.kind == "predicted" or record.failure is not None:
        return
    if record.kind == "replayed" and not record.steps_run:
        yield Finding(gate="steps", outcome="flag", text="the table does not say how many steps ran")
    elif record.completed and record.steps_run < settings.min_steps:
        text = f"{record.steps_run} steps run, {settings.min_steps} needed"
        yield Finding(gate="steps", outcome="unproven", text=text)
    if settings.warmup_steps is not None and record.details.get("graphs_captured") is False:
        yield Finding(gate="graphs", outcome="unproven", text="CUDA graphs were not captured")


def _numbers(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    iterations = [(rank, i) for rank, ranks in sorted(record.ranks.items()) for i in ranks.iterations]
    for rank, i in iterations:
        loss, norm = i.get("loss"), i.get("grad_norm")
        bad = [n for n, v in (("loss", loss), ("grad norm", norm)) if isinstance(v, float) and not math.isfinite(v)]
        if bad or i.get("nan"):
            text = f"{' and '.join(bad) or 'NaN iteration'} not finite at step {i.get('step')}, rank {rank}"
            yield Finding(gate="finite", outcome="invalid", text=text)
            break
    for rank, i in iterations:
        if i.get("skipped"):
            yield Finding(gate="skipped", outcome="invalid", text=f"iteration {i.get('step')} was skipped, rank {rank}")
            break
    norms = [i["grad_norm"] for _, i in iterations if i.get("grad_norm") is not None]
    if record.kind == "predicted" or record.failure is not None:
        return
    if norms and not any(norms):
        yield Finding(gate="gradient", outcome="invalid", text="no_gradient: the grad norm is 0 on every step")
    elif not norms and record.kind == "replayed":
        yield Finding(gate="gradient", outcome="flag", text="the table reports no loss and no grad norm")
    elif not norms and record.completed:
        yield Finding(gate="gradient", outcome="invalid", text="no_gradient: no grad norm was reported on any step")


def _memory(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    peaks, limit = peaks_bytes(record, settings.mem_metric), settings.limit_bytes
    hot = hot_rank(record, settings.mem_metric)
    if hot is not None and record.kind != "predicted":
        peak = peaks[hot]
        text = f"{settings.mem_metric} peak {format_gb(peak)} on rank {hot}, limit {format_gb(limit)}"
        if peak > limit:
            yield Finding(gate="memory", outcome="fail", text=f"over the limit: {text}")
        elif peak > limit * (1 - settings.near_limit_ratio):
            yield Finding(gate="near_limit", outcome="flag", text=f"within {settings.near_limit_ratio:.0%} of the limit: {text}")
    reserved = peaks_bytes(record, "reserved")
    if settings.mem_metric == "allocated" and reserved:
        rank = max(reserved, key=lambda r: reserved[r])
        if reserved[rank] > limit:
            text = f"reserved peak {format_gb(reserved[rank])} on rank {rank} is over the limit {format_gb(limit)}"
            yield Finding(gate="reserved", outcome="flag", text=text)


def _growth(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    for rank, ranks in sorted(record.ranks.items()):
        known = [p for p in map(iteration_peak_bytes, ranks.iterations) if p is not None]
        steady = known[-settings.steady_steps :]
        rising = len(steady) >= 3 and all(a < b for a, b in pairwise(steady))
        if rising and steady[-1] > steady[0] * (1 + settings.growth_ratio):
            text = f"not steady: the peak of rank {rank} grew by {steady[-1] / steady[0] - 1:.1%} over {len(steady)} steps"
            yield Finding(gate="growth", outcome="flag", text=text)
            return


def _reference(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Iterator[Finding]:
    if reference is None or reference.number == record.number or record.failure is not None:
        return
    if record.kind == "switched":
        return  # a survey trains on one frozen batch with learning rate 0: its own guards compare its settings' losses
    if settings.loss_ratio is None:
        yield Finding(gate="reference", outcome="flag", text="dropout is on: loss and grad norm were not compared")
        return
    for rank in sorted(record.ranks.keys() & reference.ranks.keys()):
        theirs = {i.get("step"): i for i in reference.ranks[rank].iterations}
        for ours in record.ranks[rank].iterations:
            other = theirs.get(ours.get("step"), {})
            for name in ("loss", "grad_norm"):
                a, b = ours.get(name), other.get(name)
                if a is not None and b is not None and abs(a - b) > settings.loss_ratio * abs(b):
                    text = f"{name} {a:.7g} at step {ours.get('step')}, rank {rank}; {reference.boundary.key} has {b:.7g}"
                    yield Finding(gate="reference", outcome="invalid", text=text)
                    return


GATES: tuple[Callable[[TrialRecord, GateSettings, TrialRecord | None], Iterator[Finding]], ...] = (
    _failure, _numbers, _memory, _reference, _completed, _kind, _ranks, _steps, _growth,
)  # fmt: skip


def check(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None = None) -> tuple[Finding, ...]:
    """All findings of all gates, in their order. ``reference`` is the matched control, or its named stand-in."""
    return tuple(finding for gate in GATES for finding in gate(record, settings, reference))
