"""A snapshot of a GPU's memory at the moment of its first out-of-memory, for https://pytorch.org/memory_viz."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20
"""A larger snapshot is not kept; its size is then noted instead."""


def keep_first_out_of_memory(path: Path, lines: Any) -> bool:
    """Have the allocator call us when a request fails, before anything is freed by the exception's way up.

    Segments and blocks are in the snapshot; the history of allocations is not, since recording it costs time in every step.

    Returns:
        Whether this torch can do it.
    """
    import torch

    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    kept: list[Path] = []

    def observe(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
        if kept:
            return
        kept.append(path)
        facts: dict[str, Any] = {"path": None, "snapshot_bytes": None}
        try:
            snapshot = pickle.dumps(torch.cuda.memory._snapshot())
            facts["snapshot_bytes"] = len(snapshot)
            if len(snapshot) <= MOST_BYTES:
                path.write_bytes(snapshot)
                facts["path"] = path.name
        except Exception as error:  # The allocator would raise it in place of the out-of-memory (torch/csrc/cuda/Module.cpp).
            facts["reason"] = f"{type(error).__name__}: {error}"[:200]
        with contextlib.suppress(OSError):
            lines.write("memory_snapshot", **facts, requested_bytes=alloc, device_free_bytes=device_free)

    attach(observe)
    return True
