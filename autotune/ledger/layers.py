"""Layers and chunks of a workload: from layer kinds to operations, and what a chunk of layers costs under a boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.boundary.boundary import Boundary
from autotune.ledger.attention import attention_block
from autotune.ledger.block import Block, Context, Param
from autotune.ledger.fsdp import Flow
from autotune.ledger.gdn import gdn_block
from autotune.ledger.graphs import CapturedPart, captured_part
from autotune.ledger.mamba import mamba_block
from autotune.ledger.mla import mla_block
from autotune.ledger.mlp import mlp_block
from autotune.ledger.moe import moe_block
from autotune.ledger.offload import offloaded
from autotune.ledger.ops import Layer, LayerCost, NodeCost, Op
from autotune.ledger.peft import frozen_with_adapters, with_adapters
from autotune.workload.architecture import LayerKind

_MIXERS = {"attention": attention_block, "mla": mla_block, "dsa": mla_block, "gdn": gdn_block, "mamba": mamba_block}


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """One layer kind with its parameters."""

    kind: LayerKind | None
    """None for the embedding and the head, which no boundary reaches."""
    layer: Layer
    params: tuple[Param, ...]
    graph: CapturedPart | None = None
    """What CUDA graphs capture of it; None where they capture nothing."""
    loss: bool = False
    """Whether its forward belongs to the loss phase."""


def build_layer(ctx: Context, kind: LayerKind) -> BuiltLayer:
    """Operations, regions and parameters of one layer kind."""
    blocks: list[Block] = []
    if kind.mixer != "none":
        blocks.append(_MIXERS[kind.mixer](ctx))
    if kind.mlp != "none":
        blocks.append(moe_block(ctx) if kind.mlp == "moe" else mlp_block(ctx))
    name = f"{kind.mixer}+{kind.mlp}"
    ops: Sequence[Op] = [op for block in blocks for op in block.ops]
    params: Sequence[Param] = [param for block in blocks for param in block.params]
    if ctx.workload.features.peft:
        ops, params = with_adapters(ctx, ops), frozen_with_adapters(ctx, params)
    regions = [region for block in blocks for region in block.regions]
    residual = ctx.sizes.hidden_bytes
    return BuiltLayer(
        kind,
        Layer(name, ops, regions, residual_bytes=residual, delays_wgrad=ctx.workload.features.delay_wgrad_compute),
        tuple(params),
        graph=captured_part(ctx, kind, name, ops, regions, residual_bytes=residual),
    )


@dataclass(frozen=True, slots=True)
class Peak:
    """Highest level of one phase of a chunk, above the level before it, and the step it falls on."""

    nbytes: int
    step: int


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What one chunk costs under one boundary, per micro batch, in bytes."""

    steps: tuple[_Step, ...]
    held_bytes: int
    retained_bytes: int
    retains: bool
    forward: Peak
    loss: Peak | None
    backward: Peak
    flow: Flow | None = None
    _terms: dict[str, Mapping[str, int]] = field(default_factory=dict, compare=False, repr=False)
    """Worked out once: stages share the costs of equal chunks."""

    def held(self) -> Mapping[str, int]:
        """Bytes kept from forward to backward by term group."""
        if "held" not in self._terms:
            out: dict[str, int] = {}
            for step in self.steps:
                add_terms(out, step.held)
            self._terms["held"] = out
        return self._terms["held"]

    def terms(self, phase: str) -> Mapping[str, int]:
        """The peak of a phase by term group."""
        if phase not in self._terms:
            self._terms[phase] = self._work_out(phase)
        return self._terms[phase]

    def _work_out(self, phase: str) -> dict[str, int]:
        peak = {"forward": self.forward, "loss": self.loss or self.forward, "backward": self.backward}[phase]
        out: dict[str, int] = {}
        for step in self.steps[: peak.step]:
            add_terms(out, step.held)
        at = self.steps[peak.step]
        passing = _passing(self.flow, self.steps)
        if phase == "backward":
            add_terms(out, at.backward_terms)
            add_terms(out, {"fsdp": passing[peak.step][1]})
        else:
            add_terms(out, at.held)
            add_terms(out, {"transient": at.forward_peak - at.held_bytes, "fsdp": passing[peak.step][0]})
        if self.retains:
            retained = sum(step.retained_bytes for step in self.steps[peak.step + 1 :])
            arriving = passed_down(self.steps, peak.step, self.retains) if phase == "backward" else 0
            add_terms(out, {"retained": retained - arriving})
        return out


