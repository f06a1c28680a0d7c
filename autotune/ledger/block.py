"""What the builders of a layer's halves share: context, blocks, parameters and the small parts that every half has."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.ledger.ops import Op, Region, Tensor
from autotune.ledger.sizes import Sizes
from autotune.ledger.stack import ResolvedStack
from autotune.workload.workload import Workload

NVFP4_BLOCK = 16
"""Elements that share one scale of one byte (common/recipe: NVFP4_BLOCK_SCALING_SIZE at 2.17.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """Parameters of one shape on one rank (after tensor parallel sharding)."""

    name: str
    shape: tuple[int, ...]
    copies: int = 1
    expert: bool = False
    gemm: bool = False
    """Weight of a GEMM whose gradient is accumulated inside it (gradient accumulation fusion)."""
    quantized: bool = True
    """Whether FP8, where it is on, stores it in one byte; not in layers that stay in BF16."""
    frozen: bool = False
    """Whether it has neither gradient nor optimizer state (adapters train beside it)."""
    duplicated: bool = False
    """Whether tensor-parallel ranks hold it whole and add up its gradients under sequence parallelism."""
    matrix: bool = True
    """Whether Muon takes it (matrices of layers; never embedding, head, router or vectors)."""

    @property
    def numel(self) -> int:
        """Elements of all copies."""
        return math.prod(self.shape) * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Half of a layer: its operations in forward order, its label regions, its parameters."""

    ops: tuple[Op, ...]
    regions: tuple[Region, ...] = ()
    params: tuple[Param, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What every builder reads."""

    workload: Workload
    sizes: Sizes
    stack: ResolvedStack
    stand_in: bool = False
    """The CPU stand-in for Transformer Engine: it saves what it is given and makes no contiguous copies."""

    def gemm_input(self, elements: int) -> int:
        """Bytes of a tensor that only a GEMM saves.

        One byte an element under FP8, half a byte and a scale for every 16 under NVFP4: TE module/linear.py:_Linear.forward at
        2.17.1 keeps the quantized copy for the weight gradient only; tensor/nvfp4_tensor.py:NVFP4Quantizer.make_empty.
        """
        if self.workload.precision.fp4:
            return elements // 2 + elements // NVFP4_BLOCK
        if self.workload.precision.fp8:
            scales = elements // 32 if self.workload.precision.fp8_recipe == "mxfp8" else 0
            return elements + scales
        return self.sizes.width * elements

    @property
    def norm_stats(self) -> int:
        """Bytes of the fp32 statistics of one norm over the tokens outside tensor parallelism."""
        return 4 * self.sizes.shard_tokens * (2 if self.workload.model.normalization == "LayerNorm" else 1)

    def norm_params(self, name: str, width: int) -> Param:
        """Weight of a norm, and its bias for LayerNorm."""
        copies = 2 if self.workload.model.normalization == "LayerNorm" else 1
        return Param(name=name, shape=(width,), copies=copies, duplicated=True, matrix=False)

    def bias(
        self, name: str, width: int, *, enabled: bool | None = None, expert: bool = False, copies: int = 1, rows: bool = False
    ) -> tuple[Param, ...]:
        """The bias of a linear layer where the model has biases; that of a row-parallel one (``rows``) is not sharded."""
        on = self.workload.model.add_bias_linear if enabled is None else enabled
        name = f"{name}.bias"
        return (Param(name=name, shape=(width,), matrix=False, expert=expert, copies=copies, duplicated=rows),) if on else ()

    def dropout_add(self, name: str) -> tuple[Op, ...]:
        """Bias, dropout and residual add; keeps a one-byte mask of the hidden state where dropout is on.

        Source: megatron/core/fusions/fused_bias_dropout.py:_bias_dropout_add_func at d98e8a64; torch.dropout with p = 0
        returns its input.
        """
        s = self.sizes
        hidden = s.hidden_bytes
        saves: tuple[Tensor, ...] = ()
        if self.workload.model.hidden_dropout > 0:
            saves = (
                Tensor(
                    name=f"{name}.dropout_mask",
                    nbytes=s.shard_tokens * s.hidden,
                    group="hidden",
                    formula="n' h",
                    source="fused_bias_dropout.py:_bias_dropout_add_func at d98e8a64",
                ),
            )
        return (Op(name=f"{name}.add", saves=saves, forward_bytes=2 * hidden, backward_bytes=2 * hidden),)


def arriving_gradient(ctx: Context) -> int:
    """The gradient of a half's output: without dropout the residual's own tensor (fused_bias_dropout.py:_bias_dropout_add_func at
    d98e8a64: the sum hands its gradient on)."""
    return ctx.sizes.hidden_bytes if ctx.workload.model.hidden_dropout > 0 else 0


def layer_input(ctx: Context, name: str) -> Tensor:
    """The hidden state that enters a half of a layer: residual and norm input."""
    return Tensor(
        name=f"{name}.x",
        nbytes=ctx.sizes.hidden_bytes * (2 if ctx.workload.precision.fp32_residual_connection else 1),
        group="hidden",
        formula="2 n' h",
        source="transformer_layer.py:TransformerLayer.forward at 24bad8e6",
    )
