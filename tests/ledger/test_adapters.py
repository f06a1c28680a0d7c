"""LoRA: frozen weights, adapters, and what their layers keep."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import FFN, HIDDEN, SEQUENCE, small

from autotune.boundary.boundary import Boundary
from autotune.ledger.coverage import coverage
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak

LORA = {"peft": "lora"}
H = 2 * SEQUENCE * HIDDEN


def loss(preset: str = "dense", **sections: Any) -> PhasePeak:
    found = Ledger(small(preset, **sections)).predict(Boundary.selective())
    return next(peak for peak in found.stages[0].phases if (peak.iteration, peak.phase) == ("steady", "loss"))


def test_only_adapters_have_gradients_and_states() -> None:
    """ParallelLinearAdapter: in [r, columns] and out [rows, r] for each of four layers, twice."""
    rank, found = 32, loss(features=LORA)
    adapter = sum(rank * (rows + columns) for rows, columns in (
        (3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN)
    ))  # fmt: skip
    assert found.terms["gradients"] == 4 * 2 * adapter
    assert found.terms["weights"] == loss().terms["weights"] + 2 * 2 * adapter
    states = found.terms["optimizer_state"]
    assert 12 * 2 * adapter <= states < 12 * 2 * adapter + 3 * 512 * 2 * 8  # blocks of 512 bytes


def test_adapters_keep_the_inputs_that_frozen_layers_do_not() -> None:
    plain, found = loss(), loss(features=LORA)
    middle = 2 * SEQUENCE * 32
    assert found.terms["attention"] - plain.terms["attention"] == 2 * 2 * middle
    assert found.terms["mlp"] - plain.terms["mlp"] == 2 * 2 * middle
    # the frozen output layer keeps no input
    assert plain.terms["norm"] - found.terms["norm"] == H


def test_a_layer_without_adapter_keeps_no_gemm_input() -> None:
    only_qkv = loss(features={**LORA, "peft_target_modules": ("linear_qkv",)})
    everywhere = loss(features=LORA)
    middle = 2 * SEQUENCE * 32
    # fc1's norm output, fc2's activation output; the attention core keeps the projection's input itself
    assert everywhere.terms["norm"] - only_qkv.terms["norm"] == 2 * H
    assert everywhere.terms["mlp"] - only_qkv.terms["mlp"] == 2 * (2 * SEQUENCE * FFN + 2 * middle)
    assert everywhere.terms["attention"] - only_qkv.terms["attention"] == 2 * middle


def test_sequence_parallel_layers_hand_their_gathered_input_to_the_adapter() -> None:
    parallel = {"world_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True}
    plain, found = loss(parallel=parallel), loss(parallel=parallel, features=LORA)
    # of both norms of both layers the whole instead of the half; less the output layer's half
    assert found.terms["norm"] - plain.terms["norm"] == 4 * H // 2 - H // 2


def test_local_experts_share_one_adapter() -> None:
    rank = 32
    experts = loss("moe", features={**LORA, "peft_target_modules": ("linear_fc1",)})
    shared = rank * (2 * 512 + HIDDEN)
    assert experts.terms["gradients"] == 4 * 2 * 2 * shared  # grouped experts and the shared expert, two layers


@pytest.mark.parametrize(
    ("features", "covered"), [(LORA, True), ({"peft": "dora"}, False), ({**LORA, "peft_target_modules": ("in_proj",)}, False)]
)
def test_what_is_covered(features: dict[str, Any], covered: bool) -> None:
    assert coverage(small(features=features)).covered is covered
