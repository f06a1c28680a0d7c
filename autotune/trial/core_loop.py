"""A trial over Megatron Core alone, where Megatron Bridge is absent: the same model, optimizer, schedules and seams.

What Bridge's ``pretrain`` adds (logging, checkpoints, evaluation) is not part of a trial. Micro batches are random tokens
of a seed, the same for all ranks of one model replica.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from autotune.trial.config_builder import (
    ddp_arguments,
    field_names,
    model_arguments,
    optimizer_arguments,
    padded_vocab_size,
)
from autotune.trial.session import Session
from autotune.trial.spec import TrialSpec


def preload() -> None:
    """Import what a trial needs of Megatron Core."""
    import megatron.core.distributed
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer
    import megatron.core.pipeline_parallel.schedules
    import megatron.core.transformer.module

    with _triton_by_name():
        import megatron.core.ssm.mamba_mixer  # noqa: F401


@contextlib.contextmanager
def _triton_by_name() -> Iterator[None]:
    """Megatron Core 0.16's Mamba mixer imports inference kernels written in Triton. Without it their names are enough."""
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    from autotune.workload import stand_ins

    finder = stand_ins.install({"triton": "0"})
    try:
        yield
    finally:  # torch asks whether there is a Triton: it must not find this one.
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
            del sys.modules[name]


def run(session: Session) -> None:
    """Train ``spec.steps`` steps; the session's probe writes what happens."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.num_microbatches_calculator import (
        destroy_num_microbatches_calculator,
        init_num_microbatches_calculator,
    )
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func

    spec, probe = session.spec, session.probe
    probe.wrap_schedules()
    _initialise(spec)
    train, parallel = spec.workload.train, spec.workload.parallel
    init_num_microbatches_calculator(
        session.rank, None, train.global_batch_size, train.micro_batch_size, parallel.data_parallel_size
    )
    config = transformer_config(spec)
    session.config_built(config)
    model = build_model(spec, config)
    optimizer_config = OptimizerConfig(**optimizer_arguments(spec.workload, field_names(OptimizerConfig)))
    optimizer = get_megatron_optimizer(optimizer_config, model)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if spec.workload.optimizer.overlap_grad_reduce:
        no_sync = [chunk.no_sync for chunk in model]
        config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
    session.model_built(model, optimizer)
    probe.wrap_config(config)
    probe.wrap_optimizer(optimizer)
    forward_backward = get_forward_backward_func()
    batches = [_batches(spec, parallel_state.get_data_parallel_rank(), session.counter) for _ in model]
    for chunk in model:
        chunk.train()
    for step in range(1, spec.steps + 1):
        probe.start_step(step)
        for chunk in model:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=_forward_step,
            data_iterator=batches if len(batches) > 1 else batches[0],
            model=model if len(model) > 1 else model[0],
            num_microbatches=spec.workload.num_microbatches,
            seq_length=train.seq_length,
            micro_batch_size=train.micro_batch_size,
            forward_only=False,
        )
        succeeded, grad_norm, _ = optimizer.step()
        session.step_ended(_mean_loss(losses), grad_norm, not succeeded)
        if session.stop_after is not None and step >= session.stop_after:
            break
    torch.distributed.barrier()
    parallel_state.destroy_model_parallel()
    destroy_num_microbatches_calculator()
    torch.distributed.destroy_process_group()


def _initialise(spec: TrialSpec) -> None:
    import torch
    from megatron.core import parallel_state, tensor_parallel

    parallel = spec.workload.parallel
    if spec.backend == "gpu":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("gloo" if spec.backend == "cpu" else "nccl", timeout=timedelta(minutes=10))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=parallel.num_distributed_optimizer_instances,
    )
    seed = spec.seed + 100 * parallel_state.get_pipeline_model_parallel_rank()
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def transformer_config(spec: TrialSpec) -> Any:
    """Megatron Core's configuration object of the trial."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    kind = MLATransformerConfig if spec.workload.model.multi_latent_attention else TransformerConfig
    arguments = model_arguments(spec.workload, spec.boundary, field_names(kind))
    # As Megatron-LM and Bridge train: what was sent to the next stage keeps its graph, not its data.
    arguments.setdefault("deallocate_pipeline_outputs", True)
    if spec.workload.model.hybrid_layer_pattern is not None:
        arguments["is_hybrid_model"] = True
    return kind(**{name: value for name, value in arguments.items() if name in field_names(kind)})


