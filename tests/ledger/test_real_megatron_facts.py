"""Peaks of real Megatron Core 0.19.2 models under FakeTensor (world of 8, sequence 4096, one sample), rank 0 of each stage.

Measured on a CPU with pure-torch stand-ins for Transformer Engine's kernels; GiB. Not one of them was used to fit anything.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.workload.workload import Workload

GIB = 2**30
TRAIN = {"seq_length": 4096, "global_batch_size": 4}
SHARDED = {"world_size": 8, "tensor_model_parallel_size": 2, "sequence_parallel": True}
LLAMA: dict[str, Any] = {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_query_groups": 8, "ffn_hidden_size": 14336,
    "vocab_size": 128256,
}  # fmt: skip
MOONLIGHT: dict[str, Any] = {
    "num_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "ffn_hidden_size": 11264, "vocab_size": 163840,
    "multi_latent_attention": True, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
    "qk_layernorm": True, "num_moe_experts": 64, "moe_layer_freq": (0,) + 26 * (1,), "moe_ffn_hidden_size": 1408,
    "moe_router_topk": 6, "moe_shared_expert_intermediate_size": 2816, "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall",
}  # fmt: skip
QWEN: dict[str, Any] = {
    "num_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "num_query_groups": 4, "kv_channels": 128,
    "ffn_hidden_size": 6144, "vocab_size": 151936, "qk_layernorm": True, "num_moe_experts": 128, "moe_ffn_hidden_size": 768,
    "moe_router_topk": 8, "moe_grouped_gemm": True, "moe_token_dispatcher_type": "alltoall",
}  # fmt: skip


def model(fields: dict[str, Any], parallel: dict[str, Any], batch: int = 4) -> Workload:
    return small(parallel=parallel, train={**TRAIN, "global_batch_size": batch}, model=fields)


def gib(workload: Workload, modules: list[str] | str, stage: int = 0) -> float:
    boundary = Boundary.full("uniform", 1) if modules == "full" else Boundary.selective(modules)
    ledger = Ledger(workload, variant="stand_in")
    # Peaks of a first step whose optimizer state had been made before it: no dummy weight gradient was cached yet.
    dummies = ledger._timeline.stages[stage].static.after_backward["workspaces"]
    return (ledger.predict(boundary).stages[stage].peak_bytes - dummies) / GIB


@pytest.mark.parametrize(("modules", "measured"), [([], 44.45), (["mlp"], 38.67), (["core_attn"], 44.41), ("full", 35.66)])
def test_llama_8b(modules: list[str] | str, measured: float) -> None:
    assert gib(model(LLAMA, SHARDED), modules) == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(("modules", "first", "last"), [([], 31.89, 28.63), (["mlp"], 26.33, 25.72)])
def test_llama_8b_on_two_stages(modules: list[str], first: float, last: float) -> None:
    workload = model(LLAMA, {**SHARDED, "pipeline_model_parallel_size": 2}, batch=8)
    assert gib(workload, modules, 0) == pytest.approx(first, rel=0.005)
    assert gib(workload, modules, 1) == pytest.approx(last, rel=0.005)


@pytest.mark.parametrize(
    ("modules", "measured"),
    [
        ([], 45.84),
        (["moe_act"], 44.96),
        (["mla_up_proj"], 44.65),
        (["layernorm"], 45.38),
        (["shared_experts"], 44.96),
        (["moe"], 41.19),
        (["mla_up_proj", "layernorm", "moe_act"], 43.40),
        ("full", 38.99),
    ],
)
def test_moonlight_16b(modules: list[str] | str, measured: float) -> None:
    parallel = {**SHARDED, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1}
    assert gib(model(MOONLIGHT, parallel), modules) == pytest.approx(measured, rel=0.002)


@pytest.mark.parametrize(
    ("modules", "measured"), [([], 97.80), (["moe_act"], 95.55), (["layernorm"], 97.05), (["moe"], 84.91), ("full", 75.86)]
)
def test_qwen3_30b_a3b(modules: list[str] | str, measured: float) -> None:
    workload = model(QWEN, {"world_size": 8, "expert_model_parallel_size": 8}, batch=8)
    assert gib(workload, modules) == pytest.approx(measured, rel=0.004)


def test_states_of_the_three_models() -> None:
    experts = {**SHARDED, "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1}
    for workload, measured in (
        (model(LLAMA, SHARDED), 33.66),
        (model(MOONLIGHT, experts), 36.9),
        (model(QWEN, {"world_size": 8, "expert_model_parallel_size": 8}, batch=8), 71.6),
    ):
        assert Ledger(workload, variant="stand_in").states_bytes() / GIB == pytest.approx(measured, rel=0.002)


def test_moe_and_full_keep_two_hidden_states_a_moe_layer_between_steps() -> None:
    """Measured: 4 MoE layers of 128 tokens and width 256 keep 524,288 bytes more after a step under ``moe``, and each 3,584 bytes
    (probabilities, map and indices of 4 experts) whatever the label."""
    workload = replace(small("moe"), model=replace(small("moe").model, num_layers=4))
    for boundary in (Boundary.selective(["moe"]), Boundary.full("uniform", 1)):
        phases = Ledger(workload, variant="stand_in").predict(boundary).stages[0].phases
        step = next(p for p in phases if (p.iteration, p.phase) == ("steady", "optimizer"))
        assert step.terms["retained"] == 524_288 + 4 * 3_584


def test_retained_states_once_for_each_chunk_of_full_recompute() -> None:
    """Measured on 5 MoE layers: uniform/1 2,621,440, uniform/2 1,572,864, uniform/3 1,048,576 (one dense layer first), more than
    without recompute; the dispatchers' 3,584 bytes a layer are there in any case."""
    workload = small("moe", model={"num_layers": 6, "moe_layer_freq": (0, 1, 1, 1, 1, 1)})
    hidden = 2 * 2 * 128 * 256
    kept = {}
    for layers in (1, 2, 3):
        phases = Ledger(workload, variant="stand_in").predict(Boundary.full("uniform", layers)).stages[0].phases
        kept[layers] = next(p for p in phases if (p.iteration, p.phase) == ("steady", "optimizer")).terms["retained"]
    routing = 5 * 3_584
    assert kept == {1: 5 * hidden + routing, 2: 3 * hidden + routing, 3: 2 * hidden + routing}
