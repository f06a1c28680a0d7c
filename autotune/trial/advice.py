"""What to do about each class of failure; the rows are those of NVIDIA's guide to activation recompute, and its neighbours.

Source: Megatron Bridge, skills/nemo-mbridge-perf-activation-recompute, "Failure Diagnosis", at 600d069b.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.trial.failure import Symptom, class_of
from autotune.units import format_gb

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ALLOCATOR = (
    f"{EXPANDABLE} before any recompute",
    "with CUDA graphs also NCCL_GRAPH_REGISTER=0, its companion",
    "not with a colocated vLLM memory pool or NCCL user buffers: they need fixed segments",
)
_BY_CLASS: dict[str, tuple[str, ...]] = {
    "oom_fragmentation": _ALLOCATOR,
    "oom_optimizer": (
        "not recompute: optimizer state is no activation",
        "distributed optimizer; BF16 moments (optimizer.use_precision_aware_optimizer=true); optimizer offload to the host",
        "more pipeline, tensor or expert parallelism, so that a rank holds fewer parameters",
    ),
    "oom_graph_capture": (
        "fewer captured scopes (model.cuda_graph_modules), or no CUDA graphs: each graph keeps a pool of its own",
        "then a wider recompute boundary that is valid under the remaining scopes",
    ),
    "nondeterministic_replay": (
        "the replay saw other shapes than the forward: routing or padding is not repeatable",
        "recompute a boundary without the router (moe_act instead of moe), or fix what differs (dropout, jitter, token padding)",
    ),
    "no_gradient": ("nothing is trained: frozen inputs under full recompute, or a loss that is not connected to the model",),
    "port": ("another process holds the rendezvous port: take another MASTER_PORT; the setting itself was not tried",),
    "launch_error": ("the ranks did not start: driver, library path or package of that node; `autotune doctor` lists them",),
    "rank_killed": (
        "something outside ended the rank: the host's memory (`dmesg`, cgroup limit), a scheduler's limit, or a person",
    ),
    "node_lost": ("the node is gone: run again without it; the setting itself was not judged",),
    "infrastructure": ("hardware, network or disk of that node: run again without it; the setting itself was not judged",),
    "hang": ("find the rank that fell behind (last line of each rank); a collective that not all ranks reach waits for ever",),
    "other": ("not known to this tool: read the traceback of that rank first, the others follow from it",),
}
COMPARISONS = {
    "farther_but_still_oom": (
        "got farther but still ran out of memory",
        "the peak moved to a later phase: evidence, no pass; require optimizer initialisation and several steady steps",
    ),
    "hot_rank_moved": (
        "the highest peak moved to another rank",
        "compare peaks by rank; tune full block/uniform placement or selective labels for the stage that is hot now",
    ),
    "label_without_effect": (
        "a label has no measurable effect",
        "the module is absent or inactive on these layers, or a captured graph bypasses its checkpoint",
    ),
}


def levers(symptom: Symptom, stage: str, kind: str | None = None) -> tuple[str, ...]:
    """What to do, the first thing first.

    Args:
        symptom: The failure.
        stage: Where in a trial's life it came (``failure.stage_of``).
        kind: Its class, where that was decided with more at hand than the symptom has.
    """
    kind = kind or class_of(symptom)
    memory = symptom.memory
    if (
        memory is not None
        and (others := memory.others_bytes) is not None
        and others > _NO_LONGER_ALONE * (memory.total_bytes or 0)
    ):
        own = levers(replace(symptom, message=""), stage, kind)
        return (f"another process holds {format_gb(others)} of this GPU (nvidia-smi): end it, then run the same again", *own)
    if kind == "oom_fragmentation" and memory is not None and memory.borderline:
        return (f"borderline, retry with expandable_segments ({EXPANDABLE}): the slack is small", *_ALLOCATOR[1:])
    if kind == "oom_capacity":
        return _capacity(symptom, stage)
    if kind == "oom_loss_path":
        return _loss_path(symptom)
    if kind == "config_invalid":
        return _invalid(symptom.message.lower())
    if kind == "other" and "illegal memory access" in symptom.message.lower():
        return _ILLEGAL_ACCESS
    return _BY_CLASS[kind]


_NO_LONGER_ALONE = 0.05
"""Share of a device held by others from which on they come first: a neighbour's context alone is well under it."""
_ILLEGAL_ACCESS = (
    "with CUDA graphs and expandable_segments: NCCL_GRAPH_REGISTER=0, without which a graph replays on memory that has moved",
    "else CUDA_LAUNCH_BLOCKING=1 names the kernel; no recompute boundary changes it",
)


