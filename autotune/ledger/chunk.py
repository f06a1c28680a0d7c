"""What a chunk of layers costs under a boundary, alone or beside another micro batch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.boundary.boundary import Boundary
from autotune.ledger.fsdp import Flow
from autotune.ledger.layers import BuiltLayer
from autotune.ledger.steps import Offload, Step, add_terms, chunk_steps, without_offloaded


@dataclass(frozen=True, slots=True)
class Peak:
    """Highest level of one phase of a chunk, above the level before it, and the step it falls on."""

    nbytes: int
    step: int


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What one chunk costs under one boundary, per micro batch, in bytes."""

    steps: tuple[Step, ...]
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


def _passing(flow: Flow | None, steps: Sequence[Step]) -> list[tuple[int, int]]:
    """What sharded data parallelism has whole beside each step's forward and backward."""
    if flow is None:
        return [(0, 0)] * len(steps)
    units = [step.elements if step.layer or flow.roots else 0 for step in steps]
    return [(flow.forward(units, index), flow.backward(units, index)) for index in range(len(steps))]


def passed_down(steps: Sequence[Step], index: int, retains: bool) -> int:
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
    steps = tuple(chunk_steps(layers, boundary, pooled, input_share))
    if offload is not None and boundary.granularity != "full":
        steps = without_offloaded(steps, layers, frozenset(boundary.modules), offload)
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
