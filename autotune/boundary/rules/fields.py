"""Rules on the four fields themselves. Lines: megatron/core/transformer/transformer_config.py at 2a75ac12."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.rules.rule import rule


@rule("invalid", "transformer_config.py:1807-1813", granularity="selective")
def selective_with_num_layers(_: Context, boundary: Boundary) -> str | None:
    """Selective counts no layers."""
    if boundary.num_layers is None:
        return None
    return f"selective recompute needs recompute_num_layers None, it is {boundary.num_layers}"


@rule("invalid", "transformer_config.py:1789-1798", granularity="full")
def full_without_method(_: Context, boundary: Boundary) -> str | None:
    """Full needs a method."""
    if boundary.method in ("uniform", "block"):
        return None
    return f"full recompute needs recompute_method uniform or block, it is {boundary.method}"


@rule("invalid", "transformer_config.py:1800-1806", granularity="full")
def full_without_num_layers(_: Context, boundary: Boundary) -> str | None:
    """Full needs a number of layers."""
    return "full recompute needs recompute_num_layers" if boundary.num_layers is None else None


@rule("invalid", "core/recompute.py:checkpointed_forward (the group loop never advances)", granularity="full", checked_in="run")
def full_num_layers_below_one(_: Context, boundary: Boundary) -> str | None:
    """Megatron does not check the lower end: uniform with 0 loops for ever, below 0 is meaningless."""
    if boundary.num_layers is None or boundary.num_layers >= 1:
        return None
    if boundary.method == "block" and boundary.num_layers == 0:
        return None
    return f"recompute_num_layers has to be at least 1, it is {boundary.num_layers}"


@rule("no_effect", "core/recompute.py:checkpointed_forward", granularity="full")
def block_of_no_layers(_: Context, boundary: Boundary) -> str | None:
    """Block with 0 checkpoints nothing."""
    if boundary.method == "block" and boundary.num_layers == 0:
        return "block recompute of 0 layers recomputes nothing"
    return None


RULES = (selective_with_num_layers, full_without_method, full_without_num_layers, full_num_layers_below_one, block_of_no_layers)
