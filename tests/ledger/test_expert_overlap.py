"""overlap_moe_expert_parallel_comm: which layers of two micro batches are alive at once, and what delayed wgrads keep."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.coverage import coverage
from autotune.ledger.ledger import Ledger
from autotune.ledger.ops import Layer, Op, Tensor
from autotune.ledger.schedule import moments

H = 2 * 128 * 256
OVERLAP = {"overlap_moe_expert_parallel_comm": True}


def op(name: str, saved: int, *, backward: int = 0, wgrad: int = 0) -> Op:
    tensor = Tensor(name=f"{name}.t", nbytes=saved, group="moe", formula="", source="")
    return Op(name=name, saves=(tensor,), backward_bytes=backward, wgrad_bytes=wgrad)


def peaks(features: dict[str, Any], *, layers: int = 6, batch: int = 4, preset: str = "moe") -> dict[str, int]:
    workload = small(preset, model={"num_layers": layers}, features=features, train={"global_batch_size": batch})
    found = Ledger(workload).predict(Boundary.selective())
    return {peak.phase: peak.peak_bytes for peak in found.stages[0].phases if peak.iteration == "steady"}


def test_without_pipeline_every_step_but_the_first_pairs_two_micro_batches() -> None:
    """combined_1f1b.py:combined_1f1b_schedule_for_no_pipelining at 24bad8e6."""
    beside = [moment.beside for moment in moments(0, 1, 1, 4, 1, overlap_ep=True)]
    assert beside == [None, None, 0]
    assert all(moment.beside is None for moment in moments(0, 1, 1, 1, 1, overlap_ep=True))


def test_a_pair_adds_less_than_two_layers_to_one_micro_batch() -> None:
    """Forward fills as backward drains: the level stays that of one micro batch and the layer at hand."""
    plain, paired = peaks({}), peaks(OVERLAP)
    layer = Ledger(small("moe")).predict(Boundary.selective())
    one = sum(layer.stages[0].phases[0].terms.get(group, 0) for group in ("hidden", "norm", "attention", "moe", "shared_experts"))
    assert paired["loss"] - plain["loss"] == 6 * H  # each shared expert's output stays
    assert 0 <= paired["backward"] - plain["backward"] < 6 * H + one


def test_one_micro_batch_has_nothing_to_pair_with() -> None:
    plain, paired = peaks({}, batch=1), peaks(OVERLAP, batch=1)
    assert paired["backward"] - plain["backward"] == 6 * H


def test_interleaved_pairs_follow_one_more_warm_up_chunk() -> None:
    """schedules.py:get_pp_rank_microbatches adds one; then the counts at a pair are those of the plain schedule at a forward."""
    plain = moments(1, 4, 2, 16, 4)
    paired = moments(1, 4, 2, 16, 4, overlap_ep=True)
    assert max(sum(moment.in_flight) for moment in plain if not moment.backward) == 2 * 2 + 4
    assert max(sum(moment.in_flight) for moment in paired if moment.beside is not None) == 2 * 2 + 4 + 1 - 1
    assert {moment.chunk for moment in paired if moment.beside is not None} == {0, 1}


def test_nodes_of_a_layer_by_hand() -> None:
    layer = Layer("l", [op("attn.a", 5, backward=1), op("moe.dispatch", 7, backward=2), op("moe.expert", 11, backward=4)])
    nodes = layer.cost(frozenset()).nodes
    assert nodes.pre_held_bytes == 5
    assert nodes.rest_backward_peak == 5 + 7 + 11 + 4
    assert nodes.pre_backward_peak == 5 + 1


def test_delayed_weight_gradients_keep_inputs_and_output_gradients_to_the_end_of_their_node() -> None:
    """model_chunk_schedule_plan.py:TransformerLayerSchedulePlan.run calls backward_dw after a node's backward."""
    ops = [
        op("attn.a", 5, backward=1, wgrad=3),
        op("moe.expert1", 7, backward=2, wgrad=13),
        op("moe.expert2", 11, backward=4, wgrad=17),
    ]
    plain, delayed = Layer("l", ops).cost(frozenset()), Layer("l", ops, delays_wgrad=True).cost(frozenset())
    assert plain.backward_peak == 5 + 7 + 11 + 4
    # while expert1 runs backward, expert2's input and output gradient still wait
    assert delayed.nodes.rest_backward_peak == 5 + 7 + 11 + 17 + 2
    # experts are through before attention starts
    assert delayed.nodes.pre_backward_peak == plain.nodes.pre_backward_peak == 5 + 1


@pytest.mark.parametrize("features", [OVERLAP, {**OVERLAP, "delay_wgrad_compute": True}])
def test_both_are_covered(features: dict[str, Any]) -> None:
    assert coverage(small("moe", features=features)).covered
