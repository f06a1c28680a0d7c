"""What PyTorch's CUDA caching allocator counts for a tensor that lives long: its block, which may be larger.

Source: c10/cuda/CUDACachingAllocator.cpp:get_allocation_size, should_split and c10/core/AllocatorConfig.h of PyTorch 2.14:
requests over 10 MiB get a segment rounded up to 2 MiB, requests from 1 to 10 MiB share segments of 20 MiB, and a block is
only split where more than 1 MiB remains. With expandable segments a block is split wherever 512 bytes remain.
``memory_allocated`` counts blocks.
"""

from __future__ import annotations

_MIB = 2**20
_SMALL, _LARGE, _SHARED, _ROUND = _MIB, 10 * _MIB, 20 * _MIB, 2 * _MIB


def unsplit_bytes(nbytes: int, *, expandable_segments: bool) -> int:
    """Bytes beyond the request that the block of a fresh allocation keeps, for equal tensors allocated one after another."""
    if expandable_segments or nbytes <= _SMALL:
        return -nbytes % 512
    if nbytes >= _LARGE:
        rest = -nbytes % _ROUND
        return rest if rest <= _SMALL else -nbytes % 512
    fitting = _SHARED // nbytes
    rest = _SHARED - fitting * nbytes
    return rest // fitting if rest <= _SMALL else -nbytes % 512
