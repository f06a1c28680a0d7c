"""Each rule with a case where it speaks and one where it is silent, and its range of revisions."""

from __future__ import annotations

from typing import Any

import pytest
from boundary_cases import DENSE, MOE, MOONLIGHT, NEMOTRON, Architecture, layers, moe, moonlight, nemotron, workload

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import check
from autotune.boundary.findings import Findings
from autotune.boundary.rules import RULES

FULL_1 = Boundary.full("uniform", 1)
HEAD = "d98e8a64"
TE_ATTN = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}
OVERLAP = {"overlap_moe_expert_parallel_comm": True, "expert_model_parallel_size": 8}
OFFLOAD = {"fine_grained_activation_offloading": True, "offload_modules": ("expert_fc1", "core_attn")}
GTP = {
    "cuda_graph_impl": "local",
    "cuda_graph_modules": ("moe_router",),
    "other": {"model.gtp_weight_remat_size": 2},
}
HYPER = {"other": {"model.enable_mhc_connections": True}, "megatron_core": HEAD}


def dense(*modules: str, **settings: Any) -> Findings:
    return check(workload(**settings), Boundary.selective(modules), DENSE, chunk_layers=(24,))


def experts(*modules: str, **settings: Any) -> Findings:
    return check(moe(**settings), Boundary.selective(modules), MOE, chunk_layers=(24,))


def full(**settings: Any) -> Findings:
    return check(workload(**settings), FULL_1, DENSE, chunk_layers=(24,))


def speaks(found: Findings, rule: str) -> bool:
    return any(finding.rule == rule for finding in found.findings)


