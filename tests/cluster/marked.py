"""Finds every process that a test started, by a mark in its environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent


def marked(mark: str) -> dict[int, str]:
    """Living processes whose environment holds ``TOY_MARK=<mark>``, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if f"TOY_MARK={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], object], timeout_s: float) -> float | None:
    """Seconds until a condition holds; None where it does not in time."""
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        if condition():
            return time.monotonic() - began
        time.sleep(0.05)
    return None
