"""Collectives over gloo that leave the count of device memory alone.

NCCL works in place on the caller's buffers. Gloo clones some of them and its worker threads let go of them a little later,
at a moment of their own. So every collective runs on copies outside the count and is waited for before it returns;
the caller's buffers are never seen by another thread, and a release is deterministic. Point-to-point transfers are not
waited for before their ``wait``: a pair of ranks may each post its send first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.trial.prelude.allocator import Counter


class _Done:
    """The work object of a collective that has finished."""

    def wait(self, timeout: Any = None) -> bool:
        """It has."""
        return True

    def is_completed(self) -> bool:
        """It has."""
        return True


class _Transfer:
    """A point-to-point transfer on a copy; a receive lands in the caller's tensor at ``wait``."""

    def __init__(self, work: Any, stage: Tensor, target: Tensor | None) -> None:
        self._work, self._stage, self._target = work, stage, target

    def wait(self, timeout: Any = None) -> bool:
        """Wait, then copy what was received."""
        self._work.wait()
        if self._target is not None:
            self._target.detach().copy_(self._stage)
            self._target = None
        return True

    def is_completed(self) -> bool:
        """Whether the transfer has ended."""
        return bool(self._work.is_completed())


class _Coalesced:
    """What ``_coalescing_manager`` yields; its collectives have already finished."""

    def append(self, work: Any) -> None:
        """Nothing is left to wait for."""

    def wait(self) -> None:
        """Nothing is left to wait for."""


@contextlib.contextmanager
def _coalescing(*_: Any, **__: Any) -> Iterator[_Coalesced]:
    yield _Coalesced()


# Which arguments of each collective it only reads, and which it writes.
_TENSORS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": ((), ("tensor",)),
    "broadcast": ((), ("tensor",)),
    "reduce": ((), ("tensor",)),
    "all_gather": (("tensor",), ("tensor_list",)),
    "all_gather_into_tensor": (("input_tensor",), ("output_tensor",)),
    "_all_gather_base": (("input_tensor",), ("output_tensor",)),
    "all_gather_single": (("input_tensor",), ("output_tensor",)),  # Newer names of the two above and below.
    "reduce_scatter_single": (("input",), ("output",)),
    "reduce_scatter": (("input_list",), ("output",)),
    "reduce_scatter_tensor": (("input",), ("output",)),
    "_reduce_scatter_base": (("input",), ("output",)),
    "all_to_all_single": (("input",), ("output",)),
    "all_to_all": (("input_tensor_list",), ("output_tensor_list",)),
    "gather": (("tensor",), ("gather_list",)),
    "scatter": (("scatter_list",), ("tensor",)),
    "send": (("tensor",), ()),
    "recv": ((), ("tensor",)),
}
_inside = [False]
_OBJECTS = ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list", "barrier", "monitored_barrier")


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone(memory_format=torch.contiguous_format)
    return None if value is None else [_copy(item) for item in value]


def _write_back(target: Any, stage: Any, divisor: int) -> None:
    if isinstance(target, Tensor):
        target.detach().copy_(stage if divisor == 1 else stage / divisor)
    elif target is not None:
        for one, its_stage in zip(target, stage, strict=True):
            _write_back(one, its_stage, divisor)


def _staged(name: str, real: Callable[..., Any], counter: Counter) -> Callable[..., Any]:
    import inspect

    signature = inspect.signature(real)
    reads, writes = _TENSORS[name]

    @functools.wraps(real)
    def collective(*arguments: Any, **keywords: Any) -> Any:
        if _inside[0]:  # Torch's older names call its newer ones.
            return real(*arguments, **keywords)
        bound = signature.bind(*arguments, **keywords)
        call = bound.arguments
        wait_later = bool(call.pop("async_op", False))
        divisor = 1
        with counter.paused(), torch.no_grad():
            if call.get("op") == dist.ReduceOp.AVG:  # Gloo has no average.
                call["op"], divisor = dist.ReduceOp.SUM, dist.get_world_size(call.get("group"))
            targets = {key: call[key] for key in writes if call.get(key) is not None}
            for key in (*reads, *targets):
                call[key] = _copy(call.get(key))
            _inside[0] = True
            try:
                result = real(*bound.args, **bound.kwargs)
            finally:
                _inside[0] = False
            for key, target in targets.items():
                _write_back(target, call[key], divisor)
        return _Done() if wait_later else (result if name == "recv" else None)

    return collective


def install(counter: Counter) -> None:
    """Replace ``torch.distributed``'s collectives, before Megatron takes references to them."""
    c10d = dist.distributed_c10d

    def put(name: str, function: Callable[..., Any]) -> None:
        for module in (dist, c10d):
            if hasattr(module, name):
                setattr(module, name, function)

    for name in _TENSORS:
        if hasattr(c10d, name):
            put(name, _staged(name, getattr(c10d, name), counter))

    def uncounted(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with counter.paused():
                return real(*arguments, **keywords)

        return call

    for name in _OBJECTS:
        put(name, uncounted(getattr(c10d, name)))
    put("isend", _point_to_point(c10d.isend, counter, receives=False))
    put("irecv", _point_to_point(c10d.irecv, counter, receives=True))
    put("batch_isend_irecv", _batch)
    put("_coalescing_manager", _coalescing)


def _point_to_point(real: Callable[..., Any], counter: Counter, *, receives: bool) -> Callable[..., Any]:
    @functools.wraps(real)
    def transfer(tensor: Tensor, *arguments: Any, **keywords: Any) -> Any:
        with counter.paused(), torch.no_grad():
            stage = torch.empty_like(tensor, memory_format=torch.contiguous_format) if receives else _copy(tensor)
            return _Transfer(real(stage, *arguments, **keywords), stage, tensor if receives else None)

    return transfer


def _batch(p2p_op_list: list[Any]) -> list[Any]:
    return [op.op(op.tensor, op.peer, group=op.group, tag=op.tag) for op in p2p_op_list]
