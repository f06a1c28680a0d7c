"""What of a workload the ledger does not know, by name. A prediction that silently ignores a setting is worse than none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autotune.ledger.peft import ADAPTER_TARGETS
from autotune.ledger.prediction import Coverage
from autotune.workload.neutral import NEUTRAL
from autotune.workload.neutral_args import NEUTRAL_ARGS
from autotune.workload.workload import Workload

_OPTIMIZERS = {"adam", "sgd", "muon", "dist_muon", "lion"}
_POSITIONS = {"learned_absolute", "rope", "mrope", "yarn", "none"}
_VARIANTS = {None, "gdn", "gated_delta_net"}
_LAYERS = set("M*-EG+|/")  # Mamba, attention, MLP, MoE, GDN, MLA; not DSA, whose indexer is not modelled

_COMPILER = {"container": (25, 3), "torch": (2, 7)}
"""First software in which what torch.compile makes of the fused loss was compared with measured peaks."""


def _old_compiler(workload: Workload) -> bool:
    from autotune.ledger.stack import version_tuple

    own = {name: version_tuple(getattr(workload.stack, name)) for name in _COMPILER}
    return any(found is not None and found < _COMPILER[name] for name, found in own.items())


_Rule = tuple[str, Callable[[Workload], bool], str]

_RULES: tuple[_Rule, ...] = (
    ("features.peft", lambda w: w.features.peft not in (None, "lora"), "only LoRA's adapters are modelled"),
    (
        "features.peft_target_modules",
        lambda w: w.features.peft is not None and not set(w.features.peft_target_modules) <= ADAPTER_TARGETS,
        f"only {', '.join(sorted(ADAPTER_TARGETS))} are modelled",
    ),
    (
        "features.peft",
        lambda w: w.features.peft is not None and (w.precision.fp8 or w.precision.fp4) is not None,
        "what frozen FP8 or FP4 layers keep is not modelled",
    ),
    (
        "features.offload_modules",
        lambda w: w.features.fine_grained_activation_offloading and "fused_group_mlp" in w.features.offload_modules,
        "what the fused grouped MLP saves is not modelled",
    ),
    ("features.mlp_chunks_for_training", lambda w: w.features.mlp_chunks_for_training > 1, "chunked MLP is not modelled"),
    (
        "features.transformer_impl",
        lambda w: w.features.transformer_impl not in {"transformer_engine", "local"},
        "only transformer_engine and local are modelled",
    ),
    (
        "precision.disable_parameter_transpose_cache",
        lambda w: w.precision.fp8 is not None and not w.precision.fp8_param and w.precision.disable_parameter_transpose_cache,
        "how many quantized copies of a weight are in flight is not modelled",
    ),
    (
        "precision.fp32_residual_connection",
        lambda w: w.precision.fp32_residual_connection,
        "4-byte residuals are not modelled",
    ),
    (
        "optimizer.optimizer",
        lambda w: w.optimizer.optimizer not in _OPTIMIZERS,
        f"only {', '.join(sorted(_OPTIMIZERS))} are modelled",
    ),
    (
        "features.use_transformer_engine_op_fuser",
        lambda w: w.features.use_transformer_engine_op_fuser and (w.precision.fp8 or w.precision.fp4) is not None,
        "what fused operations keep in FP8 or FP4 is not modelled",
    ),
    (
        "optimizer.use_torch_fsdp2",
        lambda w: w.optimizer.use_torch_fsdp2 and (w.precision.fp8 or w.precision.fp4) is not None,
        "FP8 or FP4 copies of sharded weights are not modelled",
    ),
    (
        "optimizer.use_megatron_fsdp",
        lambda w: w.optimizer.use_megatron_fsdp and (w.precision.fp8 or w.precision.fp4) is not None,
        "FP8 or FP4 copies of sharded weights are not modelled",
    ),
    (
        "features.cross_entropy_fusion_impl",
        lambda w: w.features.cross_entropy_loss_fusion and w.features.cross_entropy_fusion_impl == "native" and _old_compiler(w),
        "what compilers before PyTorch 2.7 (container 25.03) make of the fused loss is not modelled",
    ),
    (
        "model.experimental_attention_variant",
        lambda w: w.model.experimental_attention_variant not in _VARIANTS,
        "only gated delta net is modelled; sparse attention's indexer, its scores and its top-k are not",
    ),
    (
        "model.position_embedding_type",
        lambda w: w.model.position_embedding_type not in _POSITIONS,
        f"only {', '.join(sorted(_POSITIONS))} are modelled",
    ),
    (
        "model.hybrid_layer_pattern",
        lambda w: not set(w.model.hybrid_layer_pattern or "") <= _LAYERS,
        "the pattern has a layer kind that is not modelled",
    ),
)


UNREAD: Mapping[str, str] = {
    "model.activation_func": "a gated or plain activation keeps the same storages whichever function it is",
    "model.window_size": "a window masks scores inside the kernel; what it saves has the same size",
    "model.window_attn_skip_freq": "a window masks scores inside the kernel; what it saves has the same size",
    "model.moe_router_enable_expert_bias": "one number an expert",
    "model.moe_router_fusion": "one kernel instead of several over the same [tokens, experts] scores",
    "model.moe_flex_dispatcher_backend": "both backends hand the same permuted tokens to the experts",
    "parallel.expert_tensor_parallel_size": "read as Parallel.etp",
    "parallel.hierarchical_context_parallel_sizes": "how the exchange is staged; what attention saves follows cp_comm_type",
    "train.global_batch_size": "read as Workload.num_microbatches",
    "train.manual_gc": "when Python collects; what a step keeps is freed by reference counts",
    "precision.num_layers_at_start_in_bf16": "acts with first_last_layers_bf16 only",
    "precision.num_layers_at_end_in_bf16": "acts with first_last_layers_bf16 only",
    "optimizer.reuse_grad_buf_for_mxfp8_param_ag": "MXFP8 parameters have storage of their own and share the gradient buffer "
    "either way (param_and_grad_buffer.py:_ParamAndGradBuffer.__init__ at 24bad8e6)",
    "optimizer.overlap_grad_reduce": "the one gradient buffer is reduced in place, in buckets",
    "optimizer.overlap_param_gather": "parameters are gathered in place, in buckets",
    "optimizer.main_grads_dtype": "precision.grad_dtype says it",
    "features.bias_dropout_fusion": "fused or not, dropout keeps one mask",
    "features.calculate_per_token_loss": "scales the loss by a count of tokens",
    "features.overlap_p2p_communication_warmup_flush": "when stage tensors are sent; how many are in flight has its own spread",
}
"""Fields of a Workload that the ledger need not read, each with its reason; all others are read or named by a rule."""


GAPS: Mapping[str, str] = {
    "moe_paged_stash": "the stash is as large as its own capacity setting, and experts run in it",
    **dict.fromkeys(
        (
            "moe_expert_rank_capacity_factor",
            "moe_paged_stash_buffer_size_factor_cpu",
            "moe_paged_stash_buffer_size_factor_cuda",
        ),
        "sizes the paged stash",
    ),
    "fp8_dot_product_attention": "what attention in FP8 keeps is not modelled",
    "fp8_output_proj": "what an output layer in FP8 keeps is not modelled",
    "fsdp_manual_registration": "registered buffers are not modelled",
    "megatron_fsdp_cuda_graph_mode": "sharded weights under CUDA graphs are not modelled",
    "min_offloaded_tensor_size": "the ledger offloads tensors from 2^20 elements on",
    "activation_offload_fraction": "which groups of a chunk stay is not modelled",
    "delta_offload_bytes_across_pp_ranks": "which groups of a stage stay is not modelled",
    "delay_offload_until_cuda_graph": "what waits for a replay is not modelled",
    "cpu_offloading_weights": "weights on the host are not modelled",
    "export_kd_cfg": "the teacher's weights and activations are in no argument",
    "export_kd_teacher_load": "the teacher's weights and activations are in no argument",
    "bert_no_binary_head": "encoders are not modelled",
    "decoder_num_layers": "models with an encoder and a decoder are not modelled",
    "decoder_seq_length": "models with an encoder and a decoder are not modelled",
    "use_legacy_models": "the layers of Megatron-LM before Megatron Core are not modelled",
    "flextron": "nested widths and their routers are not modelled",
    **dict.fromkeys(
        ("dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk", "dsa_indexer_loss_coeff"),
        "sparse attention's indexer, its scores and its top-k are not modelled",
    ),
    "nccl_ub": "registered buffers are not modelled",
    "outer_dp_sharding_strategy": "FSDP's second sharding is not modelled",
    "ep_overlap_early_attn_memory_release": "the other order of a pair's nodes is not modelled",
    "cuda_graph_retain_backward_graph": "a capture that keeps its autograd graph keeps its tensors, which is not modelled",
    "sequence_parallel_input_regather": "adapters that gather again in backward are not modelled",
    "share_expert_adapters": "one adapter for each local expert is not modelled",
    "experts_shared_outer_loras": "adapters shared in part are not modelled",
    "enable_hyper_connections": "the streams of hyper-connections are not modelled",
}
"""Settings without a field in a Workload that move memory in a way the ledger does not know, each with what is missing."""


def coverage(workload: Workload) -> Coverage:
    """Whether the ledger knows everything about a workload.

    Returns:
        Every setting that it does not know, by its name, with a word on why.
    """
    reasons = [f"{name} ({GAPS.get(_leaf(name), 'never heard of')})" for name in workload.other if not _neutral(name)]
    reasons += [f"{name}={_value(workload, name)} ({why})" for name, applies, why in _RULES if applies(workload)]
    return Coverage(covered=not reasons, reasons=tuple(reasons))


def _neutral(name: str) -> bool:
    return _leaf(name) in NEUTRAL or _leaf(name) in NEUTRAL_ARGS


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1].lstrip("-").replace("-", "_")


def _value(workload: Workload, name: str) -> object:
    section, _, field = name.partition(".")
    return getattr(getattr(workload, section), field)
