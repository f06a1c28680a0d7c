"""Every name of Megatron that the rank program touches: a new release breaks this test and not a user's trial.

Each line is ``module:name`` and, behind it, the parameters or dataclass fields that are relied on.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
from prelude_process import run_script

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

CORE = {
    "megatron.core.pipeline_parallel.schedules:forward_step": (),
    "megatron.core.pipeline_parallel.schedules:backward_step": (),
    "megatron.core.pipeline_parallel:get_forward_backward_func": (),
    "megatron.core.model_parallel_config:ModelParallelConfig": (
        "finalize_model_grads_func", "no_sync_func", "grad_scale_func", "tensor_model_parallel_size",
    ),
    "megatron.core.transformer.transformer_config:TransformerConfig": (
        "recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers", "is_hybrid_model",
        "bf16", "fp16", "cuda_graph_impl", "cuda_graph_warmup_steps", "moe_router_bias_update_rate",
    ),
    "megatron.core.transformer.transformer_config:MLATransformerConfig": ("kv_lora_rank", "qk_head_dim", "v_head_dim"),
    "megatron.core.optimizer:OptimizerConfig": ("lr", "min_lr", "clip_grad", "use_distributed_optimizer", "params_dtype"),
    "megatron.core.optimizer:get_megatron_optimizer": ("config", "model_chunks"),
    "megatron.core.optimizer.optimizer:MegatronOptimizer.step": (),
    "megatron.core.distributed:DistributedDataParallelConfig": (
        "grad_reduce_in_fp32", "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather",
        "check_for_nan_in_grad",
    ),
    "megatron.core.distributed:DistributedDataParallel": ("config", "ddp_config", "module", "disable_bucketing"),
    "megatron.core.distributed:DistributedDataParallel.zero_grad_buffer": (),
    "megatron.core.distributed:DistributedDataParallel.broadcast_params": (),
    "megatron.core.distributed:finalize_model_grads": (),
    "megatron.core.num_microbatches_calculator:init_num_microbatches_calculator": (
        "rank", "rampup_batch_size", "global_batch_size", "micro_batch_size", "data_parallel_size",
    ),
    "megatron.core.num_microbatches_calculator:destroy_num_microbatches_calculator": (),
    "megatron.core.parallel_state:initialize_model_parallel": (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
        "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
        "num_distributed_optimizer_instances",
    ),
    "megatron.core.parallel_state:is_pipeline_first_stage": ("ignore_virtual", "vp_stage"),
    "megatron.core.parallel_state:is_pipeline_last_stage": ("ignore_virtual", "vp_stage"),
    "megatron.core.parallel_state:get_data_parallel_group": ("with_context_parallel",),
    "megatron.core.parallel_state:get_data_parallel_rank": (),
    "megatron.core.parallel_state:get_pipeline_model_parallel_rank": (),
    "megatron.core.parallel_state:set_virtual_pipeline_model_parallel_rank": ("rank",),
    "megatron.core.parallel_state:destroy_model_parallel": (),
    "megatron.core.distributed:DistributedDataParallel.no_sync": (),
    "megatron.core.optimizer.optimizer:MegatronOptimizer.scale_loss": ("loss",),
    "megatron.core.optimizer.optimizer:MegatronOptimizer.zero_grad": (),
    "megatron.core.tensor_parallel:get_cuda_rng_tracker": (),
    "megatron.core.tensor_parallel:checkpoint": ("function", "distribute_saved_activations"),
    "megatron.core.tensor_parallel.random:checkpoint": ("function", "distribute_saved_activations"),
    "megatron.core.tensor_parallel.random:CheckpointWithoutOutput.checkpoint": ("run_function",),
    "megatron.core.tensor_parallel.random:CheckpointWithoutOutput.discard_output_and_register_recompute": ("hook_tensor",),
    "megatron.core.tensor_parallel:model_parallel_cuda_manual_seed": ("seed",),
    "megatron.core.tensor_parallel:set_defaults_if_not_set_tensor_model_parallel_attributes": (),
    "megatron.core.tensor_parallel.random:_set_cuda_rng_state": ("new_state", "device", "graph_safe"),
    "megatron.core.tensor_parallel.random:_get_cuda_rng_state": ("device", "clone", "graph_safe"),
    "megatron.core.transformer.moe.moe_utils:maybe_move_tensor_to_cpu": ("tensor", "as_numpy", "record_stream"),
    "megatron.core.transformer.moe.token_dispatcher:maybe_move_tensor_to_cpu": (),
    "megatron.core.transformer.moe.experts:TEGroupedMLP.forward": ("permuted_local_hidden_states", "tokens_per_expert"),
    "megatron.core.transformer.moe.experts:SequentialMLP.forward": ("permuted_local_hidden_states", "tokens_per_expert"),
    "megatron.core.transformer.module:Float16Module": ("config", "module"),
    "megatron.core.models.gpt:GPTModel": (
        "config", "transformer_layer_spec", "vocab_size", "max_sequence_length", "pre_process", "post_process",
        "parallel_output", "share_embeddings_and_output_weights", "position_embedding_type", "vp_stage",
    ),
    "megatron.core.models.gpt.gpt_layer_specs:get_gpt_layer_with_transformer_engine_spec": (
        "qk_layernorm", "multi_latent_attention",
    ),
    "megatron.core.models.gpt.gpt_layer_specs:get_gpt_decoder_block_spec": ("config", "use_transformer_engine", "vp_stage"),
    "megatron.core.models.gpt.experimental_attention_variant_module_specs:"
    "get_transformer_block_with_experimental_attention_variant_spec": ("config", "vp_stage"),
    "megatron.core.activations:squared_relu": (),
    "megatron.core.activations:quick_gelu": (),
    "megatron.core.transformer.enums:AttnBackend": (),
    "megatron.core.utils:unwrap_model": (),
    "megatron.core.utils:get_model_config": (),
    "megatron.core.extensions.transformer_engine:TELayerNormColumnParallelLinear": (),
    "megatron.core.extensions.transformer_engine:TEGroupedLinear": (),
    "megatron.core.extensions.transformer_engine:TEDotProductAttention": (),
}  # fmt: skip

BRIDGE = {
    "megatron.bridge.training.pretrain:pretrain": ("config", "forward_step_func", "callbacks"),
    "megatron.bridge.training.callbacks:Callback.on_data_init_start": ("context",),
    "megatron.bridge.training.callbacks:Callback.on_train_start": ("context",),
    "megatron.bridge.training.callbacks:Callback.on_train_step_start": ("context",),
    "megatron.bridge.training.callbacks:Callback.on_train_step_end": ("context",),
    "megatron.bridge.training.callbacks:CallbackContext": (
        "state", "model", "optimizer", "loss_dict", "grad_norm", "skipped_iter",
    ),
    "megatron.bridge.training.setup:initialize_megatron": ("cfg", "allow_no_cuda"),
    "megatron.bridge.training.initialize:initialize_megatron": ("cfg", "allow_no_cuda"),
    "megatron.bridge.training.initialize:compile_helpers": (),
    "megatron.bridge.training.gpt_step:forward_step": (),
    "megatron.bridge.training.utils.omegaconf_utils:process_config_with_overrides": ("config", "cli_overrides"),
    "megatron.bridge.training.state:TrainState": ("step",),
    "megatron.bridge.training.state:GlobalState.train_state": (),
    "megatron.bridge.training.state:GlobalState.cfg": (),
    "megatron.core.datasets.helpers_cpp:build_sample_idx_int32": (),
    "megatron.bridge.training.config:ConfigContainer": (
        "model", "train", "validation", "optimizer", "ddp", "scheduler", "dataset", "logger", "tokenizer", "checkpoint",
        "dist", "rng", "rerun_state_machine", "ft", "straggler", "nvrx_straggler", "inprocess_restart",
    ),
    "megatron.bridge.training.config:TrainingConfig": (
        "train_iters", "train_samples", "global_batch_size", "micro_batch_size", "manual_gc", "exit_duration_in_mins",
        "exit_interval",
    ),
    "megatron.bridge.training.config:ValidationConfig": ("eval_iters", "eval_interval"),
    "megatron.bridge.training.config:OptimizerConfig": ("lr", "use_distributed_optimizer"),
    "megatron.bridge.training.config:DistributedDataParallelConfig": ("average_in_collective", "use_distributed_optimizer"),
    "megatron.bridge.training.config:SchedulerConfig": (
        "lr_decay_style", "lr_warmup_iters", "lr_decay_iters", "start_weight_decay", "end_weight_decay",
        "weight_decay_incr_style",
    ),
    "megatron.bridge.training.config:MockGPTDatasetConfig": (
        "random_seed", "reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask",
        "num_dataset_builder_threads", "data_sharding", "dataloader_type", "num_workers", "pin_memory", "persistent_workers",
        "seq_length",
    ),
    "megatron.bridge.training.config:LoggerConfig": ("log_interval", "tensorboard_dir"),
    "megatron.bridge.training.config:TokenizerConfig": ("tokenizer_type", "vocab_size"),
    "megatron.bridge.training.config:CheckpointConfig": ("save", "load", "save_interval"),
    "megatron.bridge.training.config:DistributedInitConfig": ("distributed_backend", "use_torch_fsdp2"),
    "megatron.bridge.training.config:RNGConfig": ("seed",),
    "megatron.bridge.training.config:RerunStateMachineConfig": ("rerun_mode",),
    "megatron.bridge.training.config:GPTDatasetConfig.__init__": ("seq_length", "skip_getting_attention_mask_from_dataset"),
    "megatron.bridge.models.gpt_provider:GPTModelProvider": (
        "vocab_size", "should_pad_vocab", "seq_length", "transformer_layer_spec", "recompute_modules",
    ),
    "megatron.bridge.models.mla_provider:MLAModelProvider": ("kv_lora_rank",),
    "megatron.bridge.models.hybrid.hybrid_provider:HybridModelProvider": ("hybrid_layer_pattern", "vocab_size"),
    "megatron.core.transformer.cuda_graphs:TECudaGraphHelper.create_cudagraphs": (),
    "megatron.core.transformer.cuda_graphs:HAVE_TE_GRAPHS": (),
    "megatron.core.tensor_parallel.random:_get_share_storage": (),
}  # fmt: skip

ONE_OF: tuple[dict[str, tuple[str, ...]], ...] = (
    {
        "megatron.core.models.hybrid.hybrid_model:HybridModel": ("hybrid_stack_spec", "hybrid_layer_pattern", "vp_stage"),
        "megatron.core.models.mamba:MambaModel": ("mamba_stack_spec", "hybrid_override_pattern"),
    },
    {
        "megatron.core.models.hybrid.hybrid_layer_specs:hybrid_stack_spec": (),
        "megatron.core.models.mamba.mamba_layer_specs:mamba_stack_spec": (),
    },
)
"""Names of which the installed pair has at least one."""

SCRIPT = """
import dataclasses, importlib, inspect, json, sys
from autotune.trial import rank
rank.preload("cpu", sys.argv[2])
missing = []
for where, names in json.loads(sys.argv[1]).items():
    module, _, path = where.partition(":")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        missing.append(f"{where}: {error}")
        continue
    if dataclasses.is_dataclass(found):
        have = {field.name for field in dataclasses.fields(found)}
    else:
        try:
            parameters = inspect.signature(found).parameters
        except (TypeError, ValueError):
            parameters = {}
        have = set(parameters)
        if any(p.kind is p.VAR_KEYWORD for p in getattr(parameters, "values", list)()):
            have |= set(names)
    missing += [f"{where}: no {name}" for name in names if name not in have]