CASES: list[tuple[str, Findings, Findings]] = [
    ("selective_with_num_layers", check(workload(), Boundary("selective", (), None, 1), DENSE, chunk_layers=(24,)), dense()),
    ("full_without_method", check(workload(), Boundary("full", (), None, 1), DENSE, chunk_layers=(24,)), full()),
    ("full_without_num_layers", check(workload(), Boundary("full", (), "block"), DENSE, chunk_layers=(24,)), full()),
    ("full_num_layers_below_one", check(workload(), Boundary.full("uniform", 0), DENSE, chunk_layers=(24,)), full()),
    ("block_of_no_layers", check(workload(), Boundary.full("block", 0), DENSE, chunk_layers=(24,)), full()),
    ("label_not_accepted", dense("gdn_norm_out", megatron_core="0.18.2"), dense("mlp", megatron_core="0.18.2")),
    ("label_of_unplaced_revision", dense("mhc", megatron_core="0123abcd"), dense("mhc", megatron_core=HEAD)),
    ("label_unknown_to_autotune", dense("gdp_qkv", megatron_core=HEAD), dense("mlp", megatron_core=HEAD)),
    ("moe_act_needs_grouped_gemm", experts("moe_act", moe_grouped_gemm=False), experts("moe_act")),
    ("mla_up_proj_needs_mla", dense("mla_up_proj"), dense("mla_up_proj", multi_latent_attention=True)),
    (
        "gdn_norm_out_needs_gdn",
        dense("gdn_norm_out"),
        dense("gdn_norm_out", experimental_attention_variant="gated_delta_net"),
    ),
    ("mhc_needs_hyper_connections", dense("mhc", megatron_core=HEAD), dense("mhc", **HYPER)),
    ("label_without_site", dense("layernorm"), dense("layernorm", transformer_impl="local")),
    (
        "shared_experts_overlap",
        experts("shared_experts", moe_shared_expert_intermediate_size=64, moe_shared_expert_overlap=True),
        experts("shared_experts", moe_shared_expert_intermediate_size=64),
    ),
    ("ep_overlap_full", full(**OVERLAP), full()),
    ("ep_overlap_moe", experts("moe", **OVERLAP), experts("moe_act", "layernorm", **OVERLAP)),
    (
        "bridge_ep_overlap_moe",
        experts("moe", megatron_core="0.16.1", **OVERLAP),
        experts("moe", megatron_core="0.17.0", **OVERLAP),
    ),
    ("fp8_delayed_scaling", experts("moe_act", fp8="e4m3"), experts("moe_act")),
    (
        "fp8_transformer_engine_version",
        experts("layernorm", fp8="e4m3", fp8_recipe="mxfp8", transformer_engine="2.5.1"),
        experts("layernorm", fp8="e4m3", fp8_recipe="mxfp8"),
    ),
    (
        "fp8_transformer_engine_unknown",
        experts("layernorm", fp8="e4m3", fp8_recipe="mxfp8", transformer_engine=None),
        experts("layernorm", transformer_engine=None),
    ),
    (
        "absorbed_mla_quantized",
        check(
            moonlight(fp8="e4m3", fp8_recipe="mxfp8", experimental_attention_variant="dsa"),
            Boundary.selective(["mla_up_proj"]),
            Architecture("mla", layers((27, "dsa", "moe"))),
            chunk_layers=(27,),
        ),
        check(moonlight(fp8="e4m3"), Boundary.selective(["mla_up_proj"]), MOONLIGHT, chunk_layers=(27,)),
    ),
    ("full_needs_full_iteration_graph", full(**TE_ATTN), full(cuda_graph_impl="full_iteration")),
    (
        "moe_straddles_router_graph",
        experts("moe", cuda_graph_impl="transformer_engine", cuda_graph_modules=("moe_router",)),
        experts("moe", cuda_graph_impl="local", cuda_graph_modules=("moe_router",)),
    ),
    (
        "attention_dropout_in_graph",
        dense("core_attn", attention_dropout=0.1, **TE_ATTN),
        dense("core_attn", attention_dropout=0.1),
    ),
    (
        "hidden_dropout_in_graph",
        dense("mlp", hidden_dropout=0.1, cuda_graph_impl="transformer_engine"),
        dense("mlp", hidden_dropout=0.1, **TE_ATTN),
    ),
    (
        "input_jitter_in_graph",
        experts("moe", cuda_graph_impl="transformer_engine", other={"model.moe_input_jitter_eps": 0.01}),
        experts("moe", other={"model.moe_input_jitter_eps": 0.01}),
    ),
    (
        "checkpoint_refuses_capture",
        dense("mlp", fp8="hybrid", cuda_graph_impl="local", cuda_graph_modules=("mlp",)),
        dense("mlp", cuda_graph_impl="local", cuda_graph_modules=("mlp",)),
    ),
    (
        "sharded_weights_in_local_graph",
        experts("shared_experts", fp8="e4m3", fp8_recipe="mxfp8", moe_shared_expert_intermediate_size=64, **GTP),
        experts("shared_experts", moe_shared_expert_intermediate_size=64, **GTP),
    ),
    ("inert_after_capture", dense("core_attn", **TE_ATTN), dense("mlp", **TE_ATTN)),
    ("cpu_offloading_with_recompute", dense(cpu_offloading=True), dense()),
    (
        "cpu_offloading_with_pipeline",
        dense(cpu_offloading=True, pipeline_model_parallel_size=2, world_size=2),
        dense(cpu_offloading=True),
    ),
    ("offload_inside_moe", experts("moe", **OFFLOAD), experts("moe_act", **OFFLOAD)),
    (
        "offload_inside_moe_unchecked",
        experts("moe", megatron_core="0.18.2", **OFFLOAD),
        experts("moe", megatron_core="0.19.0", **OFFLOAD),
    ),
    (
        "mtp_uniform_groups",
        check(workload(mtp_num_layers=1), Boundary.full("uniform", 2), DENSE, chunk_layers=(24,)),
        full(mtp_num_layers=1),
    ),
    (
        "mtp_block_not_covered",
        check(workload(mtp_num_layers=1), Boundary.full("block", 2), DENSE, chunk_layers=(24,)),
        full(mtp_num_layers=1),
    ),
    (
        "uniform_groups_not_clamped",
        check(workload(megatron_core="0.16.1"), Boundary.full("uniform", 5), DENSE, chunk_layers=(24,)),
        check(workload(megatron_core="0.17.0"), Boundary.full("uniform", 5), DENSE, chunk_layers=(24,)),
    ),
    (
        "uniform_group_clamped",
        check(workload(), Boundary.full("uniform", 24), DENSE, chunk_layers=(24,)),
        full(),
    ),
    (
        "hybrid_stack_ignores_full",
        check(nemotron(megatron_core="0.17.1", cuda_graph_impl="none"), FULL_1, NEMOTRON, chunk_layers=(52,)),
        check(nemotron(megatron_core="0.18.0", cuda_graph_impl="none"), FULL_1, NEMOTRON, chunk_layers=(52,)),
    ),
    (
        "quantized_block_window_shifts",
        check(workload(fp8="e4m3", peft="lora"), Boundary.full("block", 2), DENSE, chunk_layers=(24,)),
        check(workload(fp8="e4m3"), Boundary.full("block", 2), DENSE, chunk_layers=(24,)),
    ),
    (
        "distributed_activations_with_sequence_parallel",
        full(distribute_saved_activations=True, sequence_parallel=True, tensor_model_parallel_size=2, world_size=2),
        full(distribute_saved_activations=True, tensor_model_parallel_size=2, world_size=2),
    ),
    ("distributed_activations", full(distribute_saved_activations=True), full()),
    ("hyper_connections_with_full", full(**HYPER), full(megatron_core=HEAD)),
    ("moe_layer_recompute_with_full", full(other={"model.moe_layer_recompute": True}), full()),
]