_LOSS_TENSORS = 3
"""Tensors of the size of the logits that a loss has at once: logits, their FP32 copy or softmax, their gradient."""


def _loss_path(symptom: Symptom) -> tuple[str, ...]:
    """Logits are outside every layer; recompute makes room for them only where the layers keep more than they take."""
    memory = symptom.memory
    if memory is not None and memory.allocated_bytes and _LOSS_TENSORS * memory.requested_bytes < memory.allocated_bytes:
        return (
            f"the next wider boundary: {format_gb(memory.requested_bytes)} were asked for on top of "
            f"{format_gb(memory.allocated_bytes)}, so most of it is not the loss's, and what the layers keep is part of it",
            "no boundary shrinks logits and loss themselves: fused cross entropy (model.cross_entropy_loss_fusion=true)",
            "tensor parallelism splits the vocabulary; a smaller micro batch or sequence shrinks the logits",
        )
    advice = (
        "not recompute: logits and loss are outside every layer",
        "fused cross entropy (model.cross_entropy_loss_fusion=true), or log-probabilities in chunks of the sequence",
        "tensor parallelism splits the vocabulary; a smaller micro batch or sequence shrinks the logits",
    )
    if memory is not None and memory.allocated_bytes:
        return advice
    return (*advice, "where they are small beside all that is allocated, the next wider boundary makes room for them")


def _capacity(symptom: Symptom, stage: str) -> tuple[str, ...]:
    if "nccl" in symptom.message.lower():
        return (
            "NCCL found no room for its buffers beside PyTorch's memory: a wider boundary, chosen for a lower --mem-target",
            "what NCCL takes is in no count of PyTorch's: compare the device memory in use with the reserved peak",
        )
    if stage in ("launch", "model_build"):
        return (
            "not recompute: weights and gradient buffers alone do not fit",
            "more pipeline, tensor or expert parallelism; distributed optimizer",
        )
    if stage == "grad_sync":
        return (
            "not recompute: the gradient synchronisation makes its buffers",
            "grad_reduce_in_fp32=false, or larger overlap off",
        )
    where = " ".join(symptom.where).lower()
    routed = any(word in where for word in ("router", "token_dispatcher", "moe_layer", "experts.py", "deepep", "hybrid_ep"))
    first = "the next wider boundary by `autotune plan`, one label at a time, against the matched control"
    if routed:
        return (
            "moe_act, then layernorm; whole moe only for broader pressure",
            "routing imbalance: compare tokens per expert and peaks of all ranks before widening",
            first,
        )
    return (first, "for MLA mla_up_proj, for grouped MoE moe_act, for unfused attention core_attn, for dense layers mlp")


def _invalid(text: str) -> tuple[str, ...]:
    if "overlap" in text and ("moe" in text or "shared_expert" in text or "recompute" in text):
        return ("keep the overlap and take an inner boundary (moe_act, layernorm), or disable it and measure everything again",)
    if "full" in text and "graph" in text:
        return ('cuda_graph_impl="full_iteration", or CUDA graphs off: full recompute works with no other capture',)
    return (
        "the setting is refused by this revision: `autotune plan` lists what it accepts and why; more memory changes nothing",
    )
