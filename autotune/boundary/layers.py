"""Which layers full recompute checkpoints together, per pipeline chunk."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary


def checkpoint_groups(boundary: Boundary, layers_in_chunk: int) -> tuple[range, ...]:
    """Groups of layers, 0-based within one (virtual) pipeline chunk, that full recompute checkpoints as one.

    uniform: groups of ``num_layers``, the last one clamped to what is left (commit 9054192b and later); block: the
    first ``num_layers`` layers one by one. Each virtual chunk is a block of its own, so both count within the chunk.
    Empty for any other granularity. Source: core/recompute.py:checkpointed_forward at 2a75ac12.
    """
    if boundary.granularity != "full" or not boundary.num_layers or boundary.num_layers < 1:
        return ()
    step = boundary.num_layers
    if boundary.method == "uniform":
        return tuple(range(first, min(first + step, layers_in_chunk)) for first in range(0, layers_in_chunk, step))
    return tuple(range(layer, layer + 1) for layer in range(min(step, layers_in_chunk)))
