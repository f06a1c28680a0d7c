"""What has to hold of any workload before a number is made of it; each rule answers with one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from autotune.errors import RequestError
from autotune.workload.architecture import classify
from autotune.workload.gpu import load_gpu
from autotune.workload.pipeline import stages
from autotune.workload.workload import Workload

Broken = tuple[str, object, str, str]
"""Arguments of a RequestError."""


def validate(workload: Workload) -> Workload:
    """Check a workload and return it.

    Raises:
        RequestError: The first rule that it breaks.
    """
    # One after another: a later check may divide by what an earlier one has found to be zero.
    for broken in chain.from_iterable(check(workload) for check in (_sizes, _names, _layout, _divisions, _experts, _batch)):
        raise RequestError(*broken)
    load_gpu(workload.hardware.gpu)
    classify(workload)
    stages(workload)
    return workload


def _sizes(workload: Workload) -> Iterator[Broken]:
    model, parallel, train = workload.model, workload.parallel, workload.train
    positive = {
        "model.num_layers": model.num_layers,
        "model.hidden_size": model.hidden_size,
        "model.num_attention_heads": model.num_attention_heads,
        "model.ffn_hidden_size": model.ffn_hidden_size,
        "model.vocab_size": model.vocab_size,
        "model.num_query_groups": model.num_query_groups,
        "model.kv_channels": model.kv_channels,
        "world_size": parallel.world_size,
        "model.tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "model.pipeline_model_parallel_size": parallel.pipeline_model_parallel_size,
        "model.virtual_pipeline_model_parallel_size": parallel.virtual_pipeline_model_parallel_size,
        "model.context_parallel_size": parallel.context_parallel_size,
        "model.expert_model_parallel_size": parallel.expert_model_parallel_size,
        "model.expert_tensor_parallel_size": parallel.expert_tensor_parallel_size,
        "ddp.num_distributed_optimizer_instances": parallel.num_distributed_optimizer_instances,
        "model.moe_layer_freq": model.moe_layer_freq if isinstance(model.moe_layer_freq, int) else None,
        "model.linear_attention_freq": model.linear_attention_freq if isinstance(model.linear_attention_freq, int) else None,
        "model.window_attn_skip_freq": model.window_attn_skip_freq if isinstance(model.window_attn_skip_freq, int) else None,
        "train.seq_length": train.seq_length,
        "train.micro_batch_size": train.micro_batch_size,
        "train.global_batch_size": train.global_batch_size,
        "hardware.gpus_per_node": workload.hardware.gpus_per_node,
    }
    for setting, value in positive.items():
        if value is not None and value <= 0:
            yield setting, value, "has to be positive", f"give {setting}=N with N of at least 1"


_NAMES: Mapping[str, tuple[str | None, ...]] = {
    "model.cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "model.attention_backend": ("auto", "flash", "fused", "unfused", "local"),
    "model.moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "mixed_precision.fp8": (None, "e4m3", "hybrid"),
}
"""Choices that Megatron Core's configuration refuses to go beyond (transformer_config.py, enums.py:AttnBackend at 2a75ac12)."""


def _names(workload: Workload) -> Iterator[Broken]:
    features = workload.features
    given = {
        "model.cuda_graph_impl": features.cuda_graph_impl,
        "model.attention_backend": features.attention_backend,
        "model.moe_token_dispatcher_type": workload.model.moe_token_dispatcher_type,
        "mixed_precision.fp8": workload.precision.fp8,
    }
    for setting, value in given.items():
        if value not in _NAMES[setting]:
            yield setting, value, "is none of Megatron Core's names", f"use one of {', '.join(map(str, _NAMES[setting]))}"


def _layout(workload: Workload) -> Iterator[Broken]:
    parallel = workload.parallel
    tp, pp, cp = (
        parallel.tensor_model_parallel_size,
        parallel.pipeline_model_parallel_size,
        parallel.context_parallel_size,
    )
    if parallel.world_size % (tp * pp * cp):
        yield (
            "world_size",
            parallel.world_size,
            f"tp {tp} x pp {pp} x cp {cp} = {tp * pp * cp} does not divide it",
            "change the layout or the number of GPUs",
        )
        return
    etp, ep = parallel.etp, parallel.expert_model_parallel_size
    if workload.model.num_moe_experts and parallel.world_size % (etp * ep * pp):
        yield (
            "world_size",
            parallel.world_size,
            f"etp {etp} x ep {ep} x pp {pp} = {etp * ep * pp} does not divide it",
            "change the expert layout or the number of GPUs",
        )
        return
    shards = parallel.data_parallel_size * cp
    if shards % parallel.num_distributed_optimizer_instances:
        yield (
            "ddp.num_distributed_optimizer_instances",
            parallel.num_distributed_optimizer_instances,
            f"does not divide the {shards} data-parallel ranks (dp x cp)",
            "choose a divisor",
        )


def _divisions(workload: Workload) -> Iterator[Broken]:
    model, parallel, train = workload.model, workload.parallel, workload.train
    tp, cp = parallel.tensor_model_parallel_size, parallel.context_parallel_size
    if model.num_attention_heads % tp:
        yield (
            "model.tensor_model_parallel_size",
            tp,
            f"does not divide model.num_attention_heads={model.num_attention_heads}",
            "choose a divisor",
        )
    groups = model.num_query_groups
    if groups is not None and not model.multi_latent_attention and groups % tp and tp % groups:
        yield (
            "model.tensor_model_parallel_size",
            tp,
            f"is no multiple or divisor of model.num_query_groups={groups}",
            "choose one that is",
        )
    if cp > 1 and train.seq_length % (2 * cp):
        yield "train.seq_length", train.seq_length, f"has to be divisible by 2 x cp = {2 * cp}", "change it or the layout"
    elif parallel.sequence_parallel and train.seq_length % (tp * cp):
        yield (
            "train.seq_length",
            train.seq_length,
            f"has to be divisible by tp x cp = {tp * cp} with sequence parallelism",
            "change it or the layout",
        )
    for name, share in (("model.ffn_hidden_size", model.ffn_hidden_size),):
        if share % tp and not (model.num_moe_experts and model.moe_layer_freq == 1):
            yield name, share, f"tp {tp} does not divide it", "change the layout"


def _experts(workload: Workload) -> Iterator[Broken]:
    model, ep = workload.model, workload.parallel.expert_model_parallel_size
    if not model.num_moe_experts:
        if ep > 1:
            yield "model.expert_model_parallel_size", ep, "needs experts (model.num_moe_experts)", "set it to 1"
        return
    if model.num_moe_experts % ep:
        yield (
            "model.expert_model_parallel_size",
            ep,
            f"does not divide model.num_moe_experts={model.num_moe_experts}",
            "choose a divisor",
        )
    if not 1 <= model.moe_router_topk <= model.num_moe_experts:
        yield (
            "model.moe_router_topk",
            model.moe_router_topk,
            f"has to be between 1 and model.num_moe_experts={model.num_moe_experts}",
            "change one of the two",
        )


def _batch(workload: Workload) -> Iterator[Broken]:
    train, dp = workload.train, workload.parallel.data_parallel_size
    share = train.micro_batch_size * dp
    if train.global_batch_size % share:
        yield (
            "train.global_batch_size",
            train.global_batch_size,
            f"is no multiple of micro batch {train.micro_batch_size} x dp {dp} = {share}",
            f"use {max(share, round(train.global_batch_size / share) * share)}, or change the layout",
        )
