"""What is in use on a slot's GPUs before and after each of its trials, and who keeps it from coming back."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path

from autotune.cluster.gpus import Gpu, compute_pids, read_gpus
from autotune.trial.lines import LineWriter

TOLERANCE_BYTES = 256 * 2**20
"""The driver's own bookkeeping moves by a few MiB between two looks; a process that stays holds hundreds."""
PATIENCE_S = 10.0
"""The driver takes a while to free what a killed process held."""
UNKNOWN_PID = 0
"""Memory that did not come back without a process to be seen, as in a container of its own."""


class SlotGpus:
    """The GPUs of one slot, seen through ``nvidia-smi``: it counts every process, NCCL and the CUDA context.

    Args:
        ids: Ray's for this slot: indices or UUIDs.
        patience_s: How long memory may take to come back after a trial.
    """

    def __init__(self, ids: Collection[str], *, patience_s: float = PATIENCE_S) -> None:
        self._ids = frozenset(ids)
        self._patience_s = patience_s
        self._before: dict[str, int] = {}

    def before(self, rank_file: Path) -> None:
        """Keep the level before a trial, and write it to the rank's lines."""
        own = self._own()
        self._before = {gpu.uuid: gpu.used_bytes for gpu in own}
        _write(rank_file, "before", own)

    def after(self, rank_file: Path) -> list[int]:
        """Wait until each GPU is back at its level, and write what is in use then.

        Returns:
            Processes that hold memory where it does not come back in time, ``UNKNOWN_PID`` where none is shown; none if all is
            well, or where the level before is not known.
        """
        until = time.monotonic() + self._patience_s
        while True:
            own = self._own()
            now = {gpu.uuid: gpu.used_bytes for gpu in own}
            # A GPU that is not told any more is not back: the driver may hang with what it holds.
            over = [uuid for uuid, used in self._before.items() if now.get(uuid, 2**63) > used + TOLERANCE_BYTES]
            if not over or time.monotonic() >= until:
                break
            time.sleep(0.2)
        _write(rank_file, "after", own)
        if not over:
            return []
        holders = compute_pids(over)
        return sorted({pid for of_gpu in holders.values() for pid in of_gpu}) or [UNKNOWN_PID]

    def _own(self) -> list[Gpu]:
        return [gpu for gpu in read_gpus() if {str(gpu.index), gpu.uuid} & self._ids]


def _write(rank_file: Path, when: str, gpus: Collection[Gpu]) -> None:
    lines = LineWriter(rank_file)
    lines.write(
        "device",
        when=when,
        gpus=[{"uuid": g.uuid, "used_bytes": g.used_bytes, "clock_mhz": g.clock_mhz, "throttled": g.throttled} for g in gpus],
    )
    lines.close()
