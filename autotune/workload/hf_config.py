"""A Hugging Face ``config.json`` plus a layout, read without Bridge.

Sizes come from the config; what a config does not say (precision, optimizer, kernels) is what Bridge's pretraining
recipes have in common (recipes/common.py:_pretrain_common and the model bridges of Bridge 0.6), and is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.records import from_builtins
from autotune.workload.hydra_values import parse_override
from autotune.workload.overrides import apply
from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Source, Train, Workload

Config = Mapping[str, Any]
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu", "relu2": "squared_relu"}
_GDN_FIELDS = (
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
)
_ASSUMED = (
    "assumed as in Bridge's pretraining recipes: BF16 with FP32 gradients, Adam in FP32 states, distributed optimizer "
    "with overlap, Transformer Engine, TE cross entropy, no CUDA graphs"
)


def workload_from_config(config: Config, *, reference: str, overrides: Sequence[str] = ()) -> Workload:
    """Make a workload of a Hugging Face config and a layout.

    Args:
        config: Content of ``config.json``.
        reference: Its path.
        overrides: At least ``world_size=N``; the layout, ``train.seq_length`` and the batch as Bridge paths.

    Raises:
        RequestError: An unknown ``model_type``, a missing size, no ``world_size``, or a bad override.
    """
    model_type = str(config.get("model_type"))
    family = FAMILIES.get(model_type)
    if family is None:
        raise RequestError(reference, model_type, "no reader for this model_type", f"known are {', '.join(sorted(FAMILIES))}")
    given = {parse_override(text).path: parse_override(text).value for text in overrides}
    if "world_size" not in given:
        raise RequestError("world_size", None, "a Hugging Face config names no number of GPUs", "add world_size=N")
    model = {**_common(config, reference), **family(config)}
    seq_length = min(int(config.get("max_position_embeddings") or 4096), 4096)
    workload = Workload(
        name=str(config.get("_name_or_path") or Path(reference).parent.name or model_type),
        source=Source(kind="hf_config", reference=reference, notes=(_ASSUMED, f"sequence length {seq_length} unless given")),
        model=from_builtins(model, Model, setting=reference),
        parallel=Parallel(world_size=int(given["world_size"])),
        train=Train(seq_length=seq_length, global_batch_size=1, create_attention_mask_in_dataloader=False, manual_gc=True),
        precision=Precision(num_layers_at_start_in_bf16=0, num_layers_at_end_in_bf16=0, attention_softmax_in_fp32=False),
        optimizer=Optimizer(use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True),
        features=Features(
            bias_activation_fusion=True,
            masked_softmax_fusion=True,
            bias_dropout_fusion=True,
            apply_rope_fusion=not model.get("multi_latent_attention", False),
            gradient_accumulation_fusion=True,
            cross_entropy_loss_fusion=True,
            cross_entropy_fusion_impl="te",
        ),
    )
    return _with_defaults(apply(workload, overrides), set(given))


def _with_defaults(workload: Workload, given: set[str]) -> Workload:
    """What follows from the layout where the user did not say it."""
    parallel, train = workload.parallel, workload.train
    if "model.sequence_parallel" not in given and parallel.tensor_model_parallel_size > 1:
        parallel = replace(parallel, sequence_parallel=True)
    if parallel.expert_tensor_parallel_size is None and parallel.expert_model_parallel_size > 1:
        parallel = replace(parallel, expert_tensor_parallel_size=1)
    if "train.global_batch_size" not in given:
        train = replace(train, global_batch_size=train.micro_batch_size * max(parallel.data_parallel_size, 1))
    return replace(workload, parallel=parallel, train=train)


def _common(config: Config, reference: str) -> dict[str, Any]:
    for field in ("hidden_size", "num_attention_heads", "vocab_size"):
        if config.get(field) is None:
            raise RequestError(reference, None, f"lacks {field}", "give the model's whole config.json")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    activation = config.get("hidden_act") or config.get("mlp_hidden_act") or "silu"
    return {
        "num_layers": config.get("num_hidden_layers") or len(config.get("hybrid_override_pattern") or ""),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads") or heads,
        "kv_channels": config.get("head_dim") or hidden // heads,
        "ffn_hidden_size": config.get("intermediate_size") or 4 * hidden,
        "vocab_size": config["vocab_size"],
        "should_pad_vocab": True,
        "share_embeddings_and_output_weights": bool(config.get("tie_word_embeddings", False)),
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "gated_linear_unit": activation in ("silu", "swish"),
        "activation_func": _ACTIVATIONS.get(str(activation), str(activation)),
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": float(config.get("attention_dropout") or 0.0),
    }


def _moe(config: Config, **more: Any) -> dict[str, Any]:
    return {
        "num_moe_experts": config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts"),
        "moe_router_topk": config.get("num_experts_per_tok") or config.get("experts_per_token"),
        "moe_ffn_hidden_size": config.get("moe_intermediate_size") or config.get("intermediate_size"),
        "moe_grouped_gemm": True,
        "moe_permute_fusion": True,
        "moe_token_dispatcher_type": "alltoall",
        **more,
    }


def _llama(config: Config) -> dict[str, Any]:
    return {}


def _qwen2(config: Config) -> dict[str, Any]:
    return {"add_qkv_bias": True}


def _qwen3(config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True}


def _qwen3_moe(config: Config) -> dict[str, Any]:
    return {"qk_layernorm": True, **_moe(config)}


def _qwen3_next(config: Config) -> dict[str, Any]:
    return {
        "qk_layernorm": True,
        "attention_output_gate": True,
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": config.get("full_attention_interval", 4),
        **{name: config[name] for name in _GDN_FIELDS if name in config},
        **_moe(
            config,
            moe_shared_expert_intermediate_size=config.get("shared_expert_intermediate_size"),
            moe_shared_expert_gate=True,
            moe_router_dtype="fp32",
        ),
    }


def _deepseek(config: Config) -> dict[str, Any]:
    dense, layers = config.get("first_k_dense_replace", 0), config["num_hidden_layers"]
    shared = config.get("n_shared_experts") or 0
    return {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "kv_channels": config["qk_rope_head_dim"],  # what transformers calls head_dim; attention does not read it here
        "make_vocab_size_divisible_by": 1280,
        "q_lora_rank": config.get("q_lora_rank"),
        "kv_lora_rank": config["kv_lora_rank"],
        "qk_head_dim": config["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": config["qk_rope_head_dim"],
        "v_head_dim": config["v_head_dim"],
        "mtp_num_layers": config.get("num_nextn_predict_layers") or None,
        **_moe(
            config,
            moe_layer_freq=[0] * dense + [1] * (layers - dense),
            moe_shared_expert_intermediate_size=shared * config["moe_intermediate_size"] or None,
            moe_shared_expert_overlap=shared > 0,
            moe_router_load_balancing_type="seq_aux_loss",
            moe_router_dtype="fp32",
            moe_router_score_function=config.get("scoring_func", "softmax"),
            moe_router_pre_softmax=True,
            moe_router_enable_expert_bias=config.get("topk_method") == "noaux_tc",
        ),
    }


def _gpt_oss(config: Config) -> dict[str, Any]:
    return {
        "position_embedding_type": "yarn",
        "add_bias_linear": True,
        "activation_func": "quick_gelu",
        "gated_linear_unit": True,
        "softmax_type": "learnable",
        "window_size": [config.get("sliding_window", 128) - 1, 0],
        "window_attn_skip_freq": 2,
        **_moe(config, moe_router_load_balancing_type="none"),
    }


def _nemotron_h(config: Config) -> dict[str, Any]:
    return {
        "hybrid_layer_pattern": config["hybrid_override_pattern"],
        "position_embedding_type": "none",
        "gated_linear_unit": False,
        "mamba_num_heads": config.get("mamba_num_heads"),
        "mamba_head_dim": config.get("mamba_head_dim", 64),
        "mamba_state_dim": config.get("ssm_state_size", 128),
        "mamba_num_groups": config.get("n_groups", 8),
        "moe_latent_size": config.get("moe_latent_size"),
        **(
            _moe(
                config,
                moe_shared_expert_intermediate_size=config.get("moe_shared_expert_intermediate_size"),
                moe_router_load_balancing_type="seq_aux_loss",
                moe_router_dtype="fp32",
                moe_router_score_function="sigmoid",
                moe_router_enable_expert_bias=True,
            )
            if "E" in config["hybrid_override_pattern"]
            else {}
        ),
    }


FAMILIES: Mapping[str, Callable[[Config], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _moe,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "nemotron_h": _nemotron_h,
}
"""Facts beyond the common ones, by ``model_type``; sources are the model bridges of Bridge 0.6 (models/<family>)."""
