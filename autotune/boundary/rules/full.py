"""Rules of full recompute: groups, pipeline chunks, multi-token prediction, hybrid stacks.

Lines: megatron/core at 2a75ac12.
"""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.revision import HYBRID_FULL, HYPER_CONNECTIONS, UNIFORM_CLAMP
from autotune.boundary.rules.rule import rule


@rule("invalid", "transformer/multi_token_prediction.py:1452-1454", granularity="full", checked_in="run")
def mtp_uniform_groups(context: Context, boundary: Boundary) -> str | None:
    """Asserted only at run time, so it is refused here before the launch."""
    if not context.mtp_layers or boundary.method != "uniform" or boundary.num_layers in (None, 1):
        return None
    return f"multi-token prediction needs recompute_num_layers 1 with uniform, it is {boundary.num_layers}"


@rule("note", "transformer/multi_token_prediction.py:1457-1462", granularity="full")
def mtp_block_not_covered(context: Context, boundary: Boundary) -> str | None:
    """Block leaves the MTP layers as they are."""
    if not context.mtp_layers or boundary.method != "block":
        return None
    return "MTP layer not covered: block recompute skips multi-token prediction"


@rule(
    "invalid",
    "transformer/transformer_block.py before commit 9054192b",
    granularity="full",
    until=UNIFORM_CLAMP,
    checked_in="run",
)
def uniform_groups_not_clamped(context: Context, boundary: Boundary) -> str | None:
    """The last group ran past the end of the chunk and raised IndexError."""
    if boundary.method != "uniform" or not boundary.num_layers or boundary.num_layers < 1:
        return None
    if context.workload.model.hybrid_layer_pattern is not None:
        return None  # the hybrid stack of those revisions had no full recompute at all
    ragged = sorted({layers for layers in context.chunk_layers if layers % boundary.num_layers})
    if not ragged:
        return None
    chunks = ", ".join(map(str, ragged))
    return (
        f"uniform groups of {boundary.num_layers} do not divide a pipeline chunk of {chunks} layers, "
        f"which Megatron Core {context.revision.name} needs (clamped since commit 9054192b, release 0.17)"
    )


@rule("note", "core/recompute.py:checkpointed_forward", granularity="full", since=UNIFORM_CLAMP)
def uniform_group_clamped(context: Context, boundary: Boundary) -> str | None:
    """The last group is shorter; a group as long as the chunk is one group."""
    step = boundary.num_layers
    if boundary.method != "uniform" or not step or step < 1:
        return None
    if context.max_chunk_layers and step >= context.max_chunk_layers:
        longest = context.max_chunk_layers
        return f"one group holds the whole pipeline chunk ({longest} layers): the replay holds all of it again"
    ragged = sorted({layers % step for layers in context.chunk_layers if layers % step})
    return f"the last group of a pipeline chunk is clamped to {', '.join(map(str, ragged))} layers" if ragged else None


@rule("no_effect", "ssm/mamba_block.py before commit 118933a8", granularity="full", until=HYBRID_FULL)
def hybrid_stack_ignores_full(context: Context, _: Boundary) -> str | None:
    """The hybrid stack read no recompute granularity before release 0.18."""
    if context.workload.model.hybrid_layer_pattern is None:
        return None
    return f"the hybrid stack of Megatron Core {context.revision.name} ignores full recompute (added in 0.18, commit 118933a8)"


@rule("note", "core/recompute.py:checkpointed_forward", granularity="full")
def quantized_block_window_shifts(context: Context, boundary: Boundary) -> str | None:
    """With a frozen embedding the first layers' input needs no gradient, so the window moves on."""
    if boundary.method != "block" or not context.quantized or context.workload.features.peft is None:
        return None
    return "under FP8 or FP4 layers whose input needs no gradient are skipped, and the block window shifts past them"


@rule("invalid", "transformer/transformer_config.py:1815-1819")
def distributed_activations_with_sequence_parallel(context: Context, boundary: Boundary) -> str | None:
    """The kept inputs are already split under sequence parallelism."""
    if boundary.granularity is None or not context.workload.features.distribute_saved_activations:
        return None
    if not context.workload.parallel.sequence_parallel:
        return None
    return "distribute_saved_activations does not work with sequence_parallel"


@rule("note", "tensor_parallel/random.py:CheckpointFunction.forward", granularity="full")
def distributed_activations(context: Context, _: Boundary) -> str | None:
    """Acts as a part of the boundary: it decides how much of each kept input stays."""
    if not context.workload.features.distribute_saved_activations or context.workload.parallel.sequence_parallel:
        return None
    size = context.workload.parallel.tensor_model_parallel_size
    return f"distribute_saved_activations keeps 1/{size} of each checkpoint's input on a rank and gathers it for the replay"


@rule("invalid", "transformer_config.py:2069-2074 at d98e8a64", granularity="full", since=HYPER_CONNECTIONS)
def hyper_connections_with_full(context: Context, _: Boundary) -> str | None:
    """Not implemented in Megatron Core."""
    if not context.workload.other.get("model.enable_mhc_connections"):
        return None
    return "full recompute does not work with enable_mhc_connections yet"


@rule("invalid", "transformer/transformer_config.py:1892-1903", granularity="full")
def moe_layer_recompute_with_full(context: Context, _: Boundary) -> str | None:
    """The deprecated switch is refused with full."""
    if not context.moe_layer_recompute:
        return None
    return "moe_layer_recompute (deprecated) does not go with full recompute; unset it and list moe instead"


RULES = (
    mtp_uniform_groups,
    mtp_block_not_covered,
    uniform_groups_not_clamped,
    uniform_group_clamped,
    hybrid_stack_ignores_full,
    quantized_block_window_shifts,
    distributed_activations_with_sequence_parallel,
    distributed_activations,
    hyper_connections_with_full,
    moe_layer_recompute_with_full,
)
