"""The facts that a figure is tied to: revisions, model, layout, batch, precision, features, steps and per-rank peaks."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.text import size
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord
from autotune.workload.workload import Workload

RANKS_LISTED = 16
"""More ranks than this are told as highest, lowest and number."""


def contract_rows(workload: Workload, recommendation: Recommendation, trial: TrialRecord | None) -> tuple[tuple[str, str], ...]:
    """Name and text of every fact; ``trial`` is the recommended boundary's, None where nothing ran."""
    return (*revision_rows(workload, recommendation), *workload_rows(workload), *_measurement_rows(recommendation, trial))


def revision_rows(workload: Workload, recommendation: Recommendation) -> tuple[tuple[str, str], ...]:
    """Revisions the answer holds for; what is not known is said to be unknown."""
    stack = workload.stack
    known = {
        "Megatron Bridge": stack.megatron_bridge,
        "Megatron Core": stack.megatron_core,
        "torch": stack.torch,
        "Transformer Engine": stack.transformer_engine,
        "NCCL": None,
        "container": stack.container,
    }
    names = {name.lower().replace(" ", "_").replace("-", "_"): name for name in known}
    for key, value in recommendation.revisions.items():
        name = names.get(key.lower().replace("-", "_"), key)
        known[name] = value or known.get(name)
    return tuple((name, value or "unknown") for name, value in known.items())


def workload_rows(workload: Workload) -> tuple[tuple[str, str], ...]:
    """What is trained: model, layout, batch, precision and the features that move memory."""
    return (
        ("recipe", f"{workload.source.reference} ({workload.source.kind}, {workload.source.revision or 'no revision'})"),
        *(("reader", note) for note in workload.source.notes),
        ("overrides", " ".join(workload.source.overrides) or "none"),
        ("model", _model(workload)),
        ("layout", _layout(workload)),
        ("batch", _batch(workload)),
        ("precision", _precision(workload)),
        ("optimizer", _optimizer(workload)),
        ("attention backend", f"{workload.features.attention_backend} ({workload.features.transformer_impl})"),
        ("CUDA graphs", _graphs(workload)),
        ("routing", _routing(workload)),
        ("hardware", f"{workload.parallel.world_size} x {workload.hardware.gpu}, {workload.hardware.gpus_per_node} a node"),
    )


def _model(workload: Workload) -> str:
    model = workload.model
    text = f"{workload.name}: {model.num_layers} layers, hidden {model.hidden_size}, {model.num_attention_heads} heads"
    if model.num_moe_experts:
        text += f", {model.num_moe_experts} experts, top {model.moe_router_topk}"
    return text


def _layout(workload: Workload) -> str:
    parallel = workload.parallel
    parts = [f"TP {parallel.tensor_model_parallel_size}", f"PP {parallel.pipeline_model_parallel_size}"]
    if parallel.virtual_pipeline_model_parallel_size:
        parts.append(f"VPP {parallel.virtual_pipeline_model_parallel_size}")
    parts += [
        f"CP {parallel.context_parallel_size}",
        f"EP {parallel.expert_model_parallel_size}",
        f"ETP {parallel.etp}",
        f"DP {parallel.data_parallel_size}",
    ]
    if parallel.sequence_parallel:
        parts.append("sequence parallel")
    return ", ".join(parts)


def _batch(workload: Workload) -> str:
    train = workload.train
    return f"sequence {train.seq_length}, micro batch {train.micro_batch_size}, global batch {train.global_batch_size}"


def _precision(workload: Workload) -> str:
    precision = workload.precision
    text = f"{precision.params_dtype} parameters, {precision.grad_dtype} gradients"
    if precision.fp8:
        text += f", FP8 {precision.fp8} ({precision.fp8_recipe})"
    return text + (f", FP4 {precision.fp4}" if precision.fp4 else "")


def _optimizer(workload: Workload) -> str:
    optimizer = workload.optimizer
    text = optimizer.optimizer + (", distributed" if optimizer.use_distributed_optimizer else "")
    return text + (", precision-aware" if optimizer.use_precision_aware_optimizer else "")


def _graphs(workload: Workload) -> str:
    features = workload.features
    if features.cuda_graph_impl == "none":
        return "none"
    scopes = ", ".join(features.cuda_graph_modules) or "whole layer"
    return f"{features.cuda_graph_impl} [{scopes}]"


def _routing(workload: Workload) -> str:
    model = workload.model
    if not model.num_moe_experts:
        return "no experts"
    dispatcher = model.moe_token_dispatcher_type
    if dispatcher == "flex":
        dispatcher += f" ({model.moe_flex_dispatcher_backend})"
    return f"{dispatcher}, balance {'forced' if model.moe_router_force_load_balancing else 'free'}"


def _measurement_rows(recommendation: Recommendation, trial: TrialRecord | None) -> tuple[tuple[str, str], ...]:
    if trial is None or recommendation.kind == "predicted":
        return (("steps run", "none: nothing was launched"), ("per-rank peak", "none measured"))
    peaks = {rank: record.allocated_peak_bytes for rank, record in sorted(trial.ranks.items())}
    return (
        ("steps run", str(trial.steps_run)),
        ("per-rank peak", f"allocated, {trial.kind}: {_peaks(peaks)}; {len(peaks)} of {trial.world_size} ranks reported"),
    )


def _peaks(peaks: dict[int, int]) -> str:
    if not peaks:
        return "no rank reported"
    ranks: Sequence[int] = list(peaks)
    if len(ranks) > RANKS_LISTED:
        ranks = [max(ranks, key=peaks.__getitem__), min(ranks, key=peaks.__getitem__)]
        return f"highest rank {ranks[0]} {size(peaks[ranks[0]])}, lowest rank {ranks[1]} {size(peaks[ranks[1]])}"
    return ", ".join(f"rank {rank} {size(peaks[rank])}" for rank in ranks)
