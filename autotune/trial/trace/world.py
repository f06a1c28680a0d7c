"""A world of which one rank exists: groups of every size, collectives that find everyone else like this rank."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.trial.prelude.collectives import _Coalesced, _coalescing, _Done

SMALL_ELEMENTS = 65536
_SILENT = (
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base",
    "reduce_scatter_single", "all_to_all_single", "all_to_all", "gather", "scatter", "send", "recv", "isend", "irecv",
    "broadcast_object_list", "gather_object", "scatter_object_list", "barrier", "monitored_barrier",
)  # fmt: skip
"""What they would write stays unwritten, as kernels' outputs do."""


def install() -> None:
    """Replace ``torch.distributed``'s collectives, before Megatron takes references to them."""
    c10d = dist.distributed_c10d

    def put(name: str, function: Callable[..., Any]) -> None:
        for module in (dist, c10d):
            if hasattr(module, name):
                setattr(module, name, function)

    for name in _SILENT:
        if hasattr(c10d, name):
            put(name, _silent)
    for name in ("all_gather_into_tensor", "_all_gather_base", "all_gather_single"):
        if hasattr(c10d, name):
            put(name, _gathered(getattr(c10d, name)))
    put("all_gather_object", _echo)
    put("batch_isend_irecv", lambda operations: [_Done() for _ in operations])
    put("_coalescing_manager", _coalescing)
    real_group = c10d.new_group

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        return real_group(ranks, backend="fake")

    put("new_group", new_group)


def join(rank: int, world_size: int) -> Callable[..., None]:
    """What stands for ``init_process_group``: become a rank of a world of that size."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    real = dist.init_process_group

    def init_process_group(*_: Any, **__: Any) -> None:
        real(backend="fake", rank=rank, world_size=world_size, store=FakeStore())

    return init_process_group


def _silent(*_: Any, **keywords: Any) -> Any:
    return _Done() if keywords.get("async_op", True) else None


def _echo(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    object_list[:] = [obj] * len(object_list)


def _gathered(real: Callable[..., Any]) -> Callable[..., Any]:
    """Gathering small tensors (token counts) gives each rank's share this rank's values."""
    names = list(inspect.signature(real).parameters)[:2]

    def gather(*arguments: Any, **keywords: Any) -> Any:
        target, own = (arguments[i] if len(arguments) > i else keywords[names[i]] for i in (0, 1))
        if isinstance(target, Tensor) and target.numel() <= SMALL_ELEMENTS and own.numel():
            with torch.no_grad():
                target.view(-1, *own.shape[1:] if own.dim() else ()).copy_(
                    own.reshape(-1, *own.shape[1:]).repeat(target.numel() // own.numel(), *[1] * max(0, own.dim() - 1))
                )
        return _Done() if keywords.get("async_op") else None

    return gather


__all__ = ["_Coalesced", "install", "join"]
