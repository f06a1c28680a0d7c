"""GroupedLinear: one product for each expert over its rows of one input.

Saved in bf16, source transformer_engine/pytorch/module/grouped_linear.py:_GroupedLinear.forward at 2.17.1: the splits of
the input (views of it) and the weights; all outputs are rows of one buffer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in.base import BaseModule
from autotune.trial.prelude.te_stand_in.kernels import product_into, scratch, weight_gradient


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, splits: list[int], fuse: bool, num_gemms: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:num_gemms], parameters[num_gemms:]
        rows = x.reshape(-1, weights[0].shape[1])
        out = x.new_empty((rows.shape[0], weights[0].shape[0]))
        with scratch(), torch.no_grad():
            pieces = zip(torch.split(rows, splits), torch.split(out, splits), weights, strict=True)
            for index, (piece, target, weight) in enumerate(pieces):
                if len(piece):
                    product_into(target, piece, weight.t())
                    if biases:
                        target.add_(biases[index])
        ctx.save_for_backward(rows, *weights)
        ctx.weight_objects, ctx.splits, ctx.fuse, ctx.has_bias, ctx.shape = weights, splits, fuse, bool(biases), x.shape
        return out.view(*x.shape[:-1], weights[0].shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        rows = ctx.saved_tensors[0]
        weights = ctx.weight_objects
        grad = grad.reshape(-1, weights[0].shape[0])
        grad_rows = torch.empty_like(rows) if ctx.needs_input_grad[0] else None
        grad_splits = torch.split(grad, ctx.splits)
        if grad_rows is not None:
            for piece, target, weight in zip(grad_splits, torch.split(grad_rows, ctx.splits), weights, strict=True):
                if len(piece):
                    product_into(target, piece, weight)
        grad_weights: list[Tensor | None] = [None] * len(weights)
        if weights[0].requires_grad:
            pieces = zip(grad_splits, torch.split(rows, ctx.splits), weights, strict=True)
            grad_weights = [weight_gradient(weight, dy, x, fuse=ctx.fuse) for dy, x, weight in pieces]
        grad_biases = [piece.sum(0) for piece in grad_splits] if ctx.has_bias else []
        grad_x = None if grad_rows is None else grad_rows.view(ctx.shape)
        return grad_x, None, None, None, *grad_weights, *grad_biases


class GroupedLinear(BaseModule):
    """Stands for ``transformer_engine.pytorch.GroupedLinear``."""

    def __init__(self, num_gemms: int, in_features: int, out_features: int, **arguments: Any) -> None:
        super().__init__(in_features, out_features, **arguments)
        self.num_gemms = num_gemms
        for index in range(num_gemms):
            setattr(self, f"weight{index}", self.make_weight())
            if self.use_bias:
                setattr(self, f"bias{index}", self.make_bias())

    def forward(self, inp: Tensor, m_splits: list[int], is_first_microbatch: bool | None = None) -> Any:
        """``[tokens, in] -> [tokens, out]``; ``m_splits`` are the tokens of each expert."""
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []
        out = _GroupedLinear.apply(
            inp,
            [int(n) for n in m_splits],
            self.fuse_wgrad_accumulation,
            self.num_gemms,
            *weights,
            *(biases if self.apply_bias else []),
        )
        return (out, biases) if self.return_bias else out
