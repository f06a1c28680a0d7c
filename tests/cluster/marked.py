"""Finds every process that a test started, by a mark in its environment."""

from __future__ import annotations

import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterable
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


def listening(pids: Iterable[int]) -> list[str]:
    """Addresses of the TCP sockets on which any of the processes listens, as the kernel tells them."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # A process, or a file of it, that is gone by now.
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(str(link.readlink()).removeprefix("socket:[").rstrip("]"))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == _LISTENS and rest[5] in inodes:
                words = bytes.fromhex(local.partition(":")[0])
                # Each word of four bytes is in the machine's own order.
                address = ipaddress.ip_address(b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4)))
                found.append(str(getattr(address, "ipv4_mapped", None) or address))
    return found


_LISTENS = "0A"
