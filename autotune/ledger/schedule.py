"""Which micro batches are in flight on a pipeline stage when a chunk runs forward or backward.

Source: megatron/core/pipeline_parallel/schedules.py:forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_pp_rank_microbatches, get_schedule_table at 24bad8e6.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import ge


@dataclass(frozen=True, slots=True)
class Moment:
    """A chunk runs while ``in_flight[c]`` other micro batches hold the activations of chunk ``c``."""

    backward: bool
    chunk: int
    in_flight: tuple[int, ...]
    beside: int | None = None
    """The chunk that runs forward beside this backward, layer by layer (overlap_moe_expert_parallel_comm)."""

    def covers(self, other: Moment) -> bool:
        """Whether it is the other moment with at least as much in flight."""
        return (self.backward, self.chunk, self.beside) == (other.backward, other.chunk, other.beside) and all(
            map(ge, self.in_flight, other.in_flight)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTensors:
    """Hidden states that a stage holds for its neighbours beside activations, as a count of [tokens, hidden] tensors."""

    in_forward: int
    in_backward: int
    in_sync: int
    """While gradients are synchronised, which the schedule's function does before it returns."""
    after_step: int


def stage_tensors(stage: int, pp: int, vpp: int, microbatches: int, *, first_chunks: int = 0) -> StageTensors:
    """How many received, sent or left-over hidden states are alive.

    Plain 1F1B keeps names from one round of its loop to the next: in a forward after the first backward these are the last
    input's gradient (``input_tensor_grad``), the last input itself (``output_tensor`` still holds that graph, whose leaf
    it is) and, but for the last stage, the gradient received for it (``output_tensor_grad``). A backward has replaced all
    but the last input's gradient; the gradient received last lives until the function returns. Interleaved: the next input,
    the next gradient and the gradient being sent. After the step ``decoder.input_tensor`` of every chunk that receives keeps
    its last input and gradient.

    Source: schedules.py:forward_backward_pipelining_without_interleaving, forward_backward_pipelining_with_interleaving;
    transformer_block.py:TransformerBlock.set_input_tensor at 24bad8e6.
    """
    if pp == 1:
        return StageTensors(in_forward=0, in_backward=0, in_sync=0, after_step=0)
    receives = vpp - first_chunks
    if vpp > 1:
        return StageTensors(in_forward=3, in_backward=3, in_sync=2 * receives, after_step=2 * receives)
    rounds = microbatches - min(pp - stage - 1, microbatches)
    forward = 2 * receives + (stage < pp - 1) if rounds > 1 else 0
    return StageTensors(
        in_forward=forward,
        in_backward=receives if microbatches > 1 else 0,
        in_sync=2 * receives + (stage < pp - 1),
        after_step=2 * receives,
    )


@lru_cache(maxsize=256)
def moments(stage: int, pp: int, vpp: int, microbatches: int, group: int, *, overlap_ep: bool = False) -> tuple[Moment, ...]:
    """The moments that can set a peak on one stage, dominated ones left out.

    Args:
        stage: Pipeline rank.
        pp: Pipeline stages.
        vpp: Virtual chunks a stage (1 without interleaving).
        microbatches: Micro batches of one step.
        group: microbatch_group_size_per_vp_stage (Megatron's default is pp).
        overlap_ep: overlap_moe_expert_parallel_comm adds one warm-up chunk, and then runs each forward beside the backward
            of an earlier chunk (combined_1f1b.py: combined_1f1b_schedule_for_no_pipelining, _for_interleaved_pipelining).
    """
    if vpp == 1:
        others = min(pp - stage - 1, microbatches - 1)
        alone = (Moment(False, 0, (others,)), Moment(True, 0, (others,)))
        return (*alone, Moment(True, 0, (0,), beside=0)) if overlap_ep and pp == 1 and microbatches > 1 else alone
    # The pattern is periodic after warm-up, so a few groups of micro batches show every moment.
    steady = 4 * pp + 3 * group
    count = min(microbatches, -(-steady // group) * group)
    forwards = _order(count, group, vpp)
    backwards = [vpp - 1 - chunk for chunk in forwards]
    total = len(forwards)
    warmup = min(total, 2 * (pp - stage - 1) + (vpp - 1) * group + int(overlap_ep))
    seen: dict[tuple[bool, int, int | None], set[tuple[int, ...]]] = {}
    held = [0] * vpp

    def note(backward: bool, chunk: int, beside: int | None = None) -> None:
        seen.setdefault((backward, chunk, beside), set()).add(tuple(held))

    done = 0
    for index, chunk in enumerate(forwards):
        if overlap_ep and index >= warmup:
            leaving = backwards[done]
            held[leaving] -= 1
            note(True, leaving, chunk)
            # The loss, where the chunk has it, is worked out when the backward beside it is through.
            note(False, chunk)
            held[chunk] += 1
            done += 1
            continue
        note(False, chunk)
        held[chunk] += 1
        if overlap_ep:
            continue
        # After warm-up each forward is followed by one backward; the last forward by all that are left.
        until = done + (index >= warmup) if index + 1 < total else total
        for leaving in backwards[done:until]:
            held[leaving] -= 1
            note(True, leaving)
        done = until
    for leaving in backwards[done:]:
        held[leaving] -= 1
        note(True, leaving)
    return tuple(
        Moment(backward, chunk, vector, beside)
        for (backward, chunk, beside), vectors in sorted(seen.items(), key=lambda item: (*item[0][:2], item[0][2] or 0))
        for vector in _maximal(vectors)
    )


def _order(microbatches: int, group: int, vpp: int) -> list[int]:
    order: list[int] = []
    for start in range(0, microbatches, group):
        size = min(group, microbatches - start)
        for chunk in range(vpp):
            order += [chunk] * size
    return order


def _maximal(vectors: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The vectors that can be the largest weighted sum for weights that are not negative.

    Dropped are those under another one, and those under the straight line between their neighbours in sorted order.
    """
    kept: list[tuple[int, ...]] = []
    for vector in sorted(vectors, key=sum, reverse=True):
        if not any(all(a >= b for a, b in zip(other, vector, strict=True)) for other in kept):
            kept.append(vector)
    kept.sort()
    hull: list[tuple[int, ...]] = []
    for vector in kept:
        while len(hull) >= 2 and _under_line(hull[-2], hull[-1], vector):
            hull.pop()
        hull.append(vector)
    return hull


def _under_line(left: tuple[int, ...], middle: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Whether ``middle`` lies nowhere above the line from ``left`` to ``right`` (compared at its first coordinate)."""
    whole, part = right[0] - left[0], middle[0] - left[0]
    if whole == 0:
        return False
    return all(m * whole <= a * (whole - part) + b * part for a, m, b in zip(left, middle, right, strict=True))
