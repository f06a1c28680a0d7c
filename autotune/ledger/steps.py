"""What the checkpoint units of a chunk cost: single layers, layers checkpointed together, embedding and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.boundary.boundary import Boundary
from autotune.ledger.layers import BuiltLayer
from autotune.ledger.offload import offloaded
from autotune.ledger.ops import LayerCost, NodeCost


@dataclass(frozen=True, slots=True)
class Step:
    """One checkpoint unit of a chunk: a layer, a group of fully recomputed layers, or (``layer`` False) embedding or head."""

    held: dict[str, int]
    held_bytes: int
    forward_peak: int
    backward_peak: int
    backward_terms: dict[str, int]
    retained_bytes: int
    """Kept after its backward until its next forward."""
    apart_bytes: int
    """The part of ``held`` and ``retained_bytes`` that is of the latest forward only: other micro batches hold none."""
    loss: bool
    nodes: NodeCost
    layer: bool
    elements: int
    """Of its parameters."""
    again_bytes: int = 0
    """By how much ``forward_peak`` is higher where the graph of the forward before is still there: until the last of its layers
    that routes has run, what the unit retains stays."""
    passed_down_bytes: int = 0
    """The part of ``retained_bytes`` that is the gradient the step before it starts its backward with."""


def add_terms(into: dict[str, int], terms: Mapping[str, int], times: int = 1) -> None:
    """Add term groups in place."""
    for name, nbytes in terms.items():
        into[name] = into.get(name, 0) + times * nbytes


@dataclass(frozen=True, slots=True)
class Offload:
    """Activations that leave the device: groups of ``offload_modules``, or the first ``whole`` layers with all they keep."""

    modules: frozenset[str]
    whole: int
    keeps_last: bool
    """The chunk's backward follows its forward at once: its last layer stays (ChunkOffloadHandler.should_bulk_offload)."""
    width: int


def without_offloaded(
    steps: tuple[Step, ...], layers: Sequence[BuiltLayer], labels: frozenset[str], offload: Offload
) -> tuple[Step, ...]:
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
    out: list[Step] = []
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


def chunk_steps(layers: Sequence[BuiltLayer], boundary: Boundary, pooled: bool, share: int) -> list[Step]:
    """The checkpoint units of a chunk in order; inputs of whole units are spread over ``share`` ranks."""
    if boundary.granularity != "full":
        labels = frozenset(boundary.modules)
        return [_single(built, labels, pooled) for built in layers]
    steps: list[Step] = []
    group: list[BuiltLayer] = []
    depth = 0
    per_group = boundary.num_layers or 1
    for built in layers:
        if built.kind is None:
            if group:
                steps.append(_full(group, share, received=not steps))
                group = []
            steps.append(_single(built, frozenset(), pooled))
        elif boundary.method == "uniform":
            group.append(built)
            if len(group) == per_group:
                steps.append(_full(group, share, received=not steps))
                group = []
        else:
            whole = depth < per_group
            steps.append(_full([built], share, received=not steps) if whole else _single(built, frozenset(), pooled))
            depth += 1
    if group:
        steps.append(_full(group, share, received=not steps))
    return steps


def _single(built: BuiltLayer, labels: frozenset[str], pooled: bool) -> Step:
    layer = built.graph.eager if pooled and built.graph is not None else built.layer
    cost = layer.cost(labels)
    return Step(
        cost.held,
        cost.held_bytes,
        cost.forward_peak,
        cost.backward_peak,
        cost.backward_terms,
        cost.retained_bytes,
        cost.apart_bytes,
        built.loss,
        cost.nodes,
        built.kind is not None,
        _elements([built]),
    )


def _elements(group: Sequence[BuiltLayer]) -> int:
    return sum(param.numel for built in group for param in built.params)


def _full(group: list[BuiltLayer], share: int, *, received: bool) -> Step:
    """Layers checkpointed together: their first input stays; backward restores them all, then runs through them.

    Args:
        group: The layers.
        share: Ranks over which the first input is spread.
        received: Whether it came from another stage, which counts it to the end of the step (schedule.py:stage_tensors).
    """
    first = group[0].layer
    entry = next(tensor for op in first.ops for tensor in op.saves if tensor.name.endswith(".x"))
    costs: list[LayerCost] = [built.layer.cost(frozenset()) for built in group]
    before, after = 0, sum(cost.attribute_bytes for cost in costs)
    backward, transient, kept = 0, 0, 0
    for cost in costs:
        after -= cost.attribute_bytes
        level = before + max(cost.backward_peak, cost.forward_peak) + after
        if level > backward:
            kept = before + cost.held_bytes + after
            backward, transient = level, level - kept
        before += cost.held_bytes
    # The first pass runs without gradients: a tensor dies with its last user.
    attributes = sum(cost.attribute_bytes for cost in costs)
    passes = [
        attributes - cost.attribute_bytes + cost.bare_forward_peak + (entry.nbytes if index else 0)
        for index, cost in enumerate(costs)
    ]
    routing = [index for index, built in enumerate(group) if built.kind is not None and built.kind.mlp == "moe"]
    graph = 2 * entry.nbytes if routing else 0  # the detached input and its gradient, which is what the layers before get
    graph -= received * min(graph, entry.nbytes)
    again = max(level + graph * any(other > index for other in routing) for index, level in enumerate(passes))
    # The output of the replay lives until its backward ends.
    backward, transient = backward + entry.nbytes, transient + entry.nbytes
    held = {entry.group: entry.nbytes // share}
    if attributes:
        held["moe"] = attributes
    stored = sum(held.values())
    terms = {**held, "replay_transient": kept - stored, "transient": transient}
    forward = max(*passes, stored)
    return Step(
        held=held,
        held_bytes=stored,
        forward_peak=forward,
        backward_peak=backward,
        backward_terms=terms,
        retained_bytes=graph + attributes,
        apart_bytes=attributes,
        loss=False,
        nodes=NodeCost(stored, forward, backward, backward),
        layer=True,
        elements=_elements(group),
        again_bytes=max(again, stored) - forward,
        passed_down_bytes=min(graph, entry.nbytes),
    )
