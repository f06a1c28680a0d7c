"""Rules of experts and their overlaps. Lines: megatron/core/transformer/transformer_config.py at 2a75ac12."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.revision import EP_OVERLAP_NAMES_MOE
from autotune.boundary.rules.rule import rule


@rule("invalid", "transformer_config.py:1869-1876", labels=("shared_experts",))
def shared_experts_overlap(context: Context, _: Boundary) -> str | None:
    """The overlapped shared experts are not run where the checkpoint sits."""
    model = context.workload.model
    if model.moe_shared_expert_intermediate_size is None or not model.moe_shared_expert_overlap:
        return None
    return "shared_experts cannot be recomputed with moe_shared_expert_overlap"


@rule("invalid", "transformer_config.py:2780-2788", granularity="full")
def ep_overlap_full(context: Context, _: Boundary) -> str | None:
    """Expert-parallel overlap splits layers into pieces that full recompute would join."""
    if not context.workload.features.overlap_moe_expert_parallel_comm:
        return None
    return "full recompute does not work with overlap_moe_expert_parallel_comm"


@rule("invalid", "transformer_config.py:2789-2791", labels=("moe",), since=EP_OVERLAP_NAMES_MOE)
def ep_overlap_moe(context: Context, _: Boundary) -> str | None:
    """Replaying the whole MoE would repeat the overlapped communication; inner labels stay."""
    if not context.workload.features.overlap_moe_expert_parallel_comm:
        return None
    return "moe cannot be recomputed with overlap_moe_expert_parallel_comm; moe_act and layernorm can"


@rule(
    "invalid",
    "Megatron Bridge 600d069b training/comm_overlap.py:510",
    labels=("moe",),
    until=EP_OVERLAP_NAMES_MOE,
    checked_in="bridge",
)
def bridge_ep_overlap_moe(context: Context, _: Boundary) -> str | None:
    """Before Megatron Core checked it, Bridge did: the overlapped schedule calls the parts of MoELayer, not its forward."""
    if not context.workload.features.overlap_moe_expert_parallel_comm:
        return None
    return "moe cannot be recomputed with overlap_moe_expert_parallel_comm (Megatron Bridge checks it); moe_act and layernorm can"


RULES = (shared_experts_overlap, ep_overlap_full, ep_overlap_moe, bridge_ep_overlap_moe)
