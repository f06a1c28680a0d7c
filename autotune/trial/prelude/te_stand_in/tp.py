"""Collectives over a tensor-parallel group, along the first axis."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


def group_size(group: Any) -> int:
    """Ranks of a group, 1 for none."""
    return 1 if group is None else int(group.size())


def gather_rows(x: Tensor, group: Any) -> Tensor:
    """All ranks' rows, in rank order: ``[n, ...] -> [n * size, ...]``."""
    size = group_size(group)
    if size == 1:
        return x
    out = x.new_empty((x.shape[0] * size, *x.shape[1:]))
    dist.all_gather_into_tensor(out, x.contiguous(), group=group)
    return out


def scatter_rows(x: Tensor, group: Any) -> Tensor:
    """This rank's share of the sum over ranks: ``[n, ...] -> [n / size, ...]``."""
    size = group_size(group)
    if size == 1:
        return x
    out = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    dist.reduce_scatter_tensor(out, x.contiguous(), group=group)
    return out


def sum_over_ranks(x: Tensor, group: Any) -> Tensor:
    """The sum over ranks, in place."""
    if group_size(group) > 1:
        dist.all_reduce(x, group=group)
    return x
