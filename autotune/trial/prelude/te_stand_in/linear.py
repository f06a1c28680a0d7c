"""Linear and LayerNormLinear.

Saved for backward in bf16, source transformer_engine/pytorch/module/linear.py:_linear_forward_impl and _linear_setup_ctx,
module/layernorm_linear.py:_LayerNormLinear.forward at 2.17.1: Linear keeps its input (this rank's rows under sequence
parallelism; backward gathers them again) and the weight; LayerNormLinear keeps input, norm output, gain, mean and
inverse deviation, and the weight. Weight gradients go straight into ``main_grad`` where accumulation is fused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in import tp
from autotune.trial.prelude.te_stand_in.base import BaseModule
from autotune.trial.prelude.te_stand_in.kernels import matmul, weight_gradient
from autotune.trial.prelude.te_stand_in.norm import normalise, normalise_backward


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, mode: str | None, sp: bool, group: Any) -> Tensor:
    """Rows [n, in] -> [n', out] with the collectives of the parallel mode."""
    total = tp.gather_rows(x, group) if mode == "column" and sp else x
    out = matmul(total, weight.t())
    if bias is not None:
        out.add_(bias)
    if mode == "row":
        out = tp.scatter_rows(out, group) if sp else tp.sum_over_ranks(out, group)
    return out


def _backward(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of rows, weight and bias. The input is gathered again only for the weight gradient."""
    mode, sp, group = ctx.mode, ctx.sp, ctx.group
    if mode == "row" and sp:
        grad = tp.gather_rows(grad, group)
    grad_x = matmul(grad, weight) if ctx.needs_input_grad[0] else None
    if grad_x is not None and mode == "column":
        grad_x = tp.scatter_rows(grad_x, group) if sp else tp.sum_over_ranks(grad_x, group)
    grad_weight = None
    if weight.requires_grad:
        total = tp.gather_rows(x, group) if mode == "column" and sp else x
        grad_weight = weight_gradient(weight, grad, total, fuse=ctx.fuse)
    grad_bias = grad.sum(0) if ctx.has_bias else None
    return grad_x, grad_weight, grad_bias


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, fuse: bool, mode: str | None, sp: bool, group: Any
    ) -> Tensor:
        rows = x.reshape(-1, weight.shape[1])
        out = _forward(rows, weight, bias, mode, sp, group)
        ctx.save_for_backward(rows, weight)
        ctx.weight_object, ctx.fuse, ctx.mode, ctx.sp, ctx.group = weight, fuse, mode, sp, group
        ctx.has_bias, ctx.shape = bias is not None, x.shape
        return out.view(-1, *x.shape[1:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, _ = ctx.saved_tensors
        weight = ctx.weight_object  # The Parameter itself: main_grad hangs on the Python object.
        grad_x, grad_weight, grad_bias = _backward(ctx, grad.reshape(-1, weight.shape[0]), x, weight)
        return None if grad_x is None else grad_x.view(ctx.shape), grad_weight, grad_bias, None, None, None, None


class _LayerNormLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gain: Tensor,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        zero_centered: bool,
        fuse: bool,
        mode: str | None,
        sp: bool,
        group: Any,
        keep_norm: bool,
    ) -> Any:
        rows = x.reshape(-1, weight.shape[1])
        normed, mean, inverse = normalise(rows, gain, shift, eps, zero_centered)
        out = _forward(normed, weight, bias, mode, sp, group)
        ctx.save_for_backward(rows, gain, weight, normed, mean, inverse)
        ctx.weight_object, ctx.fuse, ctx.mode, ctx.sp, ctx.group = weight, fuse, mode, sp, group
        ctx.has_bias, ctx.shape, ctx.zero_centered = bias is not None, x.shape, zero_centered
        out = out.view(-1, *x.shape[1:-1], weight.shape[0])
        return (out, normed.view(x.shape)) if keep_norm else out

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_normed: Tensor | None = None) -> Any:
        x, gain, _, normed, mean, inverse = ctx.saved_tensors
        weight = ctx.weight_object
        grad_rows, grad_weight, grad_bias = _backward(ctx, grad.reshape(-1, weight.shape[0]), normed, weight)
        assert grad_rows is not None
        if grad_normed is not None:
            grad_rows.add_(grad_normed.reshape(grad_rows.shape))
        grad_x, grad_gain, grad_shift = normalise_backward(grad_rows, x, gain, mean, inverse, ctx.zero_centered)
        return (grad_x.view(ctx.shape), grad_gain, grad_shift, grad_weight, grad_bias, *(None,) * 7)


class Linear(BaseModule):
    """Stands for ``transformer_engine.pytorch.Linear`` (bf16 and fp32; no FP8, no user buffers)."""

    def __init__(self, in_features: int, out_features: int, **arguments: Any) -> None:
        super().__init__(in_features, out_features, **arguments)
        self.weight, self.bias = self.make_weight(), self.make_bias()

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False) -> Any:
        """``[s, b, in] -> [s', b, out]``, with the bias beside it where it is returned."""
        bias = self.bias if self.apply_bias else None
        out = _Linear.apply(
            inp, self.weight, bias, self.fuse_wgrad_accumulation, self.parallel_mode, self.sequence_parallel, self.tp_group
        )
        return (out, self.bias) if self.return_bias else out


class LayerNormLinear(BaseModule):
    """Stands for ``transformer_engine.pytorch.LayerNormLinear``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        zero_centered_gamma: bool = False,
        **arguments: Any,
    ) -> None:
        super().__init__(in_features, out_features, **arguments)
        self.eps, self.zero_centered_gamma, self.normalization = eps, zero_centered_gamma, normalization
        self.return_layernorm_output = return_layernorm_output
        gain = self._empty(in_features).fill_(0.0 if zero_centered_gamma else 1.0)
        self.layer_norm_weight = torch.nn.Parameter(gain)
        self.layer_norm_bias: torch.nn.Parameter | None = None
        if normalization == "LayerNorm":
            self.layer_norm_bias = torch.nn.Parameter(self._empty(in_features).zero_())
        for norm in (self.layer_norm_weight, self.layer_norm_bias):
            if norm is not None:
                norm.sequence_parallel = self.sequence_parallel
        self.weight, self.bias = self.make_weight(), self.make_bias()

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, fp8_output: bool = False) -> Any:
        """``[s, b, in] -> [s', b, out]`` of the norm of the input; then norm output and bias where asked for."""
        bias = self.bias if self.apply_bias else None
        result = _LayerNormLinear.apply(
            inp, self.layer_norm_weight, self.layer_norm_bias, self.weight, bias, self.eps, self.zero_centered_gamma,
            self.fuse_wgrad_accumulation, self.parallel_mode, self.sequence_parallel, self.tp_group,
            self.return_layernorm_output,
        )  # fmt: skip
        out, normed = result if self.return_layernorm_output else (result, None)
        parts = [out, *([self.bias] if self.return_bias else []), *([normed] if self.return_layernorm_output else [])]
        return parts[0] if len(parts) == 1 else tuple(parts)
