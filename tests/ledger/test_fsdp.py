"""Megatron-FSDP: what each strategy shards, and what is whole while layers run."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import FFN, HIDDEN, VOCAB, small

from autotune.boundary.boundary import Boundary
from autotune.ledger.block import Param
from autotune.ledger.coverage import coverage
from autotune.ledger.fsdp import Sharding, gathered_weights, waiting_gradients
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
    assert found["gradients"] == pytest.approx(4 * TOTAL / gradients, abs=8)
    assert found["optimizer_state"] == pytest.approx(12 * TOTAL / states, rel=0.002)
    assert "fsdp" not in found


def test_sharding_states_alone_is_the_distributed_optimizer() -> None:
    assert terms("optim", "loss") == terms(None, "loss")


def test_small_models_are_whole_while_layers_run() -> None:
    """The prefetch and the queue hold 10^9 elements at least: all of a small model."""
    assert terms("optim_grads_params", "loss")["fsdp"] == 2 * TOTAL
    assert terms("optim_grads_params", "backward")["fsdp"] == (2 + 4) * TOTAL
    assert terms("optim_grads", "loss").get("fsdp", 0) == 0
    assert terms("optim_grads", "backward")["fsdp"] == 4 * TOTAL


def test_large_layers_are_fetched_one_ahead() -> None:
    unit = 10**9
    params = [Param(name="mlp.fc1", shape=(unit,), copies=10), Param(name="head.output", shape=(5,))]
    whole = Sharding(weights=True, gradients=True, states=True)
    assert gathered_weights(params, unit, whole, width=2) == 2 * (5 + 2 * unit)
    assert waiting_gradients(params, unit, whole, width=4) == 4 * 3 * unit
    # 10^9 elements of gradients may wait, and half as many weights come ahead, however small a layer is
    unit = 2 * 10**8
    params = [Param(name="mlp.fc1", shape=(unit,), copies=40)]
    assert gathered_weights(params, unit, whole, width=2) == 2 * (1 + 3) * unit
    assert waiting_gradients(params, unit, whole, width=4) == 4 * (10**9 + unit)


def test_what_is_covered() -> None:
    fsdp = {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}
    assert coverage(small(parallel=RANKS, train=BATCH, optimizer=fsdp)).covered
    assert not coverage(small(parallel=RANKS, train=BATCH, optimizer=fsdp, precision={"fp8": "hybrid"})).covered
    assert not coverage(small(parallel=RANKS, train=BATCH, optimizer={"use_torch_fsdp2": True})).covered