from megatron.core.pipeline_parallel import schedules
for schedule in ("forward_backward_no_pipelining", "forward_backward_pipelining_without_interleaving",
                 "forward_backward_pipelining_with_interleaving"):
    function = inspect.unwrap(getattr(schedules, schedule))
    codes, used = [function.__code__], set()
    while codes:
        code = codes.pop()
        used |= set(code.co_names)
        codes += [constant for constant in code.co_consts if inspect.iscode(constant)]
    for step in ("forward_step", "backward_step"):
        if step not in used:
            missing.append(f"{schedule} does not look up {step} in its module")
print("MISSING" + json.dumps(missing))
"""


def missing(pins: dict[str, tuple[str, ...]], loop: str) -> list[str]:
    out = run_script(SCRIPT, json.dumps(pins), loop)
    found: list[str] = json.loads(out.rpartition("MISSING")[2])
    return found


def test_names_of_megatron_core() -> None:
    assert missing(CORE, "core") == []


def test_one_of_the_names_is_there() -> None:
    lacking = missing({name: members for names in ONE_OF for name, members in names.items()}, "core")
    found = [[name for name in names if not any(line.startswith(name) for line in lacking)] for names in ONE_OF]
    assert all(found), lacking


@pytest.mark.bridge
def test_names_of_megatron_bridge() -> None:
    if importlib.util.find_spec("megatron.bridge") is None:
        pytest.skip("megatron-bridge is not installed")
    assert missing(BRIDGE, "bridge") == []
