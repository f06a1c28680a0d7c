"""What of a workload the ledger does not know, by name. A prediction that silently ignores a setting is worse than none."""

from __future__ import annotations

from collections.abc import Callable

from autotune.ledger.prediction import Coverage
from autotune.workload.neutral import NEUTRAL
from autotune.workload.neutral_args import NEUTRAL_ARGS
from autotune.workload.workload import Workload

_OPTIMIZERS = {"adam", "sgd", "muon", "dist_muon", "lion"}
_POSITIONS = {"learned_absolute", "rope", "mrope", "yarn", "none"}
_VARIANTS = {None, "gdn", "gated_delta_net"}
_LAYERS = set("M*-EGWD|/")  # Mamba, attention, MLP, MoE, GDN; W and D only as far as the ledger knows their mixer

_Rule = tuple[str, Callable[[Workload], bool], str]

_RULES: tuple[_Rule, ...] = (
    ("features.peft", lambda w: w.features.peft is not None, "frozen weights and adapters are not counted"),
    ("features.cpu_offloading", lambda w: w.features.cpu_offloading, "how much is on the host depends on the link's speed"),
    (
        "features.fine_grained_activation_offloading",
        lambda w: w.features.fine_grained_activation_offloading,
        "how much is on the host depends on the link's speed",
    ),
    ("features.mlp_chunks_for_training", lambda w: w.features.mlp_chunks_for_training > 1, "chunked MLP is not modelled"),
    (
        "features.transformer_impl",
        lambda w: w.features.transformer_impl not in {"transformer_engine", "local"},
        "only transformer_engine and local are modelled",
    ),
    (
        "features.overlap_moe_expert_parallel_comm",
        lambda w: w.features.overlap_moe_expert_parallel_comm,
        "which layers of two micro-batches are alive at once is not modelled",
    ),
    ("precision.fp4", lambda w: w.precision.fp4 is not None, "FP4 copies of weights and activations are not modelled"),
    (
        "precision.fp32_residual_connection",
        lambda w: w.precision.fp32_residual_connection,
        "4-byte residuals are not modelled",
    ),
    (
        "optimizer.optimizer",
        lambda w: w.optimizer.optimizer not in _OPTIMIZERS,
        f"only {', '.join(sorted(_OPTIMIZERS))} are modelled",
    ),
    (
        "optimizer.optimizer_cpu_offload",
        lambda w: w.optimizer.optimizer_cpu_offload,
        "which states are on the host is not modelled",
    ),
    ("optimizer.use_torch_fsdp2", lambda w: w.optimizer.use_torch_fsdp2, "FSDP2's sharding is not modelled"),
    ("optimizer.use_megatron_fsdp", lambda w: w.optimizer.use_megatron_fsdp, "Megatron-FSDP's buffers are not modelled"),
    (
        "model.experimental_attention_variant",
        lambda w: w.model.experimental_attention_variant not in _VARIANTS,
        "only gated delta net is modelled",
    ),
    (
        "model.position_embedding_type",
        lambda w: w.model.position_embedding_type not in _POSITIONS,
        f"only {', '.join(sorted(_POSITIONS))} are modelled",
    ),
    (
        "model.hybrid_layer_pattern",
        lambda w: not set(w.model.hybrid_layer_pattern or "") <= _LAYERS,
        "the pattern has a layer kind that is not modelled",
    ),
)


def coverage(workload: Workload) -> Coverage:
    """Whether the ledger knows everything about a workload.

    Returns:
        Every setting that it does not know, by its name, with a word on why.
    """
    reasons = [f"{name} (never heard of)" for name in workload.other if not _neutral(name)]
    reasons += [f"{name}={_value(workload, name)} ({why})" for name, applies, why in _RULES if applies(workload)]
    return Coverage(covered=not reasons, reasons=tuple(reasons))


def _neutral(name: str) -> bool:
    leaf = name.rsplit(".", 1)[-1].lstrip("-").replace("-", "_")
    return leaf in NEUTRAL or leaf in NEUTRAL_ARGS


def _value(workload: Workload, name: str) -> object:
    section, _, field = name.partition(".")
    return getattr(getattr(workload, section), field)
