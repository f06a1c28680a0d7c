"""The names of Megatron-LM's arguments: where each lives in a Workload, its default, and its other spellings.

Read from megatron/training/arguments.py and argument_utils.py:ArgumentGroupFactory (which makes arguments of the fields of
TransformerConfig, ModelParallelConfig, OptimizerConfig ...) at Megatron-LM d98e8a64, checked against 24bad8e6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "str", "dtype", "own_dtype", "list", "ints", "pattern"]


@dataclass(frozen=True, slots=True)
class Arg:
    """One argument: the section and field of the Workload it fills, the kind of its value, and what silence means."""

    home: str
    kind: Kind = "int"
    default: Any = None


def _switches(section: str, *names: str, default: bool = False) -> dict[str, Arg]:
    return {name: Arg(f"{section}.{name}", "bool", default) for name in names}


def _numbers(section: str, **defaults: int | None) -> dict[str, Arg]:
    return {name: Arg(f"{section}.{name}", "int", default) for name, default in defaults.items()}


def _words(section: str, **defaults: str | None) -> dict[str, Arg]:
    return {name: Arg(f"{section}.{name}", "str", default) for name, default in defaults.items()}


DIRECT: Mapping[str, Arg] = {
    # Network
    **_numbers(
        "model", num_layers=None, hidden_size=None, num_attention_heads=None, kv_channels=None, max_position_embeddings=0,
        make_vocab_size_divisible_by=128, q_lora_rank=None, kv_lora_rank=32, qk_head_dim=128, qk_pos_emb_head_dim=64,
        v_head_dim=128, original_max_position_embeddings=4096, moe_ffn_hidden_size=None, moe_router_topk=2,
        moe_shared_expert_intermediate_size=None,
        moe_latent_size=None, mamba_state_dim=128, mamba_head_dim=64, mamba_num_groups=8, mamba_num_heads=None,
        linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16,
        linear_num_value_heads=32, mtp_num_layers=None,
    ),
    **_words(
        "model", position_embedding_type="learned_absolute", normalization="LayerNorm", softmax_type="vanilla", rope_type="yarn",
        moe_router_dtype=None, moe_router_score_function="softmax",
        moe_token_dispatcher_type="allgather", moe_flex_dispatcher_backend="deepep",
        experimental_attention_variant=None, hybrid_layer_pattern=None, mtp_hybrid_override_pattern=None,
    ),
    **_switches(
        "model", "qk_layernorm", "attention_output_gate", "multi_latent_attention", "moe_router_enable_expert_bias",
        "moe_router_force_load_balancing", "moe_router_pre_softmax",
        "moe_router_fusion", "moe_shared_expert_gate", "moe_shared_expert_overlap",
        "moe_grouped_gemm", "moe_permute_fusion", "moe_pad_expert_input_to_capacity", "moe_apply_probs_on_input",
        "add_qkv_bias", "mtp_use_repeated_layer",
    ),
    **_switches("model", "add_bias_linear", "use_mamba_mem_eff_path", default=True),
    "hidden_dropout": Arg("model.hidden_dropout", "float", 0.1),
    "attention_dropout": Arg("model.attention_dropout", "float", 0.1),
    "suggested_communication_unit_size": Arg("optimizer.suggested_communication_unit_size"),
    "optimizer_offload_fraction": Arg("optimizer.optimizer_offload_fraction", "float", 1.0),
    "moe_expert_capacity_factor": Arg("model.moe_expert_capacity_factor", "float"),
    "num_experts": Arg("model.num_moe_experts"),
    "moe_layer_freq": Arg("model.moe_layer_freq", "pattern", 1),
    "linear_attention_freq": Arg("model.linear_attention_freq", "pattern"),
    "window_attn_skip_freq": Arg("model.window_attn_skip_freq", "pattern"),
    "window_size": Arg("model.window_size", "ints"),
    "moe_router_load_balancing_type": Arg("model.moe_router_load_balancing_type", "list", "aux_loss"),
    # Layout
    **_numbers(
        "parallel", tensor_model_parallel_size=1, pipeline_model_parallel_size=1, context_parallel_size=1,
        expert_model_parallel_size=1, expert_tensor_parallel_size=None, num_distributed_optimizer_instances=1,
        microbatch_group_size_per_vp_stage=None, num_layers_in_first_pipeline_stage=None,
        num_layers_in_last_pipeline_stage=None,
    ),
    **_switches(
        "parallel", "sequence_parallel", "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"
    ),
    "cp_comm_type": Arg("parallel.cp_comm_type", "list", "p2p"),
    "hierarchical_context_parallel_sizes": Arg("parallel.hierarchical_context_parallel_sizes", "ints"),
    "pipeline_model_parallel_layout": Arg("parallel.pipeline_model_parallel_layout", "str"),
    # Batch
    **_numbers("train", seq_length=None, micro_batch_size=None, global_batch_size=None),
    **_switches("train", "deterministic_mode", "manual_gc"),
    **_switches("train", "create_attention_mask_in_dataloader", default=True),
    # Numbers
    **_words("precision", fp8=None, fp8_recipe="delayed", fp4=None),
    **_numbers("precision", num_layers_at_start_in_bf16=1, num_layers_at_end_in_bf16=1),
    **_switches(
        "precision", "fp8_param", "first_last_layers_bf16", "fp32_residual_connection", "attention_softmax_in_fp32",
        "apply_query_key_layer_scaling", "disable_parameter_transpose_cache", "fp4_param",
    ),
    # Optimizer and data parallelism
    **_words("optimizer", optimizer="adam", data_parallel_sharding_strategy="optim_grads_params"),
    **_switches(
        "optimizer", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
        "reuse_grad_buf_for_mxfp8_param_ag",
        "use_precision_aware_optimizer", "optimizer_cpu_offload", "use_megatron_fsdp", "use_torch_fsdp2",
        "fsdp_double_buffer", "megatron_fsdp_use_decoupled_grad",
    ),
    **{
        name: Arg(f"optimizer.{name}", "dtype", "fp32")
        for name in ("main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    },
    **{
        f"megatron_fsdp_{name}": Arg(f"optimizer.megatron_fsdp_{name}", "own_dtype", default)
        for name, default in (("main_params_dtype", "fp32"), ("main_grads_dtype", None), ("grad_comm_dtype", None))
    },
    "use_layer_wise_param_layout": Arg("optimizer.use_layer_wise_param_layout", "bool", True),
    # Implementation
    **_words(
        "features", transformer_impl="transformer_engine", attention_backend="auto", cross_entropy_fusion_impl="native",
        cuda_graph_impl="none",
    ),
    **_switches("features", "masked_softmax_fusion", "bias_dropout_fusion", "apply_rope_fusion",
                "gradient_accumulation_fusion", default=True),
    **_switches("features", "use_fused_weighted_squared_relu", "use_transformer_engine_op_fuser"),
    **_switches(
        "features", "cross_entropy_loss_fusion", "calculate_per_token_loss", "overlap_moe_expert_parallel_comm",
        "delay_wgrad_compute", "defer_embedding_wgrad_compute", "tp_comm_overlap", "fine_grained_activation_offloading",
        "distribute_saved_activations",
    ),
    **_numbers("features", wgrad_deferral_limit=0, cpu_offloading_num_layers=0, mlp_chunks_for_training=1,
               cuda_graph_warmup_steps=3),
    "overlap_p2p_comm_warmup_flush": Arg("features.overlap_p2p_communication_warmup_flush", "bool", False),
    "cuda_graph_modules": Arg("features.cuda_graph_modules", "list", ()),
    "offload_modules": Arg("features.offload_modules", "list", ()),
}  # fmt: skip
"""Arguments that fill one field as they are."""

_DERIVED: tuple[tuple[str, Kind, Any], ...] = (
    ("ffn_hidden_size", "int", None), ("num_query_groups", "int", None), ("group_query_attention", "bool", False),
    ("swiglu", "bool", False), ("squared_relu", "bool", False), ("quick_geglu", "bool", False),
    ("openai_gelu", "bool", False), ("bias_gelu_fusion", "bool", True), ("bias_swiglu_fusion", "bool", True),
    ("untie_embeddings_and_output_weights", "bool", False), ("add_position_embedding", "bool", True),
    ("use_rotary_position_embeddings", "bool", False), ("encoder_seq_length", "int", None),
    ("encoder_num_layers", "int", None), ("fp16", "bool", False), ("bf16", "bool", False),
    ("grad_reduce_in_bf16", "bool", False), ("accumulate_allreduce_grads_in_fp32", "bool", False),
    ("num_layers_per_virtual_pipeline_stage", "int", None), ("num_virtual_stages_per_pipeline_rank", "int", None),
    ("virtual_pipeline_model_parallel_size", "int", None), ("recompute_activations", "bool", False),
    ("recompute_granularity", "str", None), ("recompute_method", "str", None), ("recompute_num_layers", "int", None),
    ("recompute_modules", "list", None), ("enable_cuda_graph", "bool", False), ("external_cuda_graph", "bool", False),
    ("moe_enable_deepep", "bool", False), ("tokenizer_type", "str", None), ("vocab_size", "int", None),
    ("padded_vocab_size", "int", None), ("vocab_extra_ids", "int", 0), ("cpu_offloading", "bool", False),
    ("hybrid_override_pattern", "str", None), ("world_size", "int", None), ("data_parallel_size", "int", None),
    ("num_microbatches", "int", None), ("step_batch_size_schedule", "str", None), ("tokenizer_model", "str", None),
    ("spec", "list", None), ("gated_linear_unit", "bool", False),
    ("activation_func", "str", None), ("bias_activation_fusion", "bool", None), ("params_dtype", "dtype", None),
    ("grad_reduce_in_fp32", "bool", None), ("moe_layer_recompute", "bool", False), ("is_hybrid_model", "bool", False),
    ("hybrid_attention_ratio", "float", 0.0), ("hybrid_mlp_ratio", "float", 0.0),
)  # fmt: skip

DERIVED: Mapping[str, Arg] = {name: Arg("", kind, default) for name, kind, default in _DERIVED}
"""Arguments that decide a field together with others."""

DEFAULTS: Mapping[str, Any] = {
    "outer_dp_sharding_strategy": "no_shard",
    "export_model_type": "GPTModel",
    "muon_scalar_optimizer": "adam",
}
"""Arguments that say nothing when they have this value, Megatron's default; any other is one that nobody has read about."""

