"""What ``torch.compile`` fuses on a GPU is one kernel here too: its outputs are device memory, nothing between them is.

Megatron decorates its element-wise functions (SwiGLU and its gradient, scaled softmax, fused cross entropy) with
``jit_fuser``, which is ``torch.compile``. On a CPU they run eager; without this, their intermediate results would count as
device memory that no GPU ever allocates. Where autograd has to look inside, a function runs as it is: what a compiled
graph would keep for backward is the compiler's choice. The same holds for matrix products: those of a CPU repack 16-bit
operands, those of cuBLAS have a workspace of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.allocator import Counter
from autotune.trial.prelude.te_stand_in.kernels import multiplies


def install(counter: Counter) -> None:
    """Replace ``torch.compile`` and the matrix products, before Megatron is imported."""

    def compile(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile
        if isinstance(model, torch.nn.Module) or not callable(model):
            return model
        return _one_kernel(model, counter)

    torch.compile = compile
    for name in ("matmul", "mm", "bmm", "addmm", "baddbmm"):
        for owner in (torch, Tensor):
            setattr(owner, name, _one_kernel(_product(getattr(owner, name)), counter))


def _product(function: Callable[..., Any]) -> Callable[..., Any]:
    """A matrix product in single precision where this CPU is slow at its type; the result has the type all the same."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        slow = {v.dtype for v in arguments if isinstance(v, Tensor) and not multiplies(v.dtype)}
        tracked = torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in arguments)
        if len(slow) != 1 or tracked or keywords.get("out") is not None:
            return function(*arguments, **keywords)
        (dtype,) = slow
        wide = (v.float() if isinstance(v, Tensor) and v.dtype == dtype else v for v in arguments)
        return function(*wide, **keywords).to(dtype)

    return call


def _one_kernel(function: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        tensors = [value for value in (*arguments, *keywords.values()) if isinstance(value, Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return function(*arguments, **keywords)
        with counter.paused():
            result = function(*arguments, **keywords)
        return _on_device(result, {tensor.untyped_storage()._cdata for tensor in tensors})

    def _on_device(value: Any, given: set[int]) -> Any:
        if isinstance(value, Tensor):
            # An argument written in place, or a view of it, is where it was.
            return value if value.untyped_storage()._cdata in given else value.clone()
        if isinstance(value, (tuple, list)):
            return type(value)(_on_device(item, given) for item in value)
        return value

    return call
