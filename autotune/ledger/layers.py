"""Layers of a workload: from layer kinds to operations and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.ledger.attention import attention_block
from autotune.ledger.block import Block, Context, Param
from autotune.ledger.gdn import gdn_block
from autotune.ledger.graphs import CapturedPart, captured_part
from autotune.ledger.mamba import mamba_block
from autotune.ledger.mla import mla_block
from autotune.ledger.mlp import mlp_block
from autotune.ledger.moe import moe_block
from autotune.ledger.ops import Layer, Op
from autotune.ledger.peft import frozen_with_adapters, with_adapters
from autotune.workload.architecture import LayerKind

_SHARES_OUTPUTS = (0, 17)
"""Before, an output that a label brings back is a copy of what was recomputed, which stays until the region's backward is through
(tensor_parallel/random.py:CheckpointWithoutOutput._recompute at core_v0.16.0: ``untyped_storage().copy_``, ``ctx.outputs``);
from f5440349 on the two share their storage."""
_MIXERS = {"attention": attention_block, "mla": mla_block, "dsa": mla_block, "gdn": gdn_block, "mamba": mamba_block}


@dataclass(frozen=True, slots=True)
class BuiltLayer:
    """One layer kind with its parameters."""

    kind: LayerKind | None
    """None for the embedding and the head, which no boundary reaches."""
    layer: Layer
    params: tuple[Param, ...]
    graph: CapturedPart | None = None
    """What CUDA graphs capture of it; None where they capture nothing."""
    loss: bool = False
    """Whether its forward belongs to the loss phase."""


def build_layer(ctx: Context, kind: LayerKind) -> BuiltLayer:
    """Operations, regions and parameters of one layer kind."""
    blocks: list[Block] = []
    if kind.mixer != "none":
        blocks.append(_MIXERS[kind.mixer](ctx))
    if kind.mlp != "none":
        blocks.append(moe_block(ctx) if kind.mlp == "moe" else mlp_block(ctx))
    name = f"{kind.mixer}+{kind.mlp}"
    ops: Sequence[Op] = [op for block in blocks for op in block.ops]
    params: Sequence[Param] = [param for block in blocks for param in block.params]
    if ctx.workload.features.peft:
        ops, params = with_adapters(ctx, ops), frozen_with_adapters(ctx, params)
    regions = [region for block in blocks for region in block.regions]
    residual = ctx.sizes.hidden_bytes
    return BuiltLayer(
        kind,
        Layer(
            name,
            ops,
            regions,
            residual_bytes=residual,
            delays_wgrad=ctx.workload.features.delay_wgrad_compute,
            restores_copies=ctx.stack.mcore < _SHARES_OUTPUTS,
        ),
        tuple(params),
        graph=captured_part(ctx, kind, name, ops, regions, residual_bytes=residual),
    )
