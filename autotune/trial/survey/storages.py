"""Names for storages that are sure for as long as they are asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_BLOCK_BYTES = 512
"""Granularity of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""


class Storages:
    """Numbers storages and remembers how large each was.

    A weak reference keeps the small object behind a storage alive, not its data: so an address is never reused for
    another storage while the survey runs, and ``expired`` tells whether the data is gone.

    Args:
        on_device: Whether a storage counts as device memory.
    """

    def __init__(self, on_device: Callable[[Any], bool]) -> None:
        self._on_device = on_device
        self._numbers: dict[int, int] = {}
        self._references: list[Any] = []
        self.sizes_bytes: list[int] = []

    def number(self, tensor: Any) -> int | None:
        """The number of a tensor's storage; None for host memory and for tensors without one."""
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            return None
        address = storage._cdata
        known = self._numbers.get(address)
        if known is None:
            if storage.nbytes() == 0 or not self._on_device(storage):
                return None
            known = self._numbers[address] = len(self._references)
            self._references.append(StorageWeakRef(storage))
            self.sizes_bytes.append(-(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES)
        return known

    def expired(self, number: int) -> bool:
        """Whether the data is gone."""
        return bool(self._references[number].expired())


def tensors_in(value: Any) -> list[Any]:
    """Every tensor in nested tuples, lists and dicts."""
    found: list[Any] = []
    open_values = [value]
    while open_values:
        value = open_values.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            open_values.extend(reversed(value.values()))
        elif isinstance(value, (tuple, list)):
            open_values.extend(reversed(value))
    return found


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """The same nest with every tensor replaced."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [map_tensors(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