ALIASES: Mapping[str, str] = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size",
    "dp": "data_parallel_size",
    "num_moe_experts": "num_experts",
    "fp8_format": "fp8",
    "fp8_param_gather": "fp8_param",
    "fp4_format": "fp4",
    "fp4_param_gather": "fp4_param",
    "cuda_graph_scope": "cuda_graph_modules",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
    "overlap_p2p_communication_warmup_flush": "overlap_p2p_comm_warmup_flush",
    "use_custom_fsdp": "use_megatron_fsdp",
}
"""Other spellings: layout shorthands, dataclass fields, and names of other revisions."""

NEGATED: Mapping[str, str] = {
    "disable_bias_linear": "add_bias_linear",
    "disable_mamba_mem_eff_path": "use_mamba_mem_eff_path",
    "no_rope_fusion": "apply_rope_fusion",
    "no_position_embedding": "add_position_embedding",
    "share_embeddings_and_output_weights": "untie_embeddings_and_output_weights",
}
"""Switches that turn off what the other name turns on; ``no_X`` and ``disable_X`` of a known switch X are understood anyway."""


def canonical(name: str) -> tuple[str, bool]:
    """The name of an argument without dashes, shorthands and negations.

    Returns:
        The canonical name, and whether the given spelling negates it (``--no-bias-gelu-fusion``).
    """
    plain = name.lstrip("-").replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain in DIRECT or plain in DERIVED:
        return plain, False
    if plain in NEGATED:
        return NEGATED[plain], True
    for prefix in ("no_", "disable_"):
        positive = plain.removeprefix(prefix)
        if positive != plain and positive in {**DIRECT, **DERIVED}:
            return positive, True
    return plain, False
