"""Matrix products as a fused GPU library does them: the output is device memory, nothing else is.

``scratch`` is a context in which memory is not counted (the counter's pause on a CPU, nothing on a GPU): temporaries of
the emulation are not memory of the model.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

_scratch: list[Callable[[], AbstractContextManager[None]]] = [contextlib.nullcontext]


def scratch() -> AbstractContextManager[None]:
    """Memory allocated inside is not the model's."""
    return _scratch[0]()


def set_scratch(context: Callable[[], AbstractContextManager[None]]) -> None:
    """Say what ``scratch`` is on this machine."""
    _scratch[0] = context


@functools.cache
def multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies matrices of a 16-bit type in reasonable time.

    Without AVX-512 oneDNN refuses them and torch falls back on a loop that is some 40 times slower than single precision.
    """
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype != torch.float16 or bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def product_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """``out = a @ b`` of two matrices of one dtype, summed in single precision as a GPU does."""
    with scratch(), torch.no_grad():
        if multiplies(out.dtype):
            torch.mm(a, b, out=out)
        else:
            out.copy_(a.float() @ b.float())


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of two matrices into a fresh tensor of a's dtype."""
    out = a.new_empty((a.shape[0], b.shape[1]))
    product_into(out, a, b)
    return out


def matmul_into(out: Tensor, a: Tensor, b: Tensor, *, accumulate: bool) -> None:
    """``out = a @ b`` or ``out += a @ b``, summed in out's dtype (fp32 for a main gradient)."""
    with scratch(), torch.no_grad():
        dtype = out.dtype if multiplies(out.dtype) else torch.float32
        product = a.to(dtype) @ b.to(dtype)
        if accumulate:
            out.add_(product)
        else:
            out.copy_(product)


def weight_gradient(weight: Tensor, grad_output: Tensor, inp: Tensor, *, fuse: bool, zero_dummy: bool = True) -> Tensor | None:
    """Gradient of a weight, added into ``weight.main_grad`` where it is fused; then a shared dummy is returned.

    Source: transformer_engine/pytorch/module/linear.py:_linear_backward ("Handle custom DDP from mcore") at 2.17.1.
    """
    if not fuse:
        grad = weight.new_empty(weight.shape, dtype=grad_output.dtype)
        matmul_into(grad, grad_output.t(), inp, accumulate=False)
        return grad
    matmul_into(weight.main_grad, grad_output.t(), inp, accumulate=True)
    if not hasattr(weight, "grad_added_to_main_grad"):
        return None
    weight.grad_added_to_main_grad = True
    return dummy_wgrad(
        list(weight.shape), weight.dtype, device=weight.device, zero=bool(getattr(weight, "zero_out_wgrad", False))
    )


_dummies: dict[tuple[object, ...], Tensor] = {}


def dummy_wgrad(shape: list[int], dtype: torch.dtype, *, device: torch.device | str = "cuda", zero: bool = False) -> Tensor:
    """One shared tensor for each shape. Source: transformer_engine/pytorch/module/base.py:get_dummy_wgrad at 2.17.1."""
    key = (*shape, dtype)
    if key not in _dummies:
        _dummies[key] = torch.empty(shape, dtype=dtype, device=device)
    if zero:
        _dummies[key].zero_()
    return _dummies[key].detach()