@dataclass(frozen=True, slots=True)
class Pair:
    """The highest level while one chunk runs forward beside another's backward, layer by layer.

    ``forward`` and ``backward`` count the steps of either chunk that are held at that moment.
    """

    nbytes: int
    forward: int
    backward: int

    def terms(self, ahead: ChunkCost, back: ChunkCost) -> dict[str, int]:
        """The level by term group; what passes is one transient."""
        out: dict[str, int] = {}
        for step in (*ahead.steps[: self.forward], *back.steps[: self.backward]):
            add_terms(out, step.held)
        add_terms(out, {"transient": self.nbytes - sum(out.values())})
        return out


def pair_cost(ahead: ChunkCost, back: ChunkCost) -> Pair:
    """Combined forward of ``ahead`` and backward of ``back``.

    Layer i forward runs beside layer n - 1 - i backward, node by node: forward up to the dispatch, backward of the experts,
    forward of the experts, backward of the rest. The embedding's forward and the head's backward come first, the
    head's forward (the loss) after all.

    Source: model_chunk_schedule_plan.py:TransformerLayerSchedulePlan.run, TransformerModelChunkSchedulePlan.run at 24bad8e6.
    """
    f_first = next((index for index, step in enumerate(ahead.steps) if step.layer), 0)
    f_last = next((index for index in range(len(ahead.steps), 0, -1) if ahead.steps[index - 1].layer), f_first)
    b_last = next((index for index in range(len(back.steps), 0, -1) if back.steps[index - 1].layer), 0)
    f_held = sum(step.held_bytes for step in ahead.steps[:f_first])
    b_held = back.held_bytes
    best = Pair(0, 0, 0)

    def note(nbytes: int, forward: int, backward: int) -> None:
        nonlocal best
        if nbytes > best.nbytes:
            best = Pair(nbytes, forward, backward)

    f_whole, b_whole = _passing(ahead.flow, ahead.steps), _passing(back.flow, back.steps)
    for index in range(len(back.steps) - 1, b_last - 1, -1):
        b_held -= back.steps[index].held_bytes
        note(f_held + b_held + back.steps[index].backward_peak + b_whole[index][1], f_first, index)
    i, j = f_first, b_last - 1
    while i < f_last or j >= 0:
        f = ahead.steps[i] if i < f_last else None
        b = back.steps[j] if j >= 0 else None
        whole = (f_whole[i][0] if f is not None else 0) + (b_whole[j][1] if b is not None else 0)
        if b is not None:
            b_held -= b.held_bytes
            pre = f.nodes.pre_held_bytes if f is not None else 0
            note(whole + f_held + b_held + pre + b.nodes.rest_backward_peak, i, j)
            note(whole + f_held + b_held + (f.held_bytes if f is not None else 0) + b.nodes.pre_backward_peak, i, j)
        if f is not None:
            waiting = b.held_bytes if b is not None else 0
            note(whole + f_held + b_held + waiting + f.nodes.pre_forward_peak, i, j + 1 if b is not None else 0)
            note(whole + f_held + b_held + (b.nodes.pre_held_bytes if b is not None else 0) + f.forward_peak, i, max(j, 0))
            f_held += f.held_bytes
        i, j = i + 1, j - 1
    return best


def add_terms(into: dict[str, int], terms: Mapping[str, int], times: int = 1) -> None:
    """Add term groups in place."""
    for name, nbytes in terms.items():
        into[name] = into.get(name, 0) + times * nbytes


@dataclass(frozen=True, slots=True)
class _Step:
    """One checkpoint unit of a chunk: a layer, a group of fully recomputed layers, or (``layer`` False) embedding or head."""

    held: dict[str, int]
    held_bytes: int
    forward_peak: int
    backward_peak: int
    backward_terms: dict[str, int]
    retained_bytes: int
    loss: bool
    nodes: NodeCost
    layer: bool
    elements: int
    """Of its parameters."""
    passed_down_bytes: int = 0
    """The part of ``retained_bytes`` that is the gradient the step before it starts its backward with."""


