"""Where each configuration path of Megatron Bridge lives in a Workload. One table serves the reader and the overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Train

Home = tuple[str, str]
"""Section of a Workload and field in it."""

_NOT_OF_BRIDGE: Mapping[str, frozenset[str]] = {
    "parallel": frozenset({"world_size", "num_distributed_optimizer_instances"}),
    "model": frozenset({"max_position_embeddings"}),
    "features": frozenset(
        {"peft", "peft_dim", "peft_target_modules", "mlp_chunks_for_training", "overlap_p2p_communication_warmup_flush"}
    ),
    "precision": frozenset({"grad_dtype"}),
}
_MODEL_SECTIONS = {"model": Model, "parallel": Parallel, "precision": Precision, "features": Features}
_PRECISION_BY_MIXED = (
    "params_dtype", "fp8", "fp8_recipe", "fp8_param", "fp4", "first_last_layers_bf16",
    "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16",
)  # fmt: skip
_OPTIMIZER_BY_DDP = ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
                     "use_megatron_fsdp", "data_parallel_sharding_strategy", "megatron_fsdp_main_params_dtype",
                     "megatron_fsdp_main_grads_dtype", "megatron_fsdp_grad_comm_dtype",
                     "megatron_fsdp_use_decoupled_grad", "fsdp_double_buffer", "suggested_communication_unit_size",
                     "reuse_grad_buf_for_mxfp8_param_ag")  # fmt: skip


def _homes() -> dict[str, Home]:
    homes: dict[str, Home] = {}
    for section, cls in _MODEL_SECTIONS.items():
        for field in fields(cls):
            if field.name not in _NOT_OF_BRIDGE.get(section, ()):
                homes[f"model.{field.name}"] = (section, field.name)
    homes["model.mlp_chunks_for_training"] = ("features", "mlp_chunks_for_training")
    homes["model.overlap_p2p_comm_warmup_flush"] = ("features", "overlap_p2p_communication_warmup_flush")
    homes |= {f"peft.{name}": ("features", f"peft_{name}") for name in ("dim", "target_modules")}
    homes["model.cuda_graph_scope"] = ("features", "cuda_graph_modules")  # its name before Megatron Core 0.19
    homes |= {f"mixed_precision.{name}": ("precision", name) for name in _PRECISION_BY_MIXED}
    homes["mixed_precision.fp8_param_gather"] = ("precision", "fp8_param")
    homes |= {f"{section}.fp4_param_gather": ("precision", "fp4_param") for section in ("mixed_precision", "ddp")}
    homes["mixed_precision.reuse_grad_buf_for_mxfp8_param_ag"] = ("optimizer", "reuse_grad_buf_for_mxfp8_param_ag")
    homes |= {f"optimizer.{f.name}": ("optimizer", f.name) for f in fields(Optimizer)}
    homes |= {f"ddp.{name}": ("optimizer", name) for name in _OPTIMIZER_BY_DDP}
    homes["ddp.num_distributed_optimizer_instances"] = ("parallel", "num_distributed_optimizer_instances")
    homes |= {f"dist.{name}": ("optimizer", name) for name in ("use_megatron_fsdp", "use_torch_fsdp2")}
    homes |= {f"train.{f.name}": ("train", f.name) for f in fields(Train) if f.name in _TRAIN}
    for path in ("model.seq_length", "dataset.seq_length", "dataset.sequence_length"):
        homes[path] = ("train", "seq_length")
    homes["model.deterministic_mode"] = ("train", "deterministic_mode")
    for name in _OPTIMIZER_ELSEWHERE:
        del homes[f"optimizer.{name}"]
    homes |= {f"comm_overlap.{name}": home for name, home in _COMM_OVERLAP.items()}
    return homes


_TRAIN = ("micro_batch_size", "global_batch_size", "manual_gc")
_OPTIMIZER_ELSEWHERE = (
    "overlap_grad_reduce", "use_megatron_fsdp", "use_torch_fsdp2", "data_parallel_sharding_strategy",
    "megatron_fsdp_main_params_dtype", "megatron_fsdp_main_grads_dtype", "megatron_fsdp_grad_comm_dtype",
    "megatron_fsdp_use_decoupled_grad", "fsdp_double_buffer", "suggested_communication_unit_size", "use_layer_wise_param_layout",
)  # fmt: skip
_COMM_OVERLAP: Mapping[str, Home] = {
    "tp_comm_overlap": ("features", "tp_comm_overlap"),
    "overlap_moe_expert_parallel_comm": ("features", "overlap_moe_expert_parallel_comm"),
    "delay_wgrad_compute": ("features", "delay_wgrad_compute"),
    "defer_embedding_wgrad_compute": ("features", "defer_embedding_wgrad_compute"),
    "wgrad_deferral_limit": ("features", "wgrad_deferral_limit"),
    "overlap_grad_reduce": ("optimizer", "overlap_grad_reduce"),
    "overlap_param_gather": ("optimizer", "overlap_param_gather"),
}

HOMES: Mapping[str, Home] = _homes()
"""Bridge path (``model.hidden_size``) to its home. Sections the launcher owns (world size, GPU) are not Bridge's."""
RECOMPUTE_PATHS: tuple[str, ...] = tuple(f"model.recompute_{name}" for name in ("granularity", "modules", "method", "num_layers"))
LAUNCHER_PATHS: Mapping[str, Home] = {
    "world_size": ("parallel", "world_size"),
    "hardware.gpu": ("hardware", "gpu"),
    "hardware.gpus_per_node": ("hardware", "gpus_per_node"),
    "stack.megatron_core": ("stack", "megatron_core"),
    "stack.transformer_engine": ("stack", "transformer_engine"),
    "stack.torch": ("stack", "torch"),
    "stack.container": ("stack", "container"),
    "stack.flash_attn": ("stack", "flash_attn"),
}
"""What a launcher or a container decides and no Bridge field names; taken as overrides too."""
