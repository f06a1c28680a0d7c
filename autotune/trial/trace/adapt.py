"""A workload as the tracer can run it: what has no stand-in without a GPU is replaced by its nearest, and named. Pure."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata

from autotune.errors import RequestError
from autotune.workload.workload import Workload

TE_VERSION = "2.17.1"
"""The Transformer Engine that the stand-in stands for."""


def traceable(workload: Workload) -> tuple[Workload, tuple[str, ...]]:
    """The workload to trace, and what differs from the one that was asked for.

    Raises:
        RequestError: Megatron Core is not installed, or something has no nearest.
    """
    try:
        installed = metadata.version("megatron-core")
    except metadata.PackageNotFoundError as missing:
        raise RequestError(
            "--trace", None, "tracing runs the installed Megatron Core, and there is none", "pip install megatron-core"
        ) from missing
    notes: list[str] = []
    model, features, precision, parallel = workload.model, workload.features, workload.precision, workload.parallel

    def swap(on: bool, text: str) -> bool:
        if on:
            notes.append(text)
        return on

    if swap(features.cuda_graph_impl != "none", "no CUDA graphs are captured"):
        features = replace(features, cuda_graph_impl="none", cuda_graph_modules=())
    if swap(features.apply_rope_fusion, "rotary embedding is not fused"):
        features = replace(features, apply_rope_fusion=False)
    if swap(features.cross_entropy_loss_fusion and features.cross_entropy_fusion_impl != "native", "native fused cross entropy"):
        features = replace(features, cross_entropy_fusion_impl="native")
    if swap(features.tp_comm_overlap, "no tensor-parallel overlap"):
        features = replace(features, tp_comm_overlap=False)
    if swap(features.overlap_moe_expert_parallel_comm, "expert-parallel exchange is not overlapped"):
        features = replace(features, overlap_moe_expert_parallel_comm=False, delay_wgrad_compute=False)
    experts = bool(model.num_moe_experts)
    if swap(experts and model.moe_token_dispatcher_type == "flex", "alltoall dispatcher in place of flex"):
        model = replace(model, moe_token_dispatcher_type="alltoall")
    if swap(model.moe_permute_fusion, "permute is not fused"):
        model = replace(model, moe_permute_fusion=False)
    if swap(model.moe_router_fusion, "the router is not fused"):
        model = replace(model, moe_router_fusion=False)
    if swap(precision.fp8 is not None or precision.fp4 is not None, "BF16 in place of FP8 or FP4"):
        precision = replace(precision, fp8=None, fp4=None, fp8_param=False)
    train = workload.train
    context = parallel.context_parallel_size
    if swap(context > 1, f"a context-parallel rank's {train.seq_length // context} positions as a sequence of their own"):
        parallel = replace(parallel, context_parallel_size=1)
        train = replace(train, seq_length=train.seq_length // context)
    if swap(experts, "routing is balanced"):
        model = replace(model, moe_router_force_load_balancing=False)
    micro_batches = enough_micro_batches(workload)
    adapted = replace(
        workload,
        model=model,
        features=features,
        precision=precision,
        parallel=parallel,
        stack=replace(workload.stack, megatron_core=installed, transformer_engine=TE_VERSION),
    )
    batch = train.micro_batch_size * adapted.parallel.data_parallel_size * micro_batches
    return replace(adapted, train=replace(train, global_batch_size=batch)), tuple(notes)


def enough_micro_batches(workload: Workload) -> int:
    """As few micro batches as show every moment of a step: the pipeline filled, and one more round."""
    stages = workload.parallel.pipeline_model_parallel_size
    if workload.parallel.virtual_pipeline_model_parallel_size:
        group = workload.parallel.microbatch_group_size_per_vp_stage or stages
        return min(workload.num_microbatches, 3 * max(group, stages))
    return min(workload.num_microbatches, stages + 2 if stages > 1 else 2)
