"""Small workloads for tests of the ledger: every architecture, one rank, sizes that a person can multiply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Source, Stack, Train, Workload

SEQUENCE, HIDDEN, LAYERS, FFN, VOCAB = 128, 256, 2, 1024, 1024
BASE: dict[str, Any] = {
    "num_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": 8, "ffn_hidden_size": FFN, "vocab_size": VOCAB,
    "position_embedding_type": "rope", "normalization": "RMSNorm", "gated_linear_unit": True, "activation_func": "silu",
    "add_bias_linear": False, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
MOE: dict[str, Any] = {
    "num_moe_experts": 4, "moe_ffn_hidden_size": 512, "moe_router_topk": 2, "moe_grouped_gemm": True,
    "moe_token_dispatcher_type": "alltoall", "moe_shared_expert_intermediate_size": 512,
}  # fmt: skip
MLA: dict[str, Any] = {
    "multi_latent_attention": True, "kv_lora_rank": 64, "qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 32,
    "qk_layernorm": True,
}  # fmt: skip
GDN: dict[str, Any] = {
    "experimental_attention_variant": "gated_delta_net", "linear_attention_freq": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "hybrid_layer_pattern": "M*-", "num_layers": 3, "mamba_num_heads": 8, "mamba_head_dim": 64, "mamba_state_dim": 32,
    "mamba_num_groups": 2, "position_embedding_type": "none", "num_query_groups": 2,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "dense": BASE,
    "gqa": {**BASE, "num_query_groups": 2},
    "gqa_qk_norm": {**BASE, "num_query_groups": 2, "qk_layernorm": True},
    "output_gate": {**BASE, "num_query_groups": 2, "attention_output_gate": True},
    "moe": {**BASE, **MOE},
    "moe_fp32_router": {**BASE, **MOE, "moe_router_dtype": "fp32", "moe_router_score_function": "sigmoid"},
    "moe_gathered": {**BASE, **MOE, "moe_token_dispatcher_type": "allgather"},
    "moe_squared_relu": {
        **BASE,
        **MOE,
        "gated_linear_unit": False,
        "activation_func": "squared_relu",
        "moe_router_dtype": "fp32",
    },
    "mla": {**BASE, **MLA},
    "mla_query_latent": {**BASE, **MLA, "q_lora_rank": 96},
    "mla_moe": {**BASE, **MLA, **MOE, "moe_layer_freq": (0, 1)},
    "gdn": {**BASE, **GDN},
    "hybrid": {**BASE, **HYBRID},
}


def small(
    preset: str = "dense", *, parallel: dict[str, Any] | None = None, train: dict[str, Any] | None = None, **sections: Any
) -> Workload:
    """A preset with changes; ``sections`` replaces fields of ``model``, ``features``, ``optimizer``, ``precision``, ``stack``."""
    workload = Workload(
        name=preset,
        source=Source(kind="file", reference="tests"),
        model=Model(**PRESETS[preset]),
        parallel=Parallel(**{"world_size": 1, **(parallel or {})}),
        train=Train(
            **{"seq_length": SEQUENCE, "global_batch_size": 1, "create_attention_mask_in_dataloader": False, **(train or {})}
        ),
        features=Features(attention_backend="fused", bias_activation_fusion=True, gradient_accumulation_fusion=True),
        optimizer=Optimizer(use_distributed_optimizer=True),
        precision=Precision(),
        stack=Stack(megatron_core="0.19.2", transformer_engine="2.17.1"),
        env_vars={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    for section, fields in sections.items():
        workload = replace(workload, **{section: replace(getattr(workload, section), **fields)})
    return workload
