"""On which layers each label has a site, read from the layer specs and constructors of Megatron Core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autotune.boundary.revision import GRAPH_MODULES, Revision
from autotune.workload.architecture import HYBRID_SYMBOLS, LayerKind, mtp_depths
from autotune.workload.workload import Workload


class LayerLike(Protocol):
    """One layer, as ``workload.architecture.LayerKind`` names its mixer and its MLP."""

    @property
    def mixer(self) -> str:
        """The kind of mixer."""
        ...

    @property
    def mlp(self) -> str:
        """The kind of MLP."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Where one label acts: 0-based layer indices (MTP layers follow the decoder's), or why nowhere."""

    layers: tuple[int, ...]
    why_none: str = ""


_LATENT = ("mla", "dsa")
"""Mixers with MLA's projections; sparse attention builds on absorbed MLA (absorbed_mla.py:182, 837 at 2a75ac12)."""


def mtp_depth(workload: Workload) -> int:
    """Multi-token prediction layers: as the field says, or as a hybrid pattern spells them after ``/``."""
    return workload.model.mtp_num_layers or mtp_depths(workload.model.hybrid_layer_pattern or "")


def with_mtp_layers(workload: Workload, layers: Sequence[LayerLike]) -> tuple[LayerLike, ...]:
    """The decoder's layers, then those of multi-token prediction, which the same labels reach.

    An MTP layer is built from the last decoder layer's spec (gpt_layer_specs.py:get_gpt_mtp_block_spec), or from the
    pattern after ``/`` in a hybrid model.
    """
    depth = mtp_depth(workload)
    if depth == 0 or not layers:
        return tuple(layers)
    pattern = (workload.model.hybrid_layer_pattern or "").partition("/")[2].partition("/")[0]
    inner: list[LayerLike] = [LayerKind(*HYBRID_SYMBOLS[symbol]) for symbol in pattern if symbol in HYBRID_SYMBOLS]
    return (*layers, *((inner or [layers[-1]]) * depth))


def label_sites(workload: Workload, layers: Sequence[LayerLike], revision: Revision) -> Mapping[str, Sites]:
    """Sites of every label this project knows well enough; a label that is absent here has unknown sites."""
    model = workload.model
    shared = (model.moe_shared_expert_intermediate_size or 0) > 0
    hyper = bool(workload.other.get("model.enable_mhc_connections"))
    return {
        "core_attn": _where(layers, lambda layer: layer.mixer in ("attention", *_LATENT), "no layer has an attention core"),
        "mla_up_proj": _where(layers, lambda layer: layer.mixer in _LATENT, "no layer has multi-latent attention"),
        "gdn_norm_out": _where(layers, lambda layer: layer.mixer == "gdn", "no layer is a gated delta net"),
        "mlp": _where(layers, lambda layer: layer.mlp == "dense", "no layer has a dense MLP (the label skips MoE layers)"),
        "moe": _moe_sites(workload, layers, revision),
        "moe_act": _where(layers, lambda layer: layer.mlp == "moe", "no layer has a mixture of experts"),
        "shared_experts": (
            _where(layers, lambda layer: layer.mlp == "moe", "no layer has a mixture of experts")
            if shared
            else Sites(layers=(), why_none="the model has no shared experts (moe_shared_expert_intermediate_size is not set)")
        ),
        "mhc": (
            Sites(layers=tuple(range(len(layers))))
            if hyper
            else Sites(layers=(), why_none="hyper-connections are off (enable_mhc_connections)")
        ),
        "layernorm": _layernorm_sites(workload, layers, revision),
    }


def _where(layers: Sequence[LayerLike], acts: Callable[[LayerLike], bool], why_none: str) -> Sites:
    found = tuple(index for index, layer in enumerate(layers) if acts(layer))
    return Sites(layers=found, why_none="" if found else why_none)


def _moe_sites(workload: Workload, layers: Sequence[LayerLike], revision: Revision) -> Sites:
    """MoE layers, but for local CUDA graphs: there MoELayer leaves the checkpoint to MoETransformerLayer, which only the
    hybrid stack builds and which takes it only with a captured router (moe_layer.py:245-250,
    transformer_layer.py:1557-1562, 1597-1604 at 2a75ac12; the same in 0.16.1).
    """
    found = _where(layers, lambda layer: layer.mlp == "moe", "no layer has a mixture of experts")
    scopes = set(workload.features.cuda_graph_modules)
    partial = (
        workload.model.hybrid_layer_pattern is not None and scopes & {"moe_router", "moe_preprocess"} and "moe" not in scopes
    )
    if workload.features.cuda_graph_impl != "local" or not revision.has(GRAPH_MODULES) or "full_iteration" in scopes or partial:
        return found
    return Sites(layers=(), why_none=found.why_none or "local CUDA graphs bypass the checkpoint around the whole MoE")


def _layernorm_sites(workload: Workload, layers: Sequence[LayerLike], revision: Revision) -> Sites:
    """Layers with a norm that is a module of its own and that the label may checkpoint.

    Transformer Engine specs fuse the norm into the next linear layer, but for the MLA input norm and the MoE pre-MLP
    norm (models/gpt/gpt_layer_specs.py:248-340, models/hybrid/hybrid_layer_specs.py:140-232 at 2a75ac12); the local
    spec has real norms everywhere (gpt_layer_specs.py:385-460).
    """
    hybrid = workload.model.hybrid_layer_pattern is not None
    if workload.features.transformer_impl == "local" and not hybrid:
        return Sites(layers=tuple(range(len(layers))))
    fused_mla_input = bool(workload.other.get("model.mla_down_proj_fusion"))
    blocked = _graph_blocks_pre_mlp_norm(workload, revision)
    found = tuple(
        index
        for index, layer in enumerate(layers)
        if (layer.mixer in _LATENT and not fused_mla_input) or (layer.mlp == "moe" and not blocked)
    )
    if found:
        return Sites(layers=found)
    if blocked and any(layer.mlp == "moe" for layer in layers):
        return Sites(
            layers=(),
            why_none="the captured MoE router returns the norm's output as a static buffer, so Megatron Core disables it",
        )
    return Sites(layers=(), why_none="every norm is fused into the linear layer after it")


def _graph_blocks_pre_mlp_norm(workload: Workload, revision: Revision) -> bool:
    """transformer_layer.py:456-497 can_recompute_pre_mlp_layernorm_for_cudagraph at 2a75ac12 (from release 0.16)."""
    model, features = workload.model, workload.features
    if not revision.has(GRAPH_MODULES) or "moe_router" not in features.cuda_graph_modules or features.cuda_graph_impl == "local":
        return False
    if model.moe_shared_expert_intermediate_size is not None and model.moe_shared_expert_overlap:
        return True
    preprocess = "moe_preprocess" in features.cuda_graph_modules
    return not (preprocess and (model.moe_token_dispatcher_type == "alltoall" or bool(model.moe_latent_size)))
