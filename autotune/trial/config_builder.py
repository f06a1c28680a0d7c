"""From a Workload and a Boundary to the arguments of Megatron's configuration classes.

The fields of a Workload carry Megatron's names, so this is mostly a filter by what the installed class has. A setting
that the installed class lacks and that differs from its default is refused by name, never dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.trial.spec import TrialSpec
from autotune.workload.workload import Workload

# Fields of Workload's model-side sections that other configuration classes take.
_ELSEWHERE = frozenset(
    {"world_size", "num_distributed_optimizer_instances", "grad_dtype", "peft", "should_pad_vocab", "mlp_chunks_for_training"}
)
# Fields of the model provider (Bridge) or of the model's constructor (Core), not of TransformerConfig.
PROVIDER_FIELDS = frozenset(
    {"vocab_size", "make_vocab_size_divisible_by", "share_embeddings_and_output_weights", "position_embedding_type",
     "max_position_embeddings", "hybrid_layer_pattern", "cross_entropy_loss_fusion", "cross_entropy_fusion_impl"}
)  # fmt: skip
_OLD_NAMES: Mapping[str, str] = {"cuda_graph_modules": "cuda_graph_scope"}
_MLA_FIELDS = frozenset(
    {"q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type",
     "original_max_position_embeddings"}
)  # fmt: skip


def padded_vocab_size(workload: Workload) -> int:
    """Rows of the embedding over all tensor-parallel ranks.

    Source: megatron/bridge/utils/vocab_utils.py:calculate_padded_vocab_size at 0.6.2.
    """
    model = workload.model
    if not model.should_pad_vocab:
        return model.vocab_size
    multiple = model.make_vocab_size_divisible_by * workload.parallel.tensor_model_parallel_size
    return -(-model.vocab_size // multiple) * multiple


def model_arguments(workload: Workload, boundary: Boundary, known: frozenset[str]) -> dict[str, Any]:
    """Keyword arguments for a class that has the fields ``known``: the model, its layout, precision and features.

    Raises:
        RequestError: A setting that matters has no field in the installed class.
    """
    arguments: dict[str, Any] = {}
    for section in (workload.model, workload.parallel, workload.precision, workload.features):
        for field in dataclasses.fields(section):
            if field.name in _ELSEWHERE or (field.name in _MLA_FIELDS and not workload.model.multi_latent_attention):
                continue
            value = getattr(section, field.name)
            name = field.name if field.name in known else _OLD_NAMES.get(field.name, field.name)
            if name in known:
                arguments[name] = _converted(field.name, value)
            elif value != field.default and field.name not in PROVIDER_FIELDS:
                raise RequestError(
                    field.name, value, "the installed Megatron has no such setting", "take a stack that has it or leave it out"
                )
    for path, value in workload.other.items():
        section_name, _, name = path.partition(".")
        if section_name == "model" and name in known:
            arguments[name] = _converted(name, value)
    bf16 = workload.precision.params_dtype in ("bf16", "fp8")
    arguments["bf16"], arguments["fp16"] = bf16, workload.precision.params_dtype == "fp16"
    arguments["pipeline_dtype"] = arguments["params_dtype"]
    arguments.setdefault("moe_ffn_hidden_size", None)
    if "deterministic_mode" in known:
        arguments["deterministic_mode"] = workload.train.deterministic_mode
    arguments.update(boundary.to_fields())
    # Megatron takes a method with no granularity for a mistake in some revisions; the modules of "full" are unread.
    if boundary.granularity != "selective":
        arguments["recompute_modules"] = None
    return {name: value for name, value in arguments.items() if name in known}


def _converted(name: str, value: Any) -> Any:
    """A plain value as Megatron's classes want it: dtypes and functions by object, lists where lists are tested for."""
    import torch
    import torch.nn.functional as F

    if name in ("params_dtype", "grad_dtype", "main_params_dtype", "main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}[value]
    if name == "activation_func":
        from megatron.core.activations import quick_gelu, squared_relu

        functions = {"gelu": F.gelu, "silu": F.silu, "swiglu": F.silu, "relu": F.relu}
        functions |= {"squared_relu": squared_relu, "quick_gelu": quick_gelu}
        if value not in functions:
            raise RequestError("activation_func", value, f"not one of {', '.join(sorted(functions))}", "name one of these")
        return functions[value]
    if name == "attention_backend":
        from megatron.core.transformer.enums import AttnBackend

        return AttnBackend[value]
    if name == "window_size":
        return None if value is None else tuple(value)
    return list(value) if isinstance(value, tuple) else value


def field_names(*classes: Any) -> frozenset[str]:
    """Names of all dataclass fields of the given classes."""
    return frozenset(field.name for cls in classes for field in dataclasses.fields(cls))


def optimizer_arguments(workload: Workload, known: frozenset[str]) -> dict[str, Any]:
    """Keyword arguments of Megatron's OptimizerConfig. A constant learning rate: what is proved is memory and time."""
    arguments: dict[str, Any] = {
        field.name: _converted(field.name, getattr(workload.optimizer, field.name))
        for field in dataclasses.fields(workload.optimizer)
        if field.name in known
    }
    params = workload.precision.params_dtype
    arguments |= {
        "lr": 1e-4, "min_lr": 1e-4, "weight_decay": 0.01, "clip_grad": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.95,
        "bf16": params in ("bf16", "fp8"), "fp16": params == "fp16", "params_dtype": _converted("params_dtype", params),
    }  # fmt: skip
    for path, value in workload.other.items():
        section, _, name = path.partition(".")
        if section == "optimizer" and name in known:
            arguments[name] = _converted(name, value)
    return {name: value for name, value in arguments.items() if name in known}


def ddp_arguments(spec: TrialSpec, known: frozenset[str]) -> dict[str, Any]:
    """Keyword arguments of Megatron's DistributedDataParallelConfig."""
    workload = spec.workload
    optimizer = workload.optimizer
    arguments: dict[str, Any] = {
        "grad_reduce_in_fp32": workload.precision.grad_dtype == "fp32",
        "use_distributed_optimizer": optimizer.use_distributed_optimizer,
        "overlap_grad_reduce": optimizer.overlap_grad_reduce,
        "overlap_param_gather": optimizer.overlap_param_gather,
        "num_distributed_optimizer_instances": workload.parallel.num_distributed_optimizer_instances,
        "check_for_nan_in_grad": True,
        "use_megatron_fsdp": optimizer.use_megatron_fsdp,
        "data_parallel_sharding_strategy": optimizer.data_parallel_sharding_strategy,
    }
    for path, value in workload.other.items():
        section, _, name = path.partition(".")
        if section == "ddp" and name in known:
            arguments[name] = value
    return {name: value for name, value in arguments.items() if name in known}


def refuse_on_cpu(workload: Workload, *, captures: bool = True) -> None:
    """Name the first setting of a workload that has no stand-in on a CPU.

    Args:
        workload: What is to be trained.
        captures: Whether the launch gets as far as the capture of graphs of layers; a survey ends before.

    Raises:
        RequestError: There is one.
    """
    features, precision, parallel, model = workload.features, workload.precision, workload.parallel, workload.model
    graphs = features.cuda_graph_impl != "none" and (captures or features.cuda_graph_impl != "transformer_engine")
    wrong: list[tuple[str, object, bool]] = [
        ("model.fp8", precision.fp8, precision.fp8 is not None),
        ("model.fp4", precision.fp4, precision.fp4 is not None),
        ("model.cuda_graph_impl", features.cuda_graph_impl, graphs),
        ("model.context_parallel_size", parallel.context_parallel_size, parallel.context_parallel_size > 1),
        ("model.tp_comm_overlap", features.tp_comm_overlap, features.tp_comm_overlap),
        ("model.moe_token_dispatcher_type", model.moe_token_dispatcher_type,
         model.num_moe_experts is not None and model.moe_token_dispatcher_type == "flex"),
        ("model.moe_permute_fusion", model.moe_permute_fusion, model.moe_permute_fusion),
        ("model.moe_router_fusion", model.moe_router_fusion, model.moe_router_fusion),
        ("model.apply_rope_fusion", features.apply_rope_fusion, features.apply_rope_fusion),
        ("model.cross_entropy_fusion_impl", features.cross_entropy_fusion_impl,
         features.cross_entropy_loss_fusion and features.cross_entropy_fusion_impl != "native"),
        ("model.cpu_offloading", features.cpu_offloading, features.cpu_offloading),
        ("model.fine_grained_activation_offloading", True, features.fine_grained_activation_offloading),
        ("model.overlap_moe_expert_parallel_comm", True, features.overlap_moe_expert_parallel_comm),
        ("model.softmax_type", model.softmax_type, model.softmax_type != "vanilla"),
        ("optimizer.use_megatron_fsdp", True, workload.optimizer.use_megatron_fsdp or workload.optimizer.use_torch_fsdp2),
        ("peft", features.peft, features.peft is not None),
    ]  # fmt: skip
    for setting, value, bad in wrong:
        if bad:
            raise RequestError(
                setting, value, "has no stand-in on a CPU", "switch it off, take a recipe sized for cpu, or --backend predict"
            )
