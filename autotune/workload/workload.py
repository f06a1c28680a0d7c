"""The Workload: everything that is trained, but for the recompute setting.

Fields carry Megatron's names (TransformerConfig, ModelParallelConfig, OptimizerConfig, DistributedDataParallelConfig)
and hold *finalised* values: those of the run, not of the recipe's text. Defaults are Megatron Core's dataclass defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from autotune.records import digest

Dtype = Literal["fp32", "bf16", "fp16", "fp8"]
DTYPE_BYTES: Mapping[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Facts of the network. Sizes are whole, before any sharding."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    vocab_size: int
    """Size of the tokenizer's vocabulary, before padding to a multiple of make_vocab_size_divisible_by * tp."""
    should_pad_vocab: bool = True
    make_vocab_size_divisible_by: int = 128
    num_query_groups: int | None = None
    kv_channels: int | None = None
    share_embeddings_and_output_weights: bool = False
    position_embedding_type: str = "learned_absolute"
    max_position_embeddings: int = 0
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    gated_linear_unit: bool = False
    activation_func: str = "gelu"
    add_bias_linear: bool = True
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    attention_output_gate: bool = False
    softmax_type: str = "vanilla"
    window_size: tuple[int, int] | None = None
    window_attn_skip_freq: int | tuple[int, ...] | None = None
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    # Multi-latent attention
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    rope_type: str = "yarn"
    """Of multi-latent attention; ``rope`` keeps no tables of cosines and sines."""
    original_max_position_embeddings: int = 4096
    # Mixture of experts
    num_moe_experts: int | None = None
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_ffn_hidden_size: int | None = None
    moe_router_topk: int = 2
    moe_router_dtype: str | None = None
    moe_router_score_function: str = "softmax"
    moe_router_pre_softmax: bool = False
    moe_router_load_balancing_type: str | tuple[str, ...] = "aux_loss"
    moe_router_enable_expert_bias: bool = False
    moe_router_force_load_balancing: bool = False
    moe_router_fusion: bool = False
    moe_shared_expert_intermediate_size: int | None = None
    moe_shared_expert_gate: bool = False
    moe_shared_expert_overlap: bool = False
    moe_latent_size: int | None = None
    moe_grouped_gemm: bool = False
    moe_permute_fusion: bool = False
    moe_token_dispatcher_type: str = "allgather"
    moe_flex_dispatcher_backend: str = "deepep"
    moe_expert_capacity_factor: float | None = None
    moe_pad_expert_input_to_capacity: bool = False
    moe_apply_probs_on_input: bool = False
    # Hybrid (Mamba) and GDN
    hybrid_layer_pattern: str | None = None
    """One character a layer as megatron/core/models/hybrid/hybrid_layer_allocation.py spells them, or None."""
    mamba_state_dim: int = 128
    mamba_head_dim: int = 64
    mamba_num_groups: int = 8
    mamba_num_heads: int | None = None
    use_mamba_mem_eff_path: bool = True
    experimental_attention_variant: str | None = None
    linear_attention_freq: int | tuple[int, ...] | None = None
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    # Multi-token prediction
    mtp_num_layers: int | None = None
    mtp_use_repeated_layer: bool = False
    """One MTP layer's parameters serve all depths."""
    mtp_hybrid_override_pattern: str | None = None
    """Layer pattern of one MTP depth of a hybrid stack, where ``hybrid_layer_pattern`` does not spell it after ``/``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The layout. ``data_parallel_size`` follows from the world size."""

    world_size: int
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    sequence_parallel: bool = False
    cp_comm_type: str | tuple[str, ...] | None = None
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | tuple[tuple[str, ...], ...] | None = None
    """Megatron's layout string, or its list form flattened to one tuple of layer names per (virtual) stage."""
    microbatch_group_size_per_vp_stage: int | None = None
    num_distributed_optimizer_instances: int = 1

    @property
    def data_parallel_size(self) -> int:
        """World size over tp * pp * cp."""
        return self.world_size // (
            self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        )

    @property
    def etp(self) -> int:
        """Expert tensor parallel size; Megatron's default is tp."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def expert_data_parallel_size(self) -> int:
        """World size over etp * ep * pp."""
        return self.world_size // (self.etp * self.expert_model_parallel_size * self.pipeline_model_parallel_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Batch and sequence."""

    seq_length: int
    micro_batch_size: int = 1
    global_batch_size: int
    create_attention_mask_in_dataloader: bool = True
    """Whether the data loader makes a dense [1, 1, s, s] mask for each sample."""
    deterministic_mode: bool = False
    manual_gc: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Numbers and their widths."""

    params_dtype: Dtype = "bf16"
    grad_dtype: Dtype = "fp32"
    """Dtype of the gradient buffer (ddp.grad_reduce_in_fp32, or fp32 accumulation)."""
    fp8: str | None = None
    fp8_recipe: str = "delayed"
    fp8_param: bool = False
    disable_parameter_transpose_cache: bool = False
    """Transformer Engine keeps no transposed copy of FP8 weights."""
    fp4: str | None = None
    fp4_param: bool = False
    """Weights are NVFP4 tensors of their own instead of copies beside BF16."""
    keep_mtp_spec_in_bf16: bool = False
    """Layers of multi-token prediction stay in BF16."""
    first_last_layers_bf16: bool = False
    num_layers_at_start_in_bf16: int = 1
    num_layers_at_end_in_bf16: int = 1
    fp32_residual_connection: bool = False
    attention_softmax_in_fp32: bool = True
    apply_query_key_layer_scaling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Optimizer and data-parallel settings."""

    optimizer: str = "adam"
    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    use_precision_aware_optimizer: bool = False
    main_params_dtype: Dtype = "fp32"
    main_grads_dtype: Dtype = "fp32"
    exp_avg_dtype: Dtype = "fp32"
    exp_avg_sq_dtype: Dtype = "fp32"
    fp8_recipe: str | None = None
    """OptimizerConfig.fp8_recipe: Megatron Core takes the precision-aware fast path only for None or delayed."""
    optimizer_cpu_offload: bool = False
    optimizer_offload_fraction: float = 0.0
    """Share of the parameters whose optimizer state lives on the host under optimizer_cpu_offload."""
    use_megatron_fsdp: bool = False
    use_torch_fsdp2: bool = False
    use_layer_wise_param_layout: bool = True
    """Muon's layer-wise distributed optimizer takes whole matrices only and leaves all else to the distributed optimizer; off, it
    deals out whole parameters of every kind."""
    data_parallel_sharding_strategy: str = "no_shard"
    megatron_fsdp_main_params_dtype: Dtype | None = "fp32"
    """Dtype of Megatron-FSDP's main weights; None: it has none but the weights themselves."""
    megatron_fsdp_main_grads_dtype: Dtype | None = None
    """Dtype in which Megatron-FSDP accumulates gradients; None: that of the parameters."""
    megatron_fsdp_grad_comm_dtype: Dtype | None = None
    """Dtype in which Megatron-FSDP's gradients travel; None: that in which they accumulate."""
    megatron_fsdp_use_decoupled_grad: bool = False
    """The optimizer takes Megatron-FSDP's gradients in their own dtype instead of fp32 copies."""
    fsdp_double_buffer: bool = False
    """Megatron-FSDP gathers layers into two lasting buffers, and reduces their gradients from two more."""
    suggested_communication_unit_size: int | None = None
    """Elements that Megatron-FSDP lets wait for their reduction; half as many are fetched ahead. None: 10^9 or two layers."""
    reuse_grad_buf_for_mxfp8_param_ag: bool = False
    """MXFP8 parameters are gathered through the gradient buffer instead of a buffer of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Implementation choices that move memory or decide which rules hold."""

    transformer_impl: str = "transformer_engine"
    attention_backend: str = "auto"
    bias_activation_fusion: bool = False
    use_fused_weighted_squared_relu: bool = False
    """Squared ReLU and the router probabilities in one kernel, which keeps no unscaled activation (experts.py)."""
    masked_softmax_fusion: bool = False
    bias_dropout_fusion: bool = False
    apply_rope_fusion: bool = False
    gradient_accumulation_fusion: bool = False
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: str = "native"
    calculate_per_token_loss: bool = False
    cuda_graph_impl: str = "none"
    cuda_graph_modules: tuple[str, ...] = ()
    cuda_graph_warmup_steps: int = 3
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    defer_embedding_wgrad_compute: bool = False
    wgrad_deferral_limit: int = 0
    overlap_p2p_communication_warmup_flush: bool = False
    tp_comm_overlap: bool = False
    cpu_offloading: bool = False
    cpu_offloading_num_layers: int = 0
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] = ()
    mlp_chunks_for_training: int = 1
    use_transformer_engine_op_fuser: bool = False
    """MLP and experts run as a sequence of Transformer Engine's fusible operations."""
    distribute_saved_activations: bool = False
    peft: str | None = None
    """Parameter-efficient method (Bridge's class, in small letters): the model's own weights are frozen."""
    peft_dim: int = 32
    peft_target_modules: tuple[str, ...] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The accelerator; ``gpu`` names a file of ``search_spaces/gpus``."""

    gpu: str = "H100"
    gpus_per_node: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Revisions the workload runs on; None where unknown (then the nearest known is used, and said)."""

    megatron_core: str | None = None
    megatron_bridge: str | None = None
    transformer_engine: str | None = None
    torch: str | None = None
    container: str | None = None
    flash_attn: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a workload came from."""

    kind: Literal["bridge_recipe", "catalog", "hf_config", "megatron_args", "file"]
    reference: str
    revision: str | None = None
    overrides: tuple[str, ...] = ()
    """Hydra-form overrides that were applied, the trial's own among them."""
    notes: tuple[str, ...] = ()
    """One line each: what the reader assumed, stood in for, or changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything that is trained, but for the recompute setting. Frozen, hashable through ``digest``, JSON both ways.

    ``recipe_recompute`` is the recipe's own setting, kept as a fact to compare with; it takes no part in the digest.
    ``other`` holds settings with a non-default value that have no field here, by qualified name
    (``model.enable_hyper_connections``): the ledger names them "not covered" unless it knows them to be neutral.
    """

    name: str
    source: Source
    model: Model
    parallel: Parallel
    train: Train
    precision: Precision = field(default_factory=Precision)
    optimizer: Optimizer = field(default_factory=Optimizer)
    features: Features = field(default_factory=Features)
    hardware: Hardware = field(default_factory=Hardware)
    stack: Stack = field(default_factory=Stack)
    env_vars: Mapping[str, str] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    recipe_recompute: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spreads_experts(self) -> bool:
        """Whether experts lie on several ranks: routing then moves memory from rank to rank and from launch to launch."""
        return self.model.num_moe_experts is not None and self.parallel.expert_model_parallel_size > 1

    @property
    def num_microbatches(self) -> int:
        """Micro batches of one step on one data-parallel rank."""
        return self.train.global_batch_size // (self.train.micro_batch_size * self.parallel.data_parallel_size)

    @property
    def digest(self) -> str:
        """A content hash of what is trained: without name, source and the recipe's own recompute setting."""
        return digest(replace(self, name="", source=_ANY_SOURCE, recipe_recompute={}))


_ANY_SOURCE = Source(kind="file", reference="")
