"""The phase-max timeline: for each pipeline stage the peak of every phase in the first, a steady and a captured iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

from autotune.boundary.boundary import Boundary
from autotune.ledger.block import Context
from autotune.ledger.chunk import ChunkCost, Pair, Peak, Remains, chunk_cost, pair_cost
from autotune.ledger.fsdp import flow
from autotune.ledger.layers import BuiltLayer
from autotune.ledger.offload import whole_layers
from autotune.ledger.prediction import PhasePeak
from autotune.ledger.schedule import Moment, StageTensors
from autotune.ledger.static import StaticBytes
from autotune.ledger.steps import Offload, add_terms

_TENSORS = ("in_forward", "in_backward", "in_sync", "after_step")
_RUNNING = ("forward", "loss", "backward")
_REUSES_BUFFERS = (2, 7)
"""Transformer Engine that reuses the buffers of graphs (cuda_graphs.py:_get_cuda_graph_input_data at 24bad8e6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """One pipeline stage, ready to be priced."""

    index: int
    rank: int
    chunks: tuple[tuple[BuiltLayer, ...], ...]
    static: StaticBytes
    moments: tuple[Moment, ...]
    tensors: StageTensors
    captures: bool
    eager_steps: int
    """Steps before graphs are captured; without capture it does not matter."""
    last: bool
    """Whether the pipeline ends here."""
    first_backward_before_peak: bool
    """Whether some backward of the first iteration precedes its fullest forward."""

    @property
    def iterations(self) -> tuple[str, ...]:
        """The iterations that differ: the first, a steady one, one after graph capture.

        The first step makes the optimizer's state, so an eager step that has it comes second, where capture comes no earlier.
        """
        if not self.captures:
            return ("first", "steady")
        return (*("first", "steady")[: self.eager_steps], "after_capture")

    @property
    def decisive(self) -> tuple[str, ...]:
        """The iterations that can set the peak: a steady step holds all that a first one does."""
        return self.iterations if "steady" not in self.iterations else self.iterations[1:]

    def holds_as_much_as(self, other: StageModel) -> bool:
        """Whether this stage, of the same layers, has at least the other's static bytes and micro batches in flight."""
        return (
            self.captures == other.captures
            and self.static.covers(other.static)
            and all(getattr(self.tensors, name) >= getattr(other.tensors, name) for name in _TENSORS)
            and all(any(mine.covers(theirs) for mine in self.moments) for theirs in other.moments)
        )

    @property
    def alone(self) -> bool:
        """Whether no other micro batch is ever in flight here."""
        return not any(any(moment.in_flight) for moment in self.moments)


@dataclass(frozen=True, slots=True)
class GraphBytes:
    """What CUDA graphs hold on one stage: ``static_bytes`` stay allocated after capture; ``pool_bytes`` are allocated while they
    are captured and only reserved afterwards."""

    static_bytes: int
    pool_bytes: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of one stage: costs of its chunks, what lies under each phase, and where each phase is fullest."""

    name: str
    costs: list[ChunkCost]
    base: Mapping[str, tuple[Mapping[str, int], int]]
    """What lies under each phase whatever the boundary, by term group, and its sum."""
    extra: Mapping[str, Mapping[str, int]]
    """What lies under a phase because of the boundary, chunks that run left out."""
    runs: Mapping[str, tuple[int, Moment]]

    def levels(self) -> dict[str, int]:
        """Peak of every phase in bytes."""
        none: Mapping[str, int] = {}
        return {
            phase: total + sum(self.extra.get(phase, none).values()) + (self.runs[phase][0] if phase in self.runs else 0)
            for phase, (_, total) in self.base.items()
            if phase in self.runs or phase not in _RUNNING
        }

    def peak(self, phase: str) -> PhasePeak:
        """One phase with its terms."""
        terms = dict(self.base[phase][0])
        add_terms(terms, self.extra.get(phase, {}))
        if phase in self.runs:
            moment = self.runs[phase][1]
            if moment.beside is None:
                add_terms(terms, self.costs[moment.chunk].terms(phase))
            else:
                ahead, back = self.costs[moment.beside], self.costs[moment.chunk]
                add_terms(terms, pair_cost(ahead, back).terms(ahead, back))
            for count, cost in zip(moment.in_flight, self.costs, strict=True):
                if count:
                    add_terms(terms, cost.waiting(), count)
        kept = {name: nbytes for name, nbytes in terms.items() if nbytes}
        return PhasePeak(iteration=self.name, phase=phase, peak_bytes=sum(kept.values()), terms=kept)


def _runs(moments: Sequence[Moment], costs: Sequence[ChunkCost]) -> dict[str, tuple[int, Moment]]:
    """Highest level and its moment of the phases that run layers, static bytes left out."""
    best: dict[str, tuple[int, Moment]] = {}
    held = [cost.waiting_bytes for cost in costs]
    pairs: dict[tuple[int, int], Pair] = {}
    for moment in moments:
        others = sum(map(mul, moment.in_flight, held))
        cost = costs[moment.chunk]
        phases: tuple[tuple[str, Peak | Pair], ...]
        if moment.beside is not None:
            which = (id(costs[moment.beside]), id(cost))
            if which not in pairs:
                pairs[which] = pair_cost(costs[moment.beside], cost)
            phases = (("backward", pairs[which]),)
        elif moment.backward:
            phases = (("backward", cost.backward),)
        elif cost.loss is not None:
            phases = (("forward", cost.forward), ("loss", cost.loss))
        else:
            phases = (("forward", cost.forward),)
        for phase, own in phases:
            if phase not in best or others + own.nbytes > best[phase][0]:
                best[phase] = (others + own.nbytes, moment)
    return best


class Timeline:
    """Prices boundaries on the stages of one workload; chunks of equal layers are priced once."""

    def __init__(self, ctx: Context, stages: Sequence[StageModel]) -> None:
        self.ctx = ctx
        self.stages = tuple(stages)
        self._cache: dict[tuple[object, ...], ChunkCost] = {}
        self._labels = {
            id(chunk): frozenset(label for built in chunk for label in built.layer.labels)
            for stage in stages
            for chunk in stage.chunks
        }
        features = ctx.workload.features
        # random.py:CheckpointFunction.forward splits the first input over the tensor-parallel ranks
        self._input_share = ctx.sizes.tp if features.distribute_saved_activations and not ctx.sizes.sequence_parallel else 1
        signatures: dict[tuple[int, ...], int] = {}
        self._signatures = [
            [signatures.setdefault(tuple(map(id, chunk)), len(signatures)) for chunk in stage.chunks] for stage in self.stages
        ]
        layers = [built for stage in stages for chunk in stage.chunks for built in chunk if built.kind is not None]
        self._flow = flow(ctx.workload, ctx.stack, max((sum(p.numel for p in built.params) for built in layers), default=0))
        self._alone = [stage.alone for stage in self.stages]
        self._graphs: dict[tuple[int, frozenset[str]], GraphBytes] = {}
        self._bases: dict[tuple[int, str, bool], dict[str, tuple[Mapping[str, int], int]]] = {}
        self._shapes = [(*signature, stage.last) for signature, stage in zip(self._signatures, self.stages, strict=True)]
        self._latest: tuple[Boundary | None, dict[tuple[object, ...], list[ChunkCost]]] = (None, {})

    @cached_property
    def outdone(self) -> frozenset[int]:
        """Stages that hold at most what another stage of equal layers holds, in every phase and whatever the boundary."""
        found: set[int] = set()
        kept: dict[tuple[object, ...], list[StageModel]] = {}
        for stage, shape in zip(self.stages, self._shapes, strict=True):
            group = kept.setdefault((*shape, self._alone[stage.index]), [])
            if any(other.holds_as_much_as(stage) for other in group):
                found.add(stage.index)
            else:
                group.append(stage)
        return frozenset(found)

    def iterations(self, stage: StageModel, boundary: Boundary, *, first: bool) -> list[Iteration]:
        """The iterations of one stage under one boundary; without ``first`` only those that can set the peak."""
        return [self._iteration(stage, boundary, name) for name in (stage.iterations if first else stage.decisive)]

    def _costs(self, stage: StageModel, boundary: Boundary, *, pooled: bool, remains: Remains) -> list[ChunkCost]:
        """Costs of a stage's chunks; stages of equal layers share those of the boundary at hand."""
        if self._latest[0] is not boundary:
            self._latest = (boundary, {})
        key = (*self._shapes[stage.index], pooled, remains)
        known = self._latest[1].get(key)
        if known is None:
            known = self._latest[1][key] = self._work_out(stage, boundary, pooled=pooled, remains=remains)
        return known

    def _work_out(self, stage: StageModel, boundary: Boundary, *, pooled: bool, remains: Remains) -> list[ChunkCost]:
        out: list[ChunkCost] = []
        full = boundary.granularity == "full"
        modules = frozenset(boundary.modules)
        for layers, signature in zip(stage.chunks, self._signatures[stage.index], strict=True):
            # Boundaries that differ only in labels without a site here cost the same here.
            acting = (boundary.method, boundary.num_layers) if full else modules & self._labels[id(layers)]
            offload = self._offload(last=layers is stage.chunks[-1] and stage.last)
            key = (signature, pooled, remains, acting, offload)
            known = self._cache.get(key)
            if known is None:
                known = self._cache[key] = chunk_cost(
                    layers,
                    boundary,
                    pooled=pooled,
                    remains=remains,
                    input_share=self._input_share,
                    offload=offload,
                    flow=self._flow,
                )
            out.append(known)
        return out

    def _offload(self, *, last: bool) -> Offload | None:
        features = self.ctx.workload.features
        modules = frozenset(features.offload_modules) if features.fine_grained_activation_offloading else frozenset()
        whole = whole_layers(self.ctx.workload)
        if not modules and not whole:
            return None
        return Offload(modules=modules, whole=whole, keeps_last=last, width=self.ctx.sizes.width)

    def _iteration(self, stage: StageModel, boundary: Boundary, name: str) -> Iteration:
        captured = name == "after_capture"
        remains: Remains = "graphs" if self._alone[stage.index] else "attributes"
        if name == "first" and self._alone[stage.index] and not stage.first_backward_before_peak:
            remains = "nothing"  # in the first iteration only a later micro batch finds what the one before it left
        costs = self._costs(stage, boundary, pooled=captured, remains=remains)
        retained = {"retained": sum(cost.retained_bytes for cost in costs)}
        extra: dict[str, Mapping[str, int]] = {"grad_sync": retained, "optimizer": retained}
        if captured:
            graphs = self.graphs(stage, boundary)
            static = {"graph_pool": graphs.static_bytes}
            extra |= dict.fromkeys(_RUNNING, static) | {phase: {**retained, **static} for phase in ("grad_sync", "optimizer")}
            extra["after_capture"] = {**retained, "graph_pool": graphs.static_bytes + graphs.pool_bytes}
        keeps_mask = boundary.granularity == "full" or "core_attn" in boundary.modules
        key = (stage.index, name, keeps_mask)
        if key not in self._bases:
            self._bases[key] = self._base(stage, name, keeps_mask=keeps_mask)
        return Iteration(name=name, costs=costs, base=self._bases[key], extra=extra, runs=_runs(stage.moments, costs))

    def _base(self, stage: StageModel, name: str, *, keeps_mask: bool) -> dict[str, tuple[Mapping[str, int], int]]:
        """What lies under each phase of an iteration, whatever the boundary, with its sum."""
        static, hidden = stage.static, self.ctx.sizes.hidden_bytes
        base = [static.always, *([static.after_step] if name != "first" else [])]
        warm = [*base, static.after_backward]
        cold = name == "first" and not stage.first_backward_before_peak
        synced = [*warm, {"p2p": stage.tensors.after_step * hidden}]
        forward = [
            *(base if cold else warm), {"p2p": stage.tensors.in_forward * hidden}, static.in_schedule, static.in_forward,
            static.batch,
        ]  # fmt: skip
        returned = {"p2p": stage.tensors.in_backward * hidden}
        parts: dict[str, list[dict[str, int]]] = {
            "forward": forward,
            "loss": forward,
            "backward": [
                *warm, returned, static.in_schedule, static.in_backward, *([static.in_forward] if keeps_mask else [])
            ],
            "grad_sync": [*warm, {"p2p": stage.tensors.in_sync * hidden}, static.in_sync],
            "optimizer": [*synced, static.in_step, *([static.after_step] if name == "first" else [])],
        }  # fmt: skip
        if name == "after_capture":
            # Captured before any step, graphs come before the optimizer's state and before what a step leaves behind.
            parts["after_capture"] = synced if stage.eager_steps else [static.always, static.after_backward]
        out: dict[str, tuple[Mapping[str, int], int]] = {}
        for phase, under in parts.items():
            terms: dict[str, int] = {}
            for part in under:
                add_terms(terms, part)
            out[phase] = (terms, sum(terms.values()))
        return out

    def graphs(self, stage: StageModel, boundary: Boundary) -> GraphBytes:
        """What the graphs of a stage hold: ledger/graphs.py says what of it is allocated when."""
        labels = frozenset(boundary.modules) if boundary.granularity != "full" else frozenset()
        key = (stage.index, labels)
        if key not in self._graphs:
            self._graphs[key] = self._graph_bytes(stage, labels)
        return self._graphs[key]

    def _graph_bytes(self, stage: StageModel, labels: frozenset[str]) -> GraphBytes:
        parts = [[built.graph for built in chunk if built.graph is not None] for chunk in stage.chunks]
        held = [sum(part.pool(labels) for part in chunk) for chunk in parts]
        highest = [max((part.pool_peak(labels) - part.pool(labels) for part in chunk), default=0) for chunk in parts]
        inputs = [sum(part.input_bytes for part in chunk) for chunk in parts]
        pool = static = 0
        for moment in stage.moments:
            own = held[moment.chunk]
            if moment.beside is not None:
                # Layer by layer: one chunk's graphs replace the other's, but for the layer at hand.
                beside = parts[moment.beside]
                own = max(own, held[moment.beside]) + max((part.pool(labels) for part in beside), default=0)
            pool = max(pool, sum(map(mul, moment.in_flight, held)) + own + highest[moment.chunk])
            static = max(static, sum(map(mul, moment.in_flight, inputs)) + inputs[moment.chunk])
        distinct = {part.output_bytes: part.gradient_bytes for chunk in parts for part in chunk}
        static += sum(distinct.values()) + self.ctx.sizes.hidden_bytes
        if self.ctx.stack.te < _REUSES_BUFFERS and self.ctx.workload.features.cuda_graph_impl == "transformer_engine":
            # Before, outputs, their gradients and input gradients of every callable and micro batch kept their storages.
            count = self.ctx.workload.num_microbatches if self.ctx.workload.parallel.pipeline_model_parallel_size > 1 else 1
            static += count * sum(
                part.output_bytes + part.gradient_bytes + self.ctx.sizes.hidden_bytes for chunk in parts for part in chunk
            )
        return GraphBytes(static, pool)
