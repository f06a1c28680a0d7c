"""DotProductAttention by a fused kernel: nothing of size s^2 is kept.

Saved, source transformer_engine/pytorch/attention/dot_product_attention/backends.py:FusedAttnFunc.forward at 2.17.1: q, k,
v, the output, the softmax statistics [b, heads, s, 1] in fp32, and the two 64-bit words of the random state.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autotune.trial.prelude.te_stand_in.kernels import scratch

_MASKS = ("causal", "no_mask")


def _allowed(sq: int, sk: int, mask: str, window: tuple[int, int] | None) -> Tensor | None:
    """Which key each query may see, or None for all; bottom-right aligned as for equal lengths."""
    rows, columns = torch.arange(sq)[:, None] + (sk - sq), torch.arange(sk)[None, :]
    allowed = columns <= rows if mask == "causal" else None
    if window is not None and window != (-1, -1):
        left, right = window
        near = (columns >= rows - left) if left >= 0 else torch.ones(sq, sk, dtype=torch.bool)
        if right >= 0:
            near = near & (columns <= rows + right)
        allowed = near if allowed is None else allowed & near
    return allowed


def _keep(seed: Tensor, shape: torch.Size, p: float) -> Tensor:
    """The dropout mask of a saved random state, scaled."""
    generator = torch.Generator().manual_seed(int(seed[0]))
    return (torch.rand(shape, generator=generator) >= p).float() / (1 - p)


class _FusedAttention(torch.autograd.Function):
    """q [s, b, a, d], k and v [s, b, g, d]; every group of a/g query heads shares one key head."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, mask: str, window: tuple[int, int] | None, p: float
    ) -> Tensor:
        sq, b, a, _ = q.shape
        out = q.new_empty((sq, b, a, v.shape[3]))
        statistics = q.new_empty((b, a, sq, 1), dtype=torch.float32)
        random_state = q.new_empty((2,), dtype=torch.int64)
        with scratch(), torch.no_grad():
            random_state.zero_()
            if p > 0:
                random_state[0] = torch.randint(0, 2**62, (1,))[0]
            scores = _FusedAttention.scores(q, k, scale, mask, window)
            highest = scores.amax(-1, keepdim=True)
            probabilities = scores.sub_(highest).exp_()
            total = probabilities.sum(-1, keepdim=True)
            statistics.copy_(highest + total.log())
            probabilities.div_(total)
            if p > 0:
                probabilities = probabilities * _keep(random_state, probabilities.shape, p).to(q.device)
            values = v.float().repeat_interleave(a // v.shape[2], 2).permute(1, 2, 0, 3)
            out.copy_((probabilities @ values).permute(2, 0, 1, 3))
        ctx.save_for_backward(q, k, v, out, statistics, random_state)
        ctx.scale, ctx.mask, ctx.window, ctx.p = scale, mask, window, p
        return out.view(sq, b, -1)

    @staticmethod
    def scores(q: Tensor, k: Tensor, scale: float, mask: str, window: tuple[int, int] | None) -> Tensor:
        """Masked scores [b, a, sq, sk] in fp32."""
        keys = k.float().repeat_interleave(q.shape[2] // k.shape[2], 2)
        scores = (q.float() * scale).permute(1, 2, 0, 3) @ keys.permute(1, 2, 3, 0)
        allowed = _allowed(q.shape[0], k.shape[0], mask, window)
        return scores if allowed is None else scores.masked_fill_(~allowed.to(q.device), float("-inf"))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, out, statistics, random_state = ctx.saved_tensors
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        with scratch(), torch.no_grad():
            b, a, groups = q.shape[1], q.shape[2], k.shape[2]
            dout = grad.view(out.shape).float().permute(1, 2, 0, 3)
            keys = k.float().repeat_interleave(a // groups, 2).permute(1, 2, 0, 3)
            values = v.float().repeat_interleave(a // groups, 2).permute(1, 2, 0, 3)
            probabilities = _FusedAttention.scores(q, k, ctx.scale, ctx.mask, ctx.window).sub_(statistics).exp_()
            keep = _keep(random_state, probabilities.shape, ctx.p).to(q.device) if ctx.p > 0 else 1.0
            dv = (probabilities * keep).transpose(2, 3) @ dout
            inner = (dout * out.float().permute(1, 2, 0, 3)).sum(-1, keepdim=True)
            dscores = (dout @ values.transpose(2, 3)).mul_(keep).sub_(inner).mul_(probabilities).mul_(ctx.scale)
            grad_q.copy_((dscores @ keys).permute(2, 0, 1, 3))
            dk = dscores.transpose(2, 3) @ q.float().permute(1, 2, 0, 3)
            for target, value in ((grad_k, dk), (grad_v, dv)):
                heads = value.view(b, groups, a // groups, *value.shape[2:]).sum(2)
                target.copy_(heads.permute(2, 0, 1, 3))
        return grad_q, grad_k, grad_v, None, None, None, None


class DotProductAttention(torch.nn.Module):
    """Stands for ``transformer_engine.pytorch.DotProductAttention`` with its fused backend, format sbhd."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        softmax_scale: float | None = None,
        softmax_type: str = "vanilla",
        return_max_logit: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        if softmax_type != "vanilla" or return_max_logit or cp_group is not None:
            raise NotImplementedError("the attention stand-in has no softmax offset, no maximum logit and no context parallelism")
        key_channels = kv_channels if isinstance(kv_channels, int) else kv_channels[0]
        self.softmax_scale = softmax_scale if softmax_scale is not None else 1.0 / math.sqrt(key_channels)
        self.attn_mask_type, self.window_size, self.attention_dropout = attn_mask_type, window_size, attention_dropout
        self.get_rng_state_tracker, self.sequence_parallel = get_rng_state_tracker, sequence_parallel

    def set_context_parallel_group(self, *arguments: Any) -> None:
        """Only "no group" can be set."""
        if arguments and arguments[0] is not None:
            raise NotImplementedError("the attention stand-in has no context parallelism")

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Tensor | None = None,
        attn_mask_type: str | None = None,
        **others: Any,
    ) -> Tensor:
        """``[s, b, heads, d]`` thrice -> ``[s, b, heads * d_v]``."""
        mask = attn_mask_type or self.attn_mask_type
        if mask not in _MASKS or others.get("core_attention_bias") is not None or others.get("qkv_format", "sbhd") != "sbhd":
            raise NotImplementedError(f"the attention stand-in does masks {_MASKS} in sbhd without bias, not {mask}")
        p = self.attention_dropout if self.training else 0.0
        tracker = self.get_rng_state_tracker() if p > 0 and self.get_rng_state_tracker is not None else None
        # As TE does: the draw runs under the model-parallel random state unless the sequence is sharded.
        with tracker.fork() if tracker is not None and not self.sequence_parallel else contextlib.nullcontext():
            out: Tensor = _FusedAttention.apply(
                query_layer, key_layer, value_layer, self.softmax_scale, mask, self.window_size, p
            )
        return out
