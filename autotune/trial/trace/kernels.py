"""A dispatch mode under which kernels are skipped: outputs are allocated with the right shape and never written.

Tensors are real, so views, storages, autograd and the counting allocator work as in a trial; memory that nobody writes is
address space only. What an operation returns is found once with meta tensors and remembered by shapes. Small operations, and
everything inside ``real``, run as they are, so sizes that depend on data (routing) have values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

SMALL_ELEMENTS = 65536
"""Operations on no more than this run for real."""


class SkippedKernels(TorchDispatchMode):  # type: ignore[misc]  # torch has no types for it
    """Skips large kernels. ``real`` is a context in which none is."""

    def __init__(self) -> None:
        super().__init__()
        self._real = 0
        self._known: dict[Any, Any] = {}
        self.skipped = self.run = 0

    @contextlib.contextmanager
    def real(self, on: bool = True) -> Iterator[None]:
        """Run everything inside (or, with ``on`` False, skip as usual inside a ``real``)."""
        before, self._real = self._real, int(on)
        try:
            yield
        finally:
            self._real = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._real or func.is_view or func.namespace not in ("aten", "prims"):
            return func(*args, **kwargs)
        flat, _ = tree_flatten((args, kwargs))
        tensors = [value for value in flat if isinstance(value, Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default:
            return func(*args, **kwargs)
        largest = max((tensor.numel() for tensor in tensors), default=0)
        schema = func._schema
        if schema.is_mutable:
            if largest <= SMALL_ELEMENTS or func.overloadpacket in _RESIZES:
                self.run += 1
                return func(*args, **kwargs)
            self.skipped += 1
            return self._mutated(schema, args, kwargs)
        outputs = self._outputs(func, args, kwargs, flat)
        if outputs is None or (largest <= SMALL_ELEMENTS and _elements(outputs) <= SMALL_ELEMENTS):
            self.run += 1
            return func(*args, **kwargs)
        self.skipped += 1
        return tree_map_only(_Spec, _Spec.make, outputs)

    def _outputs(self, func: Any, args: Any, kwargs: Any, flat: list[Any]) -> Any:
        key: Any = (func, *(_signature(value) for value in flat), tuple(kwargs))
        try:
            known = self._known.get(key, self)
        except TypeError:
            return None
        if known is self:
            known = self._known[key] = _inferred(func, args, kwargs)
        return known

    @staticmethod
    def _mutated(schema: Any, args: Any, kwargs: Any) -> Any:
        """What an operation in place returns: the arguments that its schema marks as written."""
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | dict(kwargs)
        written = [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        returned = [value for value in written if value is not None][: len(schema.returns)]
        if not schema.returns:
            return None
        return returned[0] if len(schema.returns) == 1 else tuple(returned)


_RESIZES = frozenset({torch.ops.aten.resize_, torch.ops.aten.set_})


class _Spec:
    """Shape, strides and dtype of an output."""

    __slots__ = ("dtype", "size", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.size, self.stride, self.dtype = tuple(tensor.size()), tensor.stride(), tensor.dtype

    def make(self) -> Tensor:
        """A tensor like it. A single value is one, or true: a norm, a check that all is finite."""
        made = torch.ops.aten.empty_strided.default(self.size, self.stride, dtype=self.dtype, device="cpu")
        return made.fill_(1) if made.numel() == 1 else made


def _elements(outputs: Any) -> int:
    total = 0
    for spec in tree_flatten(outputs)[0]:
        if isinstance(spec, _Spec):
            size = 1
            for length in spec.size:
                size *= length
            total = max(total, size)
    return total


def _signature(value: Any) -> Any:
    if isinstance(value, Tensor):
        return (tuple(value.size()), value.stride(), value.dtype)
    return (type(value), value)


def _inferred(func: Any, args: Any, kwargs: Any) -> Any:
    """Outputs by meta tensors; None where they depend on data or have no meta kernel."""

    def meta(tensor: Tensor) -> Tensor:
        return torch.empty_strided(tuple(tensor.size()), tensor.stride(), dtype=tensor.dtype, device="meta")

    arguments, keywords = tree_map_only(Tensor, meta, (args, kwargs))
    if "device" in keywords or func in _FACTORIES:
        keywords = {**keywords, "device": "meta"}
    try:
        found = func(*arguments, **keywords)
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return None
    return tree_map_only(Tensor, _Spec, found)


_FACTORIES = frozenset(
    getattr(torch.ops.aten, name).default for name in ("arange", "eye", "full", "ones", "zeros", "rand", "randn", "scalar_tensor")
)
