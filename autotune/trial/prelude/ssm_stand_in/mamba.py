"""Mamba-2 in plain PyTorch in the place of the Triton kernels of ``mamba_ssm``.

Kept for backward, source mamba_ssm/ops/triton/ssd_combined.py:MambaSplitConv1dScanCombinedFn.forward (2.2): the packed
projection, the convolution's and the scan's parameters, and the scan's output before the gate. The chunked form of the
scan is section 6 of arXiv:2405.21060.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autotune.trial.prelude.ssm_stand_in.opaque import opaque


def _decay(log_a: Tensor) -> Tensor:
    """``[..., c] -> [..., c, c]``: the product of decays after step j up to step i, 0 above the diagonal."""
    steps = log_a.shape[-1]
    total = log_a.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    lower = torch.ones(steps, steps, dtype=torch.bool, device=log_a.device).tril()
    return difference.masked_fill(~lower, float("-inf")).exp()


def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """State-space scan: x [n, l, h, p], dt [n, l, h], a [h], b and c [n, l, h, s] -> [n, l, h, p], in fp32."""
    n, length, heads, width = x.shape
    pad = -length % chunk
    if pad:
        x, dt, b, c = (F.pad(t, (0, 0) * (t.dim() - 2) + (0, pad)) for t in (x, dt, b, c))
    chunks = (length + pad) // chunk
    x = (x * dt[..., None]).view(n, chunks, chunk, heads, width)
    b, c = (t.view(n, chunks, chunk, heads, -1) for t in (b, c))
    log_a = (dt * a).view(n, chunks, chunk, heads).permute(0, 3, 1, 2)
    total = log_a.cumsum(-1)
    scores = torch.einsum("nkihs,nkjhs->nhkij", c, b) * _decay(log_a)
    inside = torch.einsum("nhkij,nkjhp->nkihp", scores, x)
    left = (total[..., -1:] - total).exp()
    states = torch.einsum("nkjhs,nhkj,nkjhp->nkhps", b, left, x)
    state = torch.zeros_like(states[:, 0])
    before = []
    for index in range(chunks):
        before.append(state)
        state = state * total[:, :, index, -1].exp()[..., None, None] + states[:, index]
    carried = torch.einsum("nkihs,nkhps,nhki->nkihp", c, torch.stack(before, 1), total.exp())
    return (inside + carried).reshape(n, -1, heads, width)[:, :length]


def _split_conv_scan(
    zxbcdt: Tensor, weight: Tensor, bias: Tensor, dt_bias: Tensor, a: Tensor, d: Tensor, *, chunk: int, width: int, groups: int
) -> Tensor:
    heads = dt_bias.shape[0]
    inner = heads * width
    state = (weight.shape[0] - inner) // (2 * groups)
    z, xbc, dt = torch.split(zxbcdt.float(), [inner, weight.shape[0], heads], dim=-1)
    taps = weight.shape[1]
    xbc = F.conv1d(xbc.transpose(1, 2), weight.float()[:, None], bias.float(), padding=taps - 1, groups=weight.shape[0])
    xbc = F.silu(xbc[..., : zxbcdt.shape[1]].transpose(1, 2))
    x, b, c = torch.split(xbc, [inner, groups * state, groups * state], dim=-1)
    n, length = x.shape[:2]
    x = x.reshape(n, length, heads, width)
    b, c = (t.reshape(n, length, groups, state).repeat_interleave(heads // groups, 2) for t in (b, c))
    y = scan(x, F.softplus(dt + dt_bias.float()), a.float(), b, c, chunk)
    y = y + x * d.float().view(heads, -1)
    return (y.reshape(n, length, inner) * F.silu(z)).to(zxbcdt.dtype)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    activation: str = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Tensor:
    """Convolution, scan and gate in one: ``[batch, length, 2 inner + 2 groups * state + heads] -> [batch, length, inner]``."""
    if headdim is None or any(given is not None for given in (initial_states, seq_idx, rmsnorm_weight, outproj_weight)):
        raise NotImplementedError("the Mamba stand-in has no packed sequences, initial states or fused norm")
    kernel = functools.partial(_split_conv_scan, chunk=min(chunk_size, 64), width=headdim, groups=ngroups)
    inner = dt_bias.shape[0] * headdim
    keeps = (((*zxbcdt.shape[:2], inner), zxbcdt.dtype),)
    return opaque(kernel, zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, keeps=keeps)


def mamba_chunk_scan_combined(*_: Any, **__: Any) -> Any:
    """The scan without its convolution serves inference and ``use_mamba_mem_eff_path=False``."""
    raise NotImplementedError("the Mamba stand-in has the memory-efficient path only (model.use_mamba_mem_eff_path)")


class RMSNormGated(torch.nn.Module):
    """RMSNorm over groups of channels. Source: mamba_ssm/ops/triton/layernorm_gated.py:RMSNorm, kept: x, weight, rstd."""

    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-5,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.eps, self.group_size = eps, group_size or hidden_size
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, device=device, dtype=dtype))

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """``[..., hidden] -> [..., hidden]``."""
        if z is not None:
            raise NotImplementedError("the Mamba stand-in's norm has no gate: the scan applies it")
        groups = x.shape[-1] // self.group_size
        rows = x.numel() // x.shape[-1]
        return opaque(functools.partial(_group_norm, groups=groups, eps=self.eps), x, self.weight,
                      keeps=(((groups * rows,), torch.float32),))  # fmt: skip


def _group_norm(x: Tensor, weight: Tensor, *, groups: int, eps: float) -> Tensor:
    parts = x.float().unflatten(-1, (groups, -1))
    normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    return (normed.flatten(-2) * weight.float()).to(x.dtype)
