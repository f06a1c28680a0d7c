"""A fused kernel written in plain PyTorch: its outputs are device memory, what it computes with is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in.kernels import scratch


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], extra: tuple[tuple[Any, ...], ...], *tensors: Tensor) -> Tensor:
        with scratch(), torch.no_grad():
            result = function(*tensors)
        out = tensors[0].new_empty(result.shape, dtype=result.dtype)
        out.copy_(result)
        kept = [out.new_empty(shape, dtype=dtype) for shape, dtype in extra]
        for tensor in kept:
            tensor.zero_()
        ctx.save_for_backward(*tensors, *kept)
        ctx.function, ctx.number = function, len(tensors)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tensors = ctx.saved_tensors[: ctx.number]
        needs = ctx.needs_input_grad[2:]
        with scratch(), torch.enable_grad():
            leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
            wanted = [leaf for leaf, need in zip(leaves, needs, strict=True) if need]
            found = iter(torch.autograd.grad(ctx.function(*leaves), wanted, grad))
            grads = [next(found) if need else None for need in needs]
        results: list[Tensor | None] = []
        for value, tensor in zip(grads, tensors, strict=True):
            results.append(None if value is None else torch.empty_like(tensor).copy_(value))
        return None, None, *results


def opaque(function: Callable[..., Tensor], *tensors: Tensor, keeps: tuple[tuple[Any, ...], ...] = ()) -> Tensor:
    """Call ``function`` as one kernel: backward computes it again from its inputs.

    Args:
        keeps: (shape, dtype) of what the real kernel also keeps for backward; held as long as its graph is.
    """
    result: Tensor = _Opaque.apply(function, keeps, *tensors)
    return result
