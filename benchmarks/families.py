"""Families of measured rows, by what they exercise."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.workload.workload import Workload


def family_of(row_id: str, source: str, workload: Workload | None, boundary: Boundary | None) -> str:
    """The family of one row; the first that fits, from the rarest feature to the plain case."""
    if source != "mlm_golden":
        return source
    if "mixtral" in row_id:
        return "mixtral release"
    if workload is None:
        return "unread"
    model, layout, features = workload.model, workload.parallel, workload.features
    cases = (
        ("offload, distillation", features.fine_grained_activation_offloading or "--export-kd-cfg" in workload.other),
        ("memory speed", "memory_speed" in row_id),
        ("hybrid", model.hybrid_layer_pattern is not None),
        ("linear attention", model.experimental_attention_variant is not None),
        ("FSDP", workload.optimizer.use_megatron_fsdp or workload.optimizer.use_torch_fsdp2),
        ("MoE Muon", "muon" in workload.optimizer.optimizer),
        ("MoE FP8 graphs", features.cuda_graph_impl != "none"),
        ("MoE", model.num_moe_experts is not None),
        ("dense FP8", workload.precision.fp8 is not None),
        ("local", features.transformer_impl == "local"),
        ("MLA dense", model.multi_latent_attention),
        ("CP", layout.context_parallel_size > 1),
        ("full recompute", boundary is not None and boundary.granularity == "full"),
        ("uneven PP", layout.num_layers_in_first_pipeline_stage is not None),
        ("VPP", layout.virtual_pipeline_model_parallel_size is not None),
        ("PP", layout.pipeline_model_parallel_size > 1),
    )
    return next((name for name, holds in cases if holds), "dense")
