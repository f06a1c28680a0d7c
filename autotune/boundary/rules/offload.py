"""Offloading rules. Lines: megatron/core/transformer/transformer_config.py at 2a75ac12."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.revision import OFFLOAD_INSIDE_MOE
from autotune.boundary.rules.rule import rule

_INSIDE_MOE = ("expert_fc1", "moe_act", "fused_group_mlp")


@rule("invalid", "transformer_config.py:1777-1780")
def cpu_offloading_with_recompute(context: Context, boundary: Boundary) -> str | None:
    """Any granularity but None is refused, the empty selective list too."""
    if not context.workload.features.cpu_offloading or boundary.granularity is None:
        return None
    return "cpu_offloading needs recompute_granularity None; set cpu_offloading False to recompute"


@rule("invalid", "transformer_config.py:1772-1775")
def cpu_offloading_with_pipeline(context: Context, _: Boundary) -> str | None:
    """Concerns every boundary: the workload itself cannot run."""
    if not context.workload.features.cpu_offloading or context.workload.parallel.pipeline_model_parallel_size <= 1:
        return None
    return "cpu_offloading needs pipeline_model_parallel_size 1; no recompute setting mends it"


@rule("invalid", "transformer_config.py:1931-1941", labels=("moe",), since=OFFLOAD_INSIDE_MOE)
def offload_inside_moe(context: Context, _: Boundary) -> str | None:
    """What the whole-MoE checkpoint drops cannot be offloaded as well."""
    inside = _offloaded_inside_moe(context)
    return f"moe cannot be recomputed while {', '.join(inside)} inside it is offloaded" if inside else None


@rule("not_checkable", "transformer_config.py:1931-1941", labels=("moe",), until=OFFLOAD_INSIDE_MOE)
def offload_inside_moe_unchecked(context: Context, _: Boundary) -> str | None:
    """Older revisions let it through; the check's own message says that it ends in errors."""
    inside = _offloaded_inside_moe(context)
    if not inside:
        return None
    return f"moe with {', '.join(inside)} offloaded inside it: refused from release 0.19 on, not checked by this revision"


def _offloaded_inside_moe(context: Context) -> list[str]:
    features = context.workload.features
    if not features.fine_grained_activation_offloading:
        return []
    return [module for module in _INSIDE_MOE if module in features.offload_modules]


RULES = (cpu_offloading_with_recompute, cpu_offloading_with_pipeline, offload_inside_moe, offload_inside_moe_unchecked)
