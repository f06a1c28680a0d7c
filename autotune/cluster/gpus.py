"""The GPUs of a node, from ``nvidia-smi``: it comes with the driver, and asking it touches no CUDA context of ours."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

_FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "clocks.sm")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The name since R535, and that before, which newer drivers take too: one that is not known fails the whole question."""

ASKING_S = 20.0
"""How long the driver may take to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU now. ``throttled`` is the driver's bit mask of reasons for lower clocks, as it prints it."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    used_bytes: int
    driver: str
    clock_mhz: int | None
    throttled: str | None


def read_gpus(*, timeout_s: float = ASKING_S) -> tuple[Gpu, ...]:
    """All GPUs of this node; empty where there is no driver."""
    for reasons in _REASONS:
        text = _ask(f"--query-gpu={','.join((*_FIELDS, reasons))}", timeout_s)
        if text is not None:
            return tuple(parse_gpus(text))
    return ()


def parse_gpus(text: str) -> list[Gpu]:
    """Read ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``; sizes there are MiB."""
    found = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) != len(_FIELDS) + 1 or not row[0].strip().isdigit():
            continue
        index, uuid, name, total, used, driver, clock, throttled = (value.strip() for value in row)
        if not (total.isdigit() and used.isdigit()):
            continue
        found.append(
            Gpu(
                index=int(index),
                uuid=uuid,
                name=name,
                total_bytes=int(total) * 2**20,
                used_bytes=int(used) * 2**20,
                driver=driver,
                clock_mhz=int(clock) if clock.isdigit() else None,
                throttled=throttled if throttled.startswith("0x") else None,
            )
        )
    return found


def compute_pids(uuids: Sequence[str], *, timeout_s: float = ASKING_S) -> dict[str, list[int]]:
    """Processes that hold memory on each of the given GPUs, as far as the driver shows them (in a container it may not)."""
    text = _ask("--query-compute-apps=gpu_uuid,pid", timeout_s) or ""
    pids: dict[str, list[int]] = {uuid: [] for uuid in uuids}
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) == 2 and row[0] in pids and row[1].strip().isdigit():
            pids[row[0]].append(int(row[1]))
    return pids


def _ask(query: str, timeout_s: float) -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except subprocess.TimeoutExpired:
        return ""  # A driver that hangs answers nothing, by whatever name it is asked.
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