def _passing(flow: Flow | None, steps: Sequence[_Step]) -> list[tuple[int, int]]:
    """What sharded data parallelism has whole beside each step's forward and backward."""
    if flow is None:
        return [(0, 0)] * len(steps)
    units = [step.elements if step.layer or flow.roots else 0 for step in steps]
    return [(flow.forward(units, index), flow.backward(units, index)) for index in range(len(steps))]


def passed_down(steps: Sequence[_Step], index: int, retains: bool) -> int:
    """Of what the next step retains, what the backward of this one counts already as its gradient."""
    return steps[index + 1].passed_down_bytes if retains and index + 1 < len(steps) else 0


def chunk_cost(
    layers: Sequence[BuiltLayer],
    boundary: Boundary,
    *,
    pooled: bool,
    retains: bool = True,
    input_share: int = 1,
    offload: Offload | None = None,
    flow: Flow | None = None,
) -> ChunkCost:
    """Cost of a chunk.

    Args:
        layers: The chunk's layers, with the embedding and the head where the chunk has them.
        boundary: The recompute setting.
        pooled: After capture: what graphs capture allocates nothing.
        retains: Whether what a region keeps after its backward is seen while the chunk runs. A module attribute holds the
            graph of the latest forward only, so it is not where other micro batches of the chunk are in flight.
        input_share: Ranks over which the inputs of fully recomputed layers are spread (distribute_saved_activations).
        offload: What leaves the device between forward and backward.
        flow: How sharded weights and gradients come and go.
    """
    steps = tuple(_steps(layers, boundary, pooled, input_share))
    if offload is not None and boundary.granularity != "full":
        steps = _without_offloaded(steps, layers, frozenset(boundary.modules), offload)
    retained = sum(step.retained_bytes for step in steps)
    forward, loss, backward = Peak(0, 0), None, Peak(0, 0)
    level, later = 0, retained if retains else 0
    for index, (step, (ahead_whole, back_whole)) in enumerate(zip(steps, _passing(flow, steps), strict=True)):
        # Going forward, what later layers retained from the last step is still there; going backward, it is there again.
        later -= step.retained_bytes if retains else 0
        ahead = level + later + step.forward_peak + ahead_whole
        if step.loss and (loss is None or ahead >= loss.nbytes):
            loss = Peak(ahead, index)
        elif not step.loss and ahead > forward.nbytes:
            forward = Peak(ahead, index)
        back = level + later - passed_down(steps, index, retains) + step.backward_peak + back_whole
        if back > backward.nbytes:
            backward = Peak(back, index)
        level += step.held_bytes
    return ChunkCost(steps, level, retained, retains, forward, loss, backward, flow)


@dataclass(frozen=True, slots=True)
class Offload:
    """Activations that leave the device: groups of ``offload_modules``, or the first ``whole`` layers with all they keep."""

    modules: frozenset[str]
    whole: int
    keeps_last: bool
    """The chunk's backward follows its forward at once: its last layer stays (ChunkOffloadHandler.should_bulk_offload)."""
    width: int


