"""Gated delta rule, causal convolution and L2 norm in plain PyTorch in the place of ``fla``'s Triton kernels.

Kept for backward (fla 0.4): convolution its input; L2 norm its output and inverse norms (modules/l2norm.py:L2NormFunction);
the rule q, k, v, beta, the summed gates in fp32, and the inverse of each 64-step chunk's matrix
(ops/gated_delta_rule/chunk.py:ChunkGatedDeltaRuleFunction).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autotune.trial.prelude.ssm_stand_in.opaque import opaque

CHUNK = 64


def _causal_conv(x: Tensor, weight: Tensor, *bias: Tensor, activation: str | None) -> Tensor:
    taps = weight.shape[-1]
    out = F.conv1d(x.float().transpose(1, 2), weight.float()[:, None], bias[0].float() if bias else None,
                   padding=taps - 1, groups=weight.shape[0])[..., : x.shape[1]].transpose(1, 2)  # fmt: skip
    return (F.silu(out) if activation in ("silu", "swish") else out).to(x.dtype)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> tuple[Tensor, None]:
    """``fla.modules.convolution.causal_conv1d``: ``[b, s, d]`` by ``[d, w]``, depthwise."""
    return opaque(functools.partial(_causal_conv, activation=activation), x, weight, *([] if bias is None else [bias])), None


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any) -> Tensor:
    """``causal_conv1d.causal_conv1d_fn``: the same over ``[b, d, s]``."""

    def convolve(x: Tensor, *rest: Tensor) -> Tensor:
        return _causal_conv(x.transpose(1, 2), *rest, activation=activation).transpose(1, 2)

    return opaque(convolve, x, weight, *([] if bias is None else [bias]))


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        from autotune.trial.prelude.te_stand_in.kernels import scratch

        out, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.float32)
        with scratch():
            inverse.copy_(torch.rsqrt(x.float().square().sum(-1) + eps))
            out.copy_(x.float() * inverse[..., None])
        ctx.save_for_backward(out, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        from autotune.trial.prelude.te_stand_in.kernels import scratch

        out, inverse = ctx.saved_tensors
        result = torch.empty_like(out)
        with scratch():
            dy, y = grad.float(), out.float()
            result.copy_((dy - y * (dy * y).sum(-1, keepdim=True)) * inverse[..., None])
        return result, None


def l2norm(x: Tensor, eps: float = 1e-6, **_: Any) -> Tensor:
    """``fla.modules.l2norm.l2norm`` over the last axis."""
    out: Tensor = _L2Norm.apply(x, eps)
    return out


def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, scale: float) -> Tensor:
    """S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, o_t = scale q_t S_t, by chunks, in fp32.

    q and k [b, s, h, d], v [b, s, h, e], g and beta [b, s, h]. Source of the chunked form: arXiv:2412.06464, section 3.3.
    """
    dtype, length = q.dtype, q.shape[1]
    pad = -length % CHUNK

    def chunks(t: Tensor) -> Tensor:
        t = F.pad(t.float(), (0, 0) * (t.dim() - 2) + (0, pad))
        t = t.unflatten(1, (-1, CHUNK))
        return t.movedim(3, 1)  # [b, h, chunk, step, ...]

    q, k, v, g, beta = (chunks(t) for t in (q * scale, k, v, g, beta))
    total = g.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = difference.masked_fill(~lower, float("-inf")).exp()
    k_beta = k * beta[..., None]
    strict = (k_beta @ k.transpose(-1, -2)) * decay * lower.tril(-1)
    identity = torch.eye(CHUNK, device=q.device)
    inverse = torch.linalg.solve_triangular(identity + strict, identity.expand_as(strict), upper=False)
    new_values = inverse @ (v * beta[..., None])
    reads = inverse @ (k_beta * total.exp()[..., None])
    state = torch.zeros(*q.shape[:2], k.shape[-1], v.shape[-1], device=q.device)
    outputs = []
    for index in range(q.shape[2]):
        here = total[:, :, index]
        written = new_values[:, :, index] - reads[:, :, index] @ state
        inside = (q[:, :, index] @ k[:, :, index].transpose(-1, -2)) * decay[:, :, index]
        outputs.append((q[:, :, index] * here.exp()[..., None]) @ state + inside @ written)
        left = (here[..., -1:] - here).exp()[..., None]
        state = state * here[..., -1, None, None].exp() + (k[:, :, index] * left).transpose(-1, -2) @ written
    out = torch.stack(outputs, 2).flatten(2, 3)[:, :, :length]
    return out.transpose(1, 2).to(dtype)


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """``fla.ops.gated_delta_rule.chunk_gated_delta_rule``: ``[b, s, h, d]`` -> (``[b, s, h, e]``, no state)."""
    if initial_state is not None or output_final_state or cu_seqlens is not None or use_qk_l2norm_in_kernel:
        raise NotImplementedError("the delta-rule stand-in has no states, packed sequences or norm in the kernel")
    kernel = functools.partial(rule, scale=scale if scale is not None else q.shape[-1] ** -0.5)
    b, s, h, _ = q.shape
    keeps = (((b, s, h), torch.float32), ((b, s, h, CHUNK), k.dtype))
    return opaque(kernel, q, k, v, g, beta, keeps=keeps), None
