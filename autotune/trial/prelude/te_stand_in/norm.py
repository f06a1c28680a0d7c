"""LayerNorm and RMSNorm. Saved: the input, the gain, and per row the inverse deviation (and the mean).

Source: transformer_engine/pytorch/ops/basic/{layer_norm,rmsnorm}.py (op_forward: save_for_backward(x, rstdevs) and
(x, means, rstdevs)) and module/{layernorm,rmsnorm}.py at 2.17.1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in.kernels import scratch


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The norm of each row of a matrix: (output, mean or None, inverse deviation); mean is None for RMSNorm."""
    out = torch.empty_like(x)
    mean = x.new_empty((x.shape[0],), dtype=torch.float32) if bias is not None else None
    inverse = x.new_empty((x.shape[0],), dtype=torch.float32)
    with scratch(), torch.no_grad():
        values = x.float()
        if mean is not None:
            mean.copy_(values.mean(1))
            values = values - mean[:, None]
        inverse.copy_(torch.rsqrt(values.square().mean(1) + eps))
        gain = weight.float() + 1 if zero_centered else weight.float()
        result = values * inverse[:, None] * gain
        out.copy_(result if bias is None else result + bias.float())
    return out, mean, inverse


def normalise_backward(
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor | None, inverse: Tensor, zero_centered: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the input, the gain and the bias (None for RMSNorm)."""
    grad_x, grad_weight = torch.empty_like(x), torch.empty_like(weight)
    grad_bias = torch.empty_like(weight) if mean is not None else None
    with scratch(), torch.no_grad():
        dy, values = grad.float(), x.float()
        if mean is not None:
            values = values - mean[:, None]
        hat = values * inverse[:, None]
        grad_weight.copy_((dy * hat).sum(0))
        if grad_bias is not None:
            grad_bias.copy_(dy.sum(0))
        dhat = dy * (weight.float() + 1 if zero_centered else weight.float())
        inner = dhat - hat * (dhat * hat).mean(1, keepdim=True)
        if mean is not None:
            inner = inner - dhat.mean(1, keepdim=True)
        grad_x.copy_(inner * inverse[:, None])
    return grad_x, grad_weight, grad_bias


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, zero_centered: bool) -> Tensor:
        rows = x.reshape(-1, weight.shape[0])
        out, mean, inverse = normalise(rows, weight, bias, eps, zero_centered)
        ctx.save_for_backward(rows, weight, mean, inverse)
        ctx.zero_centered, ctx.shape = zero_centered, x.shape
        return out.view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        grads = normalise_backward(grad.reshape(x.shape), x, weight, mean, inverse, ctx.zero_centered)
        return grads[0].view(ctx.shape), grads[1], grads[2], None, None


class RMSNorm(torch.nn.Module):
    """Stands for ``transformer_engine.pytorch.RMSNorm``."""

    _has_bias = False

    def __init__(
        self,
        normalized_shape: int | None = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str = "cuda",
        hidden_size: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        size = normalized_shape if normalized_shape is not None else hidden_size
        self.eps, self.zero_centered_gamma, self.sequence_parallel = eps, zero_centered_gamma, sequence_parallel
        fill = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = torch.nn.Parameter(fill(size, dtype=params_dtype, device=device))
        self.bias: torch.nn.Parameter | None = None
        if self._has_bias:
            self.bias = torch.nn.Parameter(torch.zeros(size, dtype=params_dtype, device=device))
        for parameter in self.parameters():
            parameter.sequence_parallel = bool(sequence_parallel)

    def forward(self, x: Tensor) -> Tensor:
        """Norm over the last axis; same shape and dtype."""
        out: Tensor = _Norm.apply(x, self.weight, self.bias, self.eps, self.zero_centered_gamma)
        return out


class LayerNorm(RMSNorm):
    """Stands for ``transformer_engine.pytorch.LayerNorm``."""

    _has_bias = True
