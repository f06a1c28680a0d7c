"""Figures of an out-of-memory message, in the forms that PyTorch has printed them.

Sources: ``c10/cuda/CUDACachingAllocator.cpp:malloc``; the first form up to PyTorch 2.0, the second since.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = r"([0-9]+(?:\.[0-9]+)?)(?: ?(bytes|[KMGT]i?B))?"
_UNIT_BYTES: dict[str, int] = {"bytes": 1, **{f"{letter}iB": 2 ** (10 * (place + 1)) for place, letter in enumerate("KMGT")}}
_UNIT_BYTES |= {f"{letter}B": 2 ** (10 * (place + 1)) for place, letter in enumerate("KMGT")}  # PyTorch's older MB is MiB

_REQUESTED = re.compile(rf"(?:[Tt]ried to allocate|Requested size:) {_SIZE}")
_PATTERNS: dict[str, tuple[re.Pattern[str], ...]] = {
    "total_bytes": (re.compile(rf"{_SIZE} total capacity"), re.compile(rf"total capaci?ty of {_SIZE}")),
    "allowed_bytes": (re.compile(rf"{_SIZE} allowed;"),),
    "free_bytes": (re.compile(rf"of which {_SIZE} is free"), re.compile(rf"; {_SIZE} free")),
    "allocated_bytes": (re.compile(rf"{_SIZE} already allocated"), re.compile(rf"{_SIZE} is allocated by PyTorch")),
    "reserved_bytes": (re.compile(rf"{_SIZE} reserved in total"),),
    "unallocated_bytes": (re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),),
    "in_use_bytes": (re.compile(rf"this process has {_SIZE} memory in use"),),
    "private_pools_bytes": (re.compile(rf"with {_SIZE} allocated in private pools"),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMessage:
    """What one out-of-memory message says; None where it does not say it. ``GiB`` and PyTorch's older ``GB`` are 2**30 bytes.

    Attributes:
        unallocated_bytes: Reserved by the caching allocator and held by no tensor.
        allowed_bytes: What the process may take of the device (``set_per_process_memory_fraction``).
        in_use_bytes: By this process, with what PyTorch does not count.
        private_pools_bytes: Allocated in pools of CUDA graphs.
    """

    requested_bytes: int
    total_bytes: int | None = None
    allowed_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    in_use_bytes: int | None = None
    private_pools_bytes: int | None = None

    @property
    def available_bytes(self) -> int | None:
        """Free on the device plus reserved but unallocated: what the request would have found without fragmentation."""
        if self.free_bytes is None and self.unallocated_bytes is None:
            return None
        available = (self.free_bytes or 0) + (self.unallocated_bytes or 0)
        if self.allowed_bytes is not None:
            available = min(available, max(0, self.allowed_bytes - (self.allocated_bytes or 0)))
        return available

    @property
    def others_bytes(self) -> int | None:
        """What other processes hold of the device; None where the message does not tell this process's own share."""
        if self.total_bytes is None or self.free_bytes is None or self.in_use_bytes is None:
            return None
        if self.in_use_bytes < (self.allocated_bytes or 0) + (self.unallocated_bytes or 0):
            return None  # As in a container of its own, where the driver does not say it.
        return max(0, self.total_bytes - self.free_bytes - self.in_use_bytes)

    @property
    def fragmented(self) -> bool:
        """Whether the request failed although that much memory was there, in pieces."""
        available = self.available_bytes
        if available is not None and self.requested_bytes <= available and self.unallocated_bytes:
            return True
        if None in (self.total_bytes, self.allocated_bytes, self.unallocated_bytes):
            return False
        assert self.total_bytes is not None and self.allocated_bytes is not None and self.unallocated_bytes is not None
        whole = self.total_bytes if self.allowed_bytes is None else min(self.total_bytes, self.allowed_bytes)
        far_below = self.allocated_bytes + self.requested_bytes <= 0.9 * whole
        return far_below and self.unallocated_bytes >= 0.1 * whole

    @property
    def borderline(self) -> bool:
        """Whether it is fragmented with so little slack that the allocator setting may not be enough."""
        return self.fragmented and (self.unallocated_bytes or 0) < 0.05 * (self.allocated_bytes or 0)


def parse_memory_message(text: str) -> MemoryMessage | None:
    """Read one message; None where the text holds no out-of-memory of PyTorch's."""
    tried = _REQUESTED.search(text)
    if tried is None:
        return None
    start, end = tried.start(), _REQUESTED.search(text, tried.end())
    text = text[start : end.start() if end is not None else None]
    found: dict[str, int] = {}
    for name, patterns in _PATTERNS.items():
        for pattern in patterns:
            match = pattern.search(text)
            if match is not None:
                found[name] = _bytes(match)
                break
    if "unallocated_bytes" not in found and "reserved_bytes" in found and "allocated_bytes" in found:
        found["unallocated_bytes"] = max(0, found["reserved_bytes"] - found["allocated_bytes"])
    return MemoryMessage(requested_bytes=_bytes(tried), **found)


def _bytes(match: re.Match[str]) -> int:
    return round(float(match[1]) * _UNIT_BYTES[match[2] or "bytes"])
