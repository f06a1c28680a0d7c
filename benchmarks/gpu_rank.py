"""The rank program on one GPU without Transformer Engine: the stand-ins on CUDA tensors, everything else as it is.

A stand-in computes some results from temporaries that no fused kernel has. They are real allocations here; ``ScratchPeaks``
keeps them out of the peaks that are read, as the counting allocator does on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune.trial import rank
from autotune.trial.spec import Backend, Loop, TrialSpec

main = rank.main
revisions = rank.revisions


class ScratchPeaks:
    """The caching allocator's peaks without what was allocated and freed inside a scratch.

    Args:
        stats: ``torch._C._cuda_memoryStats``: a device's counters, nested, all in bytes.
        reset: ``torch._C._cuda_resetPeakMemoryStats``.
        device: The current device's index; None while CUDA is not initialised.
    """

    def __init__(
        self, stats: Callable[[int], dict[str, Any]], reset: Callable[[int], None], device: Callable[[], int | None]
    ) -> None:
        self._stats, self._reset, self._device = stats, reset, device
        self._allocated_bytes = self._reserved_bytes = self._depth = 0

    def stats(self, device: int) -> dict[str, Any]:
        """The counters; the peaks are those since the last reset, scratches left out of the allocated one."""
        told = self._stats(device)
        for name, kept in (("allocated_bytes", self._allocated_bytes), ("reserved_bytes", self._reserved_bytes)):
            told[name]["all"]["peak"] = max(told[name]["all"]["peak"], kept)
        return told

    def reset(self, device: int) -> None:
        """Begin anew."""
        self._allocated_bytes = self._reserved_bytes = 0
        self._reset(device)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """What is allocated inside counts only as far as it stays."""
        device = self._device()
        if device is None or self._depth:
            yield
            return
        self._depth += 1
        self._allocated_bytes = max(self._allocated_bytes, self._stats(device)["allocated_bytes"]["all"]["peak"])
        try:
            yield
        finally:
            self._depth -= 1
            # What is reserved stays reserved: a fused kernel would not have asked for it, and this is said of it.
            self._reserved_bytes = max(self._reserved_bytes, self._stats(device)["reserved_bytes"]["all"]["peak"])
            self._reset(device)

    def install(self) -> None:
        """Let torch.cuda and the survey read through this."""
        import torch

        from autotune.trial.prelude.te_stand_in import kernels

        torch._C._cuda_memoryStats = self.stats
        torch._C._cuda_resetPeakMemoryStats = self.reset
        kernels.set_scratch(self.scratch)


def preload(backend: Backend, loop: Loop | None = None) -> Loop:
    """As ``rank.preload``; on a GPU the stand-ins first."""
    if backend == "gpu":
        import torch

        from autotune.trial.prelude import ssm_stand_in, te_stand_in

        te_stand_in.install()
        ssm_stand_in.install()
        ScratchPeaks(
            torch._C._cuda_memoryStats,
            torch._C._cuda_resetPeakMemoryStats,
            lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else None,
        ).install()
    return rank.preload(backend, loop)


if __name__ == "__main__":
    # A cold process: what ``rank.main`` does first is the preload of the rank program, so this one goes before it.
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_rank", description=__doc__)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    given = parser.parse_args()
    trial = TrialSpec.load(given.spec)
    preload(trial.backend, trial.loop)
    sys.exit(main(trial, given.rank))
