"""What a chunk of layers costs under a boundary, alone or beside another micro batch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.ledger.fsdp import Flow
from autotune.ledger.layers import BuiltLayer
from autotune.ledger.steps import Offload, Step, add_terms, chunk_steps, without_offloaded


@dataclass(frozen=True, slots=True)
class Peak:
    """Highest level of one phase of a chunk, above the level before it, and the step it falls on."""

    nbytes: int
    step: int


Remains = Literal["nothing", "attributes", "graphs"]
"""What of the forward before is there while a chunk runs: nothing yet; what module attributes hold directly, where micro batches
in flight hold the rest; or the graphs that attributes hold, too."""


@dataclass(frozen=True, slots=True)
class ChunkCost:
    """What one chunk costs under one boundary, per micro batch, in bytes."""

    steps: tuple[Step, ...]
    held_bytes: int
    waiting_bytes: int
    """Of ``held_bytes`` what a micro batch holds while others of the chunk run."""
    retained_bytes: int
    remains: Remains
    forward: Peak
    loss: Peak | None
    backward: Peak
    flow: Flow | None = None
    _terms: dict[str, Mapping[str, int]] = field(default_factory=dict, compare=False, repr=False)
    """Worked out once: stages share the costs of equal chunks."""

    def waiting(self) -> Mapping[str, int]:
        """Bytes that a micro batch holds while others run, by term group."""
        if "waiting" not in self._terms:
            out: dict[str, int] = {}
            for step in self.steps:
                add_terms(out, step.held)
                add_terms(out, {"moe": -step.apart_bytes} if step.apart_bytes else {})
            self._terms["waiting"] = out
        return self._terms["waiting"]

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
            highest = at.forward_peak + _again(at, self.remains)
            add_terms(out, {"transient": highest - at.held_bytes, "fsdp": passing[peak.step][0]})
        retained = sum(_remaining(step, self.remains) for step in self.steps[peak.step + 1 :])
        arriving = passed_down(self.steps, peak.step, self.remains) if phase == "backward" else 0
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


def _remaining(step: Step, remains: Remains) -> int:
    """What a step that has not run yet, or whose backward is through, still has."""
    return {"nothing": 0, "attributes": step.apart_bytes, "graphs": step.retained_bytes}[remains]


def _again(step: Step, remains: Remains) -> int:
    return step.again_bytes if remains == "graphs" else 0


def passed_down(steps: Sequence[Step], index: int, remains: Remains) -> int:
    """Of what the next step retains, what the backward of this one counts already as its gradient."""
    return steps[index + 1].passed_down_bytes if remains == "graphs" and index + 1 < len(steps) else 0


def chunk_cost(
    layers: Sequence[BuiltLayer],
    boundary: Boundary,
    *,
    pooled: bool,
    remains: Remains = "graphs",
    input_share: int = 1,
    offload: Offload | None = None,
    flow: Flow | None = None,
) -> ChunkCost:
    """Cost of a chunk.

    Args:
        layers: The chunk's layers, with the embedding and the head where the chunk has them.
        boundary: The recompute setting.
        pooled: After capture: what graphs capture allocates nothing.
        remains: What of the forward before is seen while the chunk runs. A module attribute holds the graph of the latest
            forward only.
        input_share: Ranks over which the inputs of fully recomputed layers are spread (distribute_saved_activations).
        offload: What leaves the device between forward and backward.
        flow: How sharded weights and gradients come and go.
    """
    steps = tuple(chunk_steps(layers, boundary, pooled, input_share))
    if offload is not None and boundary.granularity != "full":
        steps = without_offloaded(steps, layers, frozenset(boundary.modules), offload)
    retained = sum(step.retained_bytes for step in steps)
    forward, loss, backward = Peak(0, 0), None, Peak(0, 0)
    level, later = 0, sum(_remaining(step, remains) for step in steps)
    for index, (step, (ahead_whole, back_whole)) in enumerate(zip(steps, _passing(flow, steps), strict=True)):
        # Going forward, what later layers retained from the last step is still there; going backward, it is there again.
        later -= _remaining(step, remains)
        ahead = level + later + step.forward_peak + _again(step, remains) + ahead_whole
        if step.loss and (loss is None or ahead >= loss.nbytes):
            loss = Peak(ahead, index)
        elif not step.loss and ahead > forward.nbytes:
            forward = Peak(ahead, index)
        back = level + later - passed_down(steps, index, remains) + step.backward_peak + back_whole
        if back > backward.nbytes:
            backward = Peak(back, index)
        level += step.held_bytes
    waiting = level - sum(step.apart_bytes for step in steps)
    return ChunkCost(steps, level, waiting, retained, remains, forward, loss, backward, flow)
