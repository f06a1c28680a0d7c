"""Everything the rules read, computed once per workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.boundary.accepted import Accepted, accepted_labels, installed_core
from autotune.boundary.revision import Revision, release_tuple, resolve_revision
from autotune.boundary.sites import LayerLike, Sites, label_sites, mtp_depth, with_mtp_layers
from autotune.workload.pipeline import stages
from autotune.workload.workload import Workload

_GDN_VARIANTS = ("gdn", "gdn2", "gated_delta_net")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A workload as the rules see it.

    ``chunk_layers`` holds the number of layers of each (virtual) pipeline chunk, all stages. ``whole_layer_captured``
    is Megatron's ``full_cudagraph``: full_iteration, or a per-layer implementation without named modules.
    """

    workload: Workload
    revision: Revision
    accepted: Accepted
    te_release: tuple[int, int, int] | None
    sites: Mapping[str, Sites]
    chunk_layers: tuple[int, ...]
    graphs_on: bool
    full_iteration: bool
    whole_layer_captured: bool
    captured: frozenset[str]
    quantized: bool
    gated_delta_net: bool
    moe_layer_recompute: bool
    mtp_layers: int
    absorbed_mla: bool

    @property
    def max_chunk_layers(self) -> int:
        """Layers of the longest pipeline chunk."""
        return max(self.chunk_layers, default=0)


def build_context(
    workload: Workload,
    layers: Sequence[LayerLike],
    *,
    chunk_layers: Sequence[int] | None = None,
    accepted: Accepted | None = None,
) -> Context:
    """Gather what the rules need.

    Args:
        workload: What is trained.
        layers: The decoder's layers in order, as the classifier gives them.
        chunk_layers: Layers of each pipeline chunk; asked of ``workload.pipeline`` where it is not given.
        accepted: Labels the revision accepts; asked of the installed Megatron Core or the table where not given.
    """
    named = workload.stack.megatron_core
    revision = resolve_revision(named)
    core = installed_core() if named is None else None
    if core is not None:
        revision = replace(resolve_revision(core.release), note=f"the workload names no revision; installed: {core.release}")
    features = workload.features
    impl = features.cuda_graph_impl
    captured = frozenset(features.cuda_graph_modules) - {"full", "full_iteration"}
    if impl == "local" and captured & {"moe_router", "moe_preprocess"}:
        captured |= {"moe_router", "moe_preprocess"}  # the local implementation does not tell them apart
    full_iteration = impl == "full_iteration" or (impl != "none" and "full_iteration" in features.cuda_graph_modules)
    return Context(
        workload=workload,
        revision=revision,
        accepted=accepted or accepted_labels(named),
        te_release=release_tuple(workload.stack.transformer_engine),
        sites=label_sites(workload, with_mtp_layers(workload, layers), revision),
        chunk_layers=tuple(chunk_layers) if chunk_layers is not None else _chunks(workload),
        graphs_on=impl != "none",
        full_iteration=full_iteration,
        whole_layer_captured=full_iteration or (impl != "none" and not captured),
        captured=captured if impl != "none" and not full_iteration else frozenset(),
        quantized=bool(workload.precision.fp8 or workload.precision.fp4),
        gated_delta_net=(workload.model.experimental_attention_variant or "") in _GDN_VARIANTS,
        moe_layer_recompute=bool(workload.other.get("model.moe_layer_recompute")),
        mtp_layers=mtp_depth(workload),
        absorbed_mla=any(layer.mixer == "dsa" for layer in layers),
    )


def _chunks(workload: Workload) -> tuple[int, ...]:
    return tuple(len(chunk) for stage in stages(workload) for chunk in stage.chunks)