def build_model(spec: TrialSpec, config: Any) -> list[Any]:
    """The chunks of this pipeline stage, in 16 bits where the workload is, wrapped for data parallelism."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.tensor_parallel import set_defaults_if_not_set_tensor_model_parallel_attributes
    from megatron.core.transformer.module import Float16Module

    chunks = []
    ddp_config = DistributedDataParallelConfig(**ddp_arguments(spec, field_names(DistributedDataParallelConfig)))
    stages = spec.workload.parallel.virtual_pipeline_model_parallel_size
    for chunk in range(stages or 1):
        virtual = chunk if stages else None
        if virtual is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(virtual)
        model = _network(spec, config, virtual)
        for parameter in model.parameters():
            set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
        model.cuda(torch.cuda.current_device())
        if config.bf16 or config.fp16:
            model = Float16Module(config, model)
        chunks.append(DistributedDataParallel(config, ddp_config, model, disable_bucketing=chunk > 0))
    for chunk in chunks:
        chunk.broadcast_params()
    return chunks


def _network(spec: TrialSpec, config: Any, virtual_stage: int | None) -> Any:
    from megatron.core import parallel_state

    model = spec.workload.model
    arguments: dict[str, Any] = {
        "config": config,
        "vocab_size": padded_vocab_size(spec.workload),
        "max_sequence_length": spec.workload.train.seq_length,
        "pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=virtual_stage),
        "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=virtual_stage),
        "parallel_output": True,
        "share_embeddings_and_output_weights": model.share_embeddings_and_output_weights,
        "position_embedding_type": model.position_embedding_type,
        "vp_stage": virtual_stage,
    }
    if model.hybrid_layer_pattern is not None:
        return _hybrid(spec, arguments)
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )

    if model.experimental_attention_variant is not None:
        from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
            get_transformer_block_with_experimental_attention_variant_spec,
        )

        layers = get_transformer_block_with_experimental_attention_variant_spec(config, vp_stage=virtual_stage)
    elif model.num_moe_experts is not None:
        layers = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=virtual_stage)
    else:
        layers = get_gpt_layer_with_transformer_engine_spec(
            qk_layernorm=model.qk_layernorm, multi_latent_attention=model.multi_latent_attention
        )
    return GPTModel(transformer_layer_spec=layers, **arguments)


def _hybrid(spec: TrialSpec, arguments: dict[str, Any]) -> Any:
    """Mamba, attention and experts by a pattern; HybridModel since Megatron Core 0.18, MambaModel before."""
    pattern = spec.workload.model.hybrid_layer_pattern
    try:
        from megatron.core.models.hybrid.hybrid_layer_specs import hybrid_stack_spec
        from megatron.core.models.hybrid.hybrid_model import HybridModel
    except ImportError:
        from megatron.core.models.mamba import MambaModel
        from megatron.core.models.mamba.mamba_layer_specs import mamba_stack_spec

        del arguments["vp_stage"]
        return MambaModel(mamba_stack_spec=mamba_stack_spec, hybrid_override_pattern=pattern, **arguments)
    return HybridModel(hybrid_stack_spec=hybrid_stack_spec, hybrid_layer_pattern=pattern, **arguments)


def _batches(spec: TrialSpec, replica: int, counter: Any) -> Iterator[dict[str, Any]]:
    """Micro batches in host memory: tokens, labels, positions, and a dense mask where the workload's loader makes one."""
    import contextlib

    import torch

    train, vocab = spec.workload.train, spec.workload.model.vocab_size
    generator = torch.Generator().manual_seed(spec.seed * 1009 + replica)
    shape = (train.micro_batch_size, train.seq_length)
    while True:
        with counter.paused() if counter is not None else contextlib.nullcontext():
            tokens = torch.randint(0, vocab, (shape[0], shape[1] + 1), generator=generator)
            batch = {
                "tokens": tokens[:, :-1].contiguous(),
                "labels": tokens[:, 1:].contiguous(),
                "position_ids": torch.arange(shape[1]).expand(shape).contiguous(),
                "attention_mask": None,
            }
            if train.create_attention_mask_in_dataloader:
                mask = torch.tril(torch.ones(1, 1, shape[1], shape[1])) < 0.5
                batch["attention_mask"] = mask.expand(shape[0], -1, -1, -1).contiguous()
        yield batch


def _forward_step(batches: Iterator[dict[str, Any]], model: Any) -> tuple[Any, Callable[[Any], Any]]:
    batch = {name: None if value is None else value.cuda(non_blocking=True) for name, value in next(batches).items()}
    output = model(batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"])
    return output, _loss


def _loss(output: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Sum of the token losses, number of tokens, and what is reported."""
    import torch

    losses = output.float().view(-1)
    total = losses.sum()
    tokens = torch.tensor(losses.numel(), dtype=torch.int, device=losses.device)
    return total, tokens, {"lm loss": torch.stack([total.detach(), tokens.float()])}


def _mean_loss(reports: list[dict[str, Any]]) -> float | None:
    """Mean over all tokens of the step, over all replicas; None where this stage has no loss."""
    import torch
    from megatron.core import parallel_state

    pairs = [report["lm loss"] for report in reports or [] if "lm loss" in report]
    if not pairs:
        return None
    total = torch.stack(pairs).sum(0)
    torch.distributed.all_reduce(total, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    return float(total[0] / total[1])