@pytest.mark.parametrize(("rule", "spoken", "silent"), CASES, ids=[case[0] for case in CASES])
def test_rule_speaks_where_it_should_only(rule: str, spoken: Findings, silent: Findings) -> None:
    assert speaks(spoken, rule)
    assert not speaks(silent, rule)


def test_every_rule_has_a_case_a_source_and_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert {case[0] for case in CASES} == set(names)
    assert all(rule.source for rule in RULES)


def test_outcomes_follow_the_rules() -> None:
    for rule, spoken, _ in CASES:
        outcome = next(finding.outcome for finding in spoken.findings if finding.rule == rule)
        if outcome in ("invalid", "not_checkable"):
            assert spoken.status in ("invalid", outcome)


def test_control_is_refused_with_cpu_offloading_and_off_is_not() -> None:
    assert dense(cpu_offloading=True).status == "invalid"
    found = check(workload(cpu_offloading=True), Boundary.off(), DENSE, chunk_layers=(24,))
    assert found.status == "distinct"


def test_core_attention_is_not_pruned_inside_a_captured_graph() -> None:
    found = dense("core_attn", **TE_ATTN)
    assert found.status == "distinct"
    assert found.reason == "core_attn acts only before graph capture (a captured region runs without its checkpoint)"


def test_before_the_skip_a_captured_checkpoint_was_captured_too() -> None:
    assert dense("core_attn", megatron_core="0.17.1", transformer_engine="2.12.0", **TE_ATTN).reason == ""
    refused = dense("core_attn", megatron_core="0.17.1", transformer_engine="2.11.0", **TE_ATTN)
    assert refused.status == "invalid"


def test_quantized_mlp_is_captured_with_its_replay() -> None:
    graphs = {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_modules": ("mlp",),
        "fp8": "hybrid",
        "fp8_recipe": "tensorwise",
    }
    assert dense("mlp", transformer_engine="2.17.1", **graphs).reason == ""
    assert dense("mlp", transformer_engine="2.11.0", **graphs).reason == (
        "mlp cannot be captured: CUDA graphs of Transformer Engine before 2.12 differentiate with .grad(), which a reentrant "
        "checkpoint refuses"
    )
    assert "local CUDA graphs" in dense("mlp", transformer_engine="2.17.1", **{**graphs, "cuda_graph_impl": "local"}).reason
    assert dense("mlp", transformer_engine="2.11.0", **{**graphs, "cuda_graph_modules": ("attn",)}).status == "distinct"
