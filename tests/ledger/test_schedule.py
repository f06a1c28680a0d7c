from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ledger.schedule import moments


def brute_force(stage: int, pp: int, vpp: int, microbatches: int, *, weights: tuple[int, ...]) -> dict[tuple[bool, int], int]:
    """Largest weighted number of other micro batches in flight, by running Megatron's interleaved order."""
    group = pp
    order = [
        chunk for start in range(0, microbatches, group) for chunk in range(vpp) for _ in range(min(group, microbatches - start))
    ]
    warmup = min(len(order), 2 * (pp - stage - 1) + (vpp - 1) * group)
    actions = [(False, chunk) for chunk in order[:warmup]]
    backwards = iter([vpp - 1 - chunk for chunk in order])
    for chunk in order[warmup:]:
        actions += [(False, chunk), (True, next(backwards))]
    actions += [(True, chunk) for chunk in backwards]
    held = [0] * vpp
    most: dict[tuple[bool, int], int] = {}
    for backward, chunk in actions:
        if backward:
            held[chunk] -= 1
        level = sum(count * weight for count, weight in zip(held, weights, strict=True))
        most[backward, chunk] = max(most.get((backward, chunk), 0), level)
        if not backward:
            held[chunk] += 1
    return most


@pytest.mark.parametrize(("stage", "others"), [(0, 3), (1, 2), (2, 1), (3, 0)])
def test_plain_pipeline_holds_one_micro_batch_for_each_later_stage(stage: int, others: int) -> None:
    assert {moment.in_flight for moment in moments(stage, 4, 1, 16, 4)} == {(others,)}


def test_few_micro_batches_limit_what_is_in_flight() -> None:
    assert {moment.in_flight for moment in moments(0, 8, 1, 2, 8)} == {(1,)}


@given(st.data())
def test_interleaved_pipeline_equals_running_it(data: st.DataObject) -> None:
    pp = data.draw(st.integers(2, 5), "pp")
    vpp = data.draw(st.integers(2, 4), "vpp")
    group = pp
    microbatches = group * data.draw(st.integers(1, 4), "groups")
    stage = data.draw(st.integers(0, pp - 1), "stage")
    weights = tuple(data.draw(st.lists(st.integers(0, 9), min_size=vpp, max_size=vpp), "bytes of a chunk"))
    most = brute_force(stage, pp, vpp, microbatches, weights=weights)
    got: dict[tuple[bool, int], int] = {}
    for moment in moments(stage, pp, vpp, microbatches, group):
        level = sum(count * weight for count, weight in zip(moment.in_flight, weights, strict=True))
        key = (moment.backward, moment.chunk)
        got[key] = max(got.get(key, 0), level)
    assert got == most


def test_last_stage_of_an_interleaved_pipeline_still_holds_other_chunks() -> None:
    # warm-up of the last stage is (vpp - 1) * group chunks
    assert max(sum(moment.in_flight) for moment in moments(3, 4, 2, 16, 4)) == 4