def _without_offloaded(
    steps: tuple[_Step, ...], layers: Sequence[BuiltLayer], labels: frozenset[str], offload: Offload
) -> tuple[_Step, ...]:
    """Steps that hold less. While a layer runs, forward or backward, all of it is on the device, what comes back next, and the
    group that left last: its block is given back when its copy has ended (ChunkOffloadHandler.bulk_offload_group)."""
    depth, count = 0, sum(step.layer for step in steps)
    away: list[dict[str, int]] = []
    for step, built in zip(steps, layers, strict=True):
        depth += step.layer
        if not step.layer or (offload.modules and offload.keeps_last and depth == count):
            away.append({})
        elif offload.modules:
            away.append(offloaded(built.layer, labels, offload.modules, width=offload.width))
        else:
            away.append(step.held if depth <= offload.whole else {})
    largest = [max(gone.values(), default=0) for gone in away]
    # Backward follows the forward of another chunk or micro batch, whose copies are on their way.
    last = max(largest, default=0) if offload.modules else 0
    out: list[_Step] = []
    coming = 0
    for step, gone, own in zip(steps, away, largest, strict=True):
        leaving = coming if offload.modules else 0
        held = {group: nbytes - gone.get(group, 0) for group, nbytes in step.held.items()}
        terms = dict(step.backward_terms)
        passing = (coming + last) * step.layer
        add_terms(terms, {"offload": passing})
        out.append(
            replace(
                step,
                held=held,
                held_bytes=sum(held.values()),
                forward_peak=step.forward_peak + leaving,
                backward_peak=step.backward_peak + passing,
                backward_terms=terms,
                nodes=NodeCost(
                    step.nodes.pre_held_bytes,
                    step.nodes.pre_forward_peak + leaving,
                    step.nodes.pre_backward_peak + passing,
                    step.nodes.rest_backward_peak + passing,
                ),
            )
        )
        # Going backward, the group before is on its way back while this one is worked on (ChunkOffloadHandler.bulk_reload).
        coming = own if step.layer else coming
    return tuple(out)


def _steps(layers: Sequence[BuiltLayer], boundary: Boundary, pooled: bool, share: int) -> list[_Step]:
    if boundary.granularity != "full":
        labels = frozenset(boundary.modules)
        return [_single(built, labels, pooled) for built in layers]
    steps: list[_Step] = []
    group: list[BuiltLayer] = []
    depth = 0
    per_group = boundary.num_layers or 1
    for built in layers:
        if built.kind is None:
            if group:
                steps.append(_full(group, share))
                group = []
            steps.append(_single(built, frozenset(), pooled))
        elif boundary.method == "uniform":
            group.append(built)
            if len(group) == per_group:
                steps.append(_full(group, share))
                group = []
        else:
            steps.append(_full([built], share) if depth < per_group else _single(built, frozenset(), pooled))
            depth += 1
    if group:
        steps.append(_full(group, share))
    return steps


def _single(built: BuiltLayer, labels: frozenset[str], pooled: bool) -> _Step:
    layer = built.graph.eager if pooled and built.graph is not None else built.layer
    cost = layer.cost(labels)
    return _Step(
        cost.held,
        cost.held_bytes,
        cost.forward_peak,
        cost.backward_peak,
        cost.backward_terms,
        cost.retained_bytes,
        built.loss,
        cost.nodes,
        built.kind is not None,
        _elements([built]),
    )


def _elements(group: Sequence[BuiltLayer]) -> int:
    return sum(param.numel for built in group for param in built.params)


def _full(group: list[BuiltLayer], share: int) -> _Step:
    """Layers checkpointed together: their first input stays; backward restores them all, then runs through them."""
    first = group[0].layer
    entry = next(tensor for op in first.ops for tensor in op.saves if tensor.name.endswith(".x"))
    costs: list[LayerCost] = [built.layer.cost(frozenset()) for built in group]
    before = 0
    backward, transient, kept = 0, 0, 0
    for cost in costs:
        level = before + max(cost.backward_peak, cost.forward_peak)
        if level > backward:
            backward, transient = level, level - before - cost.held_bytes
            kept = before + cost.held_bytes
        before += cost.held_bytes
    # The first pass runs without gradients: a tensor dies with its last user.
    forward = max(cost.bare_forward_peak + (entry.nbytes if index else 0) for index, cost in enumerate(costs))
    # The output of the replay lives until its backward ends.
    backward, transient = backward + entry.nbytes, transient + entry.nbytes
    # The detached input and its gradient, which is what the layers before get.
    retained = 2 * entry.nbytes if any(built.kind is not None and built.kind.mlp == "moe" for built in group) else 0
    stored = entry.nbytes // share
    terms = {entry.group: stored, "replay_transient": kept - stored, "transient": transient}
    nodes = NodeCost(stored, max(forward, entry.nbytes), backward, backward)
    forward = max(forward, entry.nbytes)
    passed = min(retained, entry.nbytes)
    elements = _elements(group)
    return _Step({entry.group: stored}, stored, forward, backward, terms, retained, False, nodes, True, elements, passed)
