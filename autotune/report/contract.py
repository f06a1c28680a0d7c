"""The facts that a figure is tied to: revisions, model, layout, batch, precision, features, steps and per-rank peaks."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.text import size
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord
from autotune.workload.workload import Workload

RANKS_LISTED = 16
"""More ranks than this are told as highest, lowest and number."""
TRIALS = "trials: "
"""Before the name of a revision that trials reported themselves."""


def contract_rows(workload: Workload, recommendation: Recommendation, trial: TrialRecord | None) -> tuple[tuple[str, str], ...]:
    """Name and text of every fact; ``trial`` is the recommended boundary's, None where nothing ran."""
    on = measured_on(recommendation, trial)
    planned = " in the recipe; the trials ran without a GPU" if on and _on_cpu(recommendation, trial) else ""
    return (
        *revision_rows(workload, recommendation),
        *((name, text + planned if name == "hardware" else text) for name, text in workload_rows(workload)),
        *((("measured on", on),) if on else ()),
        *_measurement_rows(recommendation, trial),
    )


def measured_on(recommendation: Recommendation, trial: TrialRecord | None) -> str:
    """Where the answer's figures come from, and what of them is not a GPU's; empty where nothing ran."""
    if trial is None or trial.kind == "predicted":
        return ""
    details = trial.details
    ranks = f"{trial.world_size} ranks" + (f" on {_count(details['nodes'], 'node')}" if details.get("nodes") else "")
    if trial.kind == "replayed":
        return f"{ranks}, when they were recorded; replayed"
    if not _on_cpu(recommendation, trial):
        return f"{ranks}, a GPU each; {trial.kind}"
    stand_in = str(trial.revisions.get("transformer_engine") or "").startswith("stand-in")
    kernels = ", with a stand-in for Transformer Engine" if stand_in else ""
    return f"{ranks} without a GPU{kernels}: bytes are counted, {trial.kind}; step times are those of a CPU"


def _on_cpu(recommendation: Recommendation, trial: TrialRecord | None) -> bool:
    return trial is not None and trial.kind != "replayed" and trial.details.get("backend", recommendation.backend) == "cpu"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
    ran: dict[str, str | None] = {}
    for key, value in recommendation.revisions.items():
        of_trials = key.startswith(TRIALS)
        name = key.removeprefix(TRIALS)
        name = names.get(name.lower().replace("-", "_"), name)
        if of_trials:
            ran[name] = value
            known.setdefault(name, None)
        else:
            known[name] = value or known.get(name)
    return tuple((name, _revision(value, ran.get(name))) for name, value in known.items())


def _revision(of_recipe: str | None, of_trials: str | None) -> str:
    """One revision; where the trials had another one than the recipe, both."""
    if of_trials is None or of_trials == of_recipe:
        return of_recipe or "unknown"
    return f"{of_trials} in the trials" + (f"; the recipe's is {of_recipe}" if of_recipe is not None else "")


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
        *_health_rows(trial),
    )


def _health_rows(trial: TrialRecord) -> tuple[tuple[str, str], ...]:
    """What else the ranks of a trial wrote down: numbers of training, allocator, experts, command."""
    steps = [step for rank in trial.ranks.values() for step in rank.iterations]
    first = next((rank.iterations for _, rank in sorted(trial.ranks.items()) if rank.iterations), ())
    rows = []
    losses = [step["loss"] for step in first if step.get("loss") is not None]
    norms = [step["grad_norm"] for step in first if step.get("grad_norm") is not None]
    if losses:
        rows.append(("loss", f"{losses[0]:.6g} to {losses[-1]:.6g} over {_count(len(losses), 'step')}, {trial.kind}"))
    if norms:
        rows.append(("gradient norm", f"{norms[0]:.6g} to {norms[-1]:.6g}, {trial.kind}"))
    if steps:
        skipped, nan = (sum(bool(step.get(name)) for step in steps) for name in ("skipped", "nan"))
        rows.append(("skipped, NaN", f"{skipped} and {nan} of {len(steps)} iterations over all ranks"))
    retries = [rank.allocator_retries for rank in trial.ranks.values() if rank.allocator_retries is not None]
    if retries:
        rows.append(("allocator retries", f"{sum(retries)} over {_count(len(retries), 'rank')}"))
    used = [rank.device_used_bytes for rank in trial.ranks.values() if rank.device_used_bytes is not None]
    if used:
        rows.append(("device memory used", f"at most {size(max(used))}, {trial.kind}"))
    tokens = [sum(rank.tokens_per_expert) for rank in trial.ranks.values() if rank.tokens_per_expert]
    if tokens:
        rows.append(("tokens of an expert rank", f"{min(tokens)} to {max(tokens)}, {trial.kind}"))
    named = (("training loop", "loop"), ("seed", "seed"))
    rows += [(name, str(trial.details[key])) for name, key in named if trial.details.get(key) is not None]
    return tuple(rows)


def _peaks(peaks: dict[int, int]) -> str:
    if not peaks:
        return "no rank reported"
    ranks: Sequence[int] = list(peaks)
    if len(ranks) > RANKS_LISTED:
        ranks = [max(ranks, key=peaks.__getitem__), min(ranks, key=peaks.__getitem__)]
        return f"highest rank {ranks[0]} {size(peaks[ranks[0]])}, lowest rank {ranks[1]} {size(peaks[ranks[1]])}"
    return ", ".join(f"rank {rank} {size(peaks[rank])}" for rank in ranks)
