"""The phase-max timeline: for each pipeline stage the peak of every phase in the first, a steady and a captured iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.ledger.block import Context
from autotune.ledger.layers import BuiltLayer, ChunkCost, add_terms, chunk_cost, inert_free
from autotune.ledger.prediction import PhasePeak
from autotune.ledger.schedule import Moment
from autotune.ledger.static import StaticBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """One pipeline stage, ready to be priced."""

    index: int
    rank: int
    chunks: tuple[tuple[BuiltLayer, ...], ...]
    static: StaticBytes
    moments: tuple[Moment, ...]
    p2p_bytes: int
    captures: bool
    first_backward_before_peak: bool
    """Whether some backward of the first iteration precedes its fullest forward."""


class Timeline:
    """Prices boundaries on the stages of one workload; chunks of equal layers are priced once."""

    def __init__(self, ctx: Context, stages: Sequence[StageModel]) -> None:
        self.ctx = ctx
        self.stages = tuple(stages)
        self._cache: dict[tuple[int, bool, bool], ChunkCost] = {}
        features = ctx.workload.features
        # random.py:CheckpointFunction.forward splits the first input over the tensor-parallel ranks
        self._input_share = ctx.sizes.tp if features.distribute_saved_activations and not ctx.sizes.sequence_parallel else 1
        self._boundary: Boundary | None = None
        self._signatures: dict[tuple[int, ...], int] = {}

    def phases(self, stage: StageModel, boundary: Boundary) -> tuple[PhasePeak, ...]:
        """Peaks of all phases of one stage under one boundary."""
        if boundary != self._boundary:
            self._cache, self._boundary = {}, boundary
        peaks: list[PhasePeak] = []
        for iteration in ("first", "steady", "after_capture") if stage.captures else ("first", "steady"):
            peaks += self._iteration(stage, boundary, iteration)
        return tuple(peaks)

    def _chunk(self, layers: tuple[BuiltLayer, ...], boundary: Boundary, *, pooled: bool, retains: bool) -> ChunkCost:
        signature = self._signatures.setdefault(tuple(id(built) for built in layers), len(self._signatures))
        key = (signature, pooled, retains)
        known = self._cache.get(key)
        if known is None:
            known = self._cache[key] = chunk_cost(layers, boundary, pooled=pooled, retains=retains, input_share=self._input_share)
        return known

    def _iteration(self, stage: StageModel, boundary: Boundary, iteration: str) -> list[PhasePeak]:
        pooled = iteration == "after_capture"
        alone = iteration != "first" and not any(sum(moment.in_flight) for moment in stage.moments)
        costs = [self._chunk(layers, boundary, pooled=pooled, retains=alone) for layers in stage.chunks]
        base = dict(stage.static.always)
        if iteration != "first":
            add_terms(base, stage.static.after_step)
        if pooled:
            base["graph_pool"] = self._pool_bytes(stage, boundary)
        if stage.p2p_bytes:
            base["p2p"] = stage.p2p_bytes
        warm = dict(base)
        add_terms(warm, stage.static.after_backward)
        forward_base = base if iteration == "first" and not stage.first_backward_before_peak else warm
        keeps_mask = boundary.granularity == "full" or "core_attn" in boundary.modules
        best: dict[str, tuple[int, Moment]] = {}
        for moment in stage.moments:
            others = sum(count * cost.held_bytes for count, cost in zip(moment.in_flight, costs, strict=True))
            cost = costs[moment.chunk]
            runs = (("backward", cost.backward[0]),) if moment.backward else (
                ("forward", cost.forward[0]), *((("loss", cost.loss[0]),) if cost.loss else ())
            )  # fmt: skip
            for phase, own in runs:
                if phase not in best or others + own > best[phase][0]:
                    best[phase] = (others + own, moment)
        peaks: list[PhasePeak] = []
        for phase, (_, moment) in best.items():
            cost = costs[moment.chunk]
            own_terms = {"backward": cost.backward, "loss": cost.loss or cost.forward, "forward": cost.forward}[phase][1]
            terms = dict(warm if phase == "backward" else forward_base)
            add_terms(terms, own_terms)
            if phase != "backward" or keeps_mask:
                add_terms(terms, stage.static.in_forward)
            for count, other in zip(moment.in_flight, costs, strict=True):
                if count:
                    add_terms(terms, other.held, count)
            peaks.append(_peak(iteration, phase, terms))
        after = {name: nbytes for name, nbytes in warm.items() if name != "p2p"}
        retained = sum(cost.retained_bytes for cost in costs)
        if retained:
            add_terms(after, {"retained": retained})
        peaks.append(_peak(iteration, "grad_sync", after))
        step = dict(after)
        if iteration == "first":
            add_terms(step, stage.static.after_step)
        add_terms(step, stage.static.in_step)
        peaks.append(_peak(iteration, "optimizer", step))
        return peaks

    def _pool_bytes(self, stage: StageModel, boundary: Boundary) -> int:
        """What captured layers keep in graph pools: their held bytes for every micro batch in flight, for good.

        Source: transformer/cuda_graphs.py:TECudaGraphHelper at 24bad8e6: one graph a layer and micro batch in flight, buffers
        reused in the order of the pipeline schedule.
        """
        full = boundary.granularity == "full"
        labels = frozenset(boundary.modules)
        per_chunk = []
        for layers in stage.chunks:
            total = 0
            for built in layers:
                if built.captured:
                    total += built.layer.cost(frozenset() if full else inert_free(built.layer, labels)).held_bytes
            per_chunk.append(total)
        most = 0
        for moment in stage.moments:
            held = sum(count * total for count, total in zip(moment.in_flight, per_chunk, strict=True))
            most = max(most, held + per_chunk[moment.chunk])
        return most


def _peak(iteration: str, phase: str, terms: Mapping[str, int]) -> PhasePeak:
    kept = {name: nbytes for name, nbytes in terms.items() if nbytes}
    return PhasePeak(iteration=iteration, phase=phase, peak_bytes=sum(kept.values()), terms=kept)
