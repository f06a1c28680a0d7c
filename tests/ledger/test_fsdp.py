"""Megatron-FSDP: what each strategy shards, and what is whole while layers run."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import FFN, HIDDEN, VOCAB, small

from autotune.boundary.boundary import Boundary
from autotune.ledger.coverage import coverage
from autotune.ledger.fsdp import Flow
from autotune.ledger.ledger import Ledger

LAYER = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN
TOTAL = 2 * LAYER + 2 * VOCAB * HIDDEN + HIDDEN
RANKS = {"world_size": 8}
BATCH = {"global_batch_size": 8}


def terms(strategy: str | None, phase: str, **sections: Any) -> dict[str, int]:
    optimizer = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy} if strategy else {}
    workload = small(parallel=RANKS, train=BATCH, optimizer=optimizer, **sections)
    found = Ledger(workload).predict(Boundary.selective())
    return dict(next(p.terms for p in found.stages[0].phases if (p.iteration, p.phase) == ("steady", phase)))


@pytest.mark.parametrize(
    ("strategy", "weights", "gradients", "states"),
    [("no_shard", 1, 1, 1), ("optim", 1, 1, 8), ("optim_grads", 1, 8, 8), ("optim_grads_params", 8, 8, 8)],
)
def test_what_a_strategy_shards(strategy: str, weights: int, gradients: int, states: int) -> None:
    """ParamAndGradBuffer._init_each_parameter_group_buffers."""
    found = terms(strategy, "optimizer")
    assert found["weights"] == pytest.approx(2 * TOTAL / weights, abs=8)
    assert found["gradients"] == pytest.approx(2 * TOTAL / gradients, abs=8)
    assert found["optimizer_state"] == pytest.approx(12 * TOTAL / states, rel=0.002)


def test_sharding_states_alone_is_the_distributed_optimizer() -> None:
    stack = {"megatron_core": "0.16.1"}  # which has the same gradients under both
    assert terms("optim", "loss", stack=stack) == terms(None, "loss", stack=stack)


ROOT = 2 * VOCAB * HIDDEN + HIDDEN
"""Embedding, output layer and final norm: in no unit."""


def test_outside_layers_weights_stay_whole_and_layers_come_and_go() -> None:
    """The prefetch holds 5 * 10^8 elements at least: all of a small model. At the loss every layer has gone again."""
    assert terms("optim_grads_params", "forward")["fsdp"] == 2 * (ROOT + 2 * LAYER)  # at the first layer
    assert terms("optim_grads_params", "loss")["fsdp"] == 2 * ROOT
    # Backward: weights of the layers before, gradients of those behind.
    assert terms("optim_grads_params", "backward")["fsdp"] == (2 + 2) * ROOT + (2 * 2 + 2) * LAYER
    assert terms("optim_grads_params", "optimizer")["fsdp"] == 2 * ROOT
    older = {"stack": {"megatron_core": "0.18.0"}}
    assert "fsdp" not in terms("optim_grads_params", "optimizer", **older)
    assert "fsdp" not in terms("optim_grads", "loss")
    assert terms("optim_grads", "backward")["fsdp"] == 2 * ROOT + 2 * 2 * LAYER


def test_gradients_have_the_dtype_of_the_parameters_unless_one_is_named() -> None:
    """ParamAndGradBuffer._resolve_group_grad_dtype; before Megatron Core 0.17 ``grad_reduce_in_fp32`` decided."""
    assert terms("optim_grads_params", "optimizer")["gradients"] == pytest.approx(2 * TOTAL / 8, abs=8)
    assert terms("optim_grads_params", "optimizer")["main_gradients"] == pytest.approx(4 * TOTAL / 8, rel=0.002)
    older = terms("optim_grads_params", "optimizer", stack={"megatron_core": "0.16.1"})
    assert older["gradients"] == pytest.approx(4 * TOTAL / 8, abs=8)
    named = Ledger(
        small(
            parallel=RANKS,
            train=BATCH,
            optimizer={
                "use_megatron_fsdp": True,
                "data_parallel_sharding_strategy": "optim_grads_params",
                "megatron_fsdp_main_grads_dtype": "fp32",
                "megatron_fsdp_main_params_dtype": None,
            },
        )
    ).predict(Boundary.selective())
    step = next(p.terms for p in named.stages[0].phases if (p.iteration, p.phase) == ("steady", "optimizer"))
    assert step["gradients"] == pytest.approx(4 * TOTAL / 8, abs=8)
    assert step["optimizer_state"] == pytest.approx(8 * TOTAL / 8, rel=0.002)


def test_double_buffers_hold_two_layers_weights_and_gradients_for_good() -> None:
    """FixedPoolAllocator, UB_BUFFER_NUM = 2."""
    fields = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params", "fsdp_double_buffer": True}
    steady = {
        p.phase: p.terms
        for p in Ledger(small(parallel=RANKS, train=BATCH, optimizer=fields)).predict(Boundary.selective()).stages[0].phases
        if p.iteration == "steady"
    }
    lasting = 2 * ROOT + 2 * LAYER * (2 + 2)
    assert {phase: steady[phase]["fsdp"] for phase in ("forward", "loss", "optimizer")} == dict.fromkeys(
        ("forward", "loss", "optimizer"), lasting
    )
    assert steady["backward"]["fsdp"] == lasting + 2 * ROOT


def test_a_decoupled_gradient_needs_no_fp32_copy_and_a_smaller_unit_waits_less() -> None:
    fields = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    decoupled = Ledger(small(parallel=RANKS, train=BATCH, optimizer={**fields, "megatron_fsdp_use_decoupled_grad": True}))
    phases = {p.phase: p.terms for p in decoupled.predict(Boundary.selective()).stages[0].phases if p.iteration == "steady"}
    assert "main_gradients" not in phases["optimizer"]
    smaller = Ledger(small(parallel=RANKS, train=BATCH, optimizer={**fields, "suggested_communication_unit_size": 2}))
    phases = {p.phase: p.terms for p in smaller.predict(Boundary.selective()).stages[0].phases if p.iteration == "steady"}
    assert phases["forward"]["fsdp"] == 2 * (ROOT + 2 * LAYER)  # one layer is fetched ahead, however small the unit


UNITS = (0, 5, 5, 5, 5, 0)


def test_units_are_fetched_until_the_prefetch_is_full() -> None:
    flow = Flow(weight_width=2, gradient_width=4, ahead=6, queue=7, copies=1, roots=False)
    assert [flow.forward(UNITS, index) for index in range(6)] == [0, 2 * 15, 2 * 15, 2 * 10, 2 * 5, 0]
    # Backward: weights of the layers before, gradients of those behind, as many as may wait.
    assert flow.backward(UNITS, 5) == 0
    assert flow.backward(UNITS, 4) == 2 * 15 + 4 * 5
    assert flow.backward(UNITS, 3) == 2 * 15 + 4 * (5 + 5)
    assert flow.backward(UNITS, 2) == 2 * 10 + 4 * (7 + 5)
    assert flow.backward(UNITS, 0) == 4 * 7


def test_pytorchs_units_come_one_ahead_and_head_and_embedding_are_units() -> None:
    workload = small(parallel=RANKS, train=BATCH, optimizer={"use_torch_fsdp2": True})
    steady = {
        p.phase: p.terms for p in Ledger(workload).predict(Boundary.selective()).stages[0].phases if p.iteration == "steady"
    }
    assert steady["optimizer"]["weights"] == pytest.approx(2 * TOTAL / 8, abs=8)
    assert steady["optimizer"]["gradients"] == pytest.approx(2 * TOTAL / 8, abs=8)
    head = VOCAB * HIDDEN + HIDDEN
    assert steady["loss"]["fsdp"] == 2 * head
    # The last layer's backward: two layers' weights; its gradients, and the flat input of their reduction.
    assert steady["backward"]["fsdp"] == 2 * 2 * LAYER + 2 * 2 * LAYER


def test_what_is_covered() -> None:
    fsdp = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    assert coverage(small(parallel=RANKS, train=BATCH, optimizer=fsdp)).covered
    assert not coverage(small(parallel=RANKS, train=BATCH, optimizer=fsdp, precision={"fp8": "hybrid"})).covered
    torch = {"use_torch_fsdp2": True}
    assert coverage(small(parallel=RANKS, train=BATCH, optimizer=torch)).covered
    assert not coverage(small(parallel=RANKS, train=BATCH, optimizer=torch, precision={"fp8": "hybrid"})).covered
