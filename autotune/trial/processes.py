"""Which processes of this machine belong to a trial, from ``/proc``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path


def _table() -> dict[int, tuple[int, int]]:
    """Parent and process group of every process that has not ended."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name, in parentheses, may hold anything: what follows the last one is state, parent, group.
            state, parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if state not in ("Z", "X"):
            found[int(entry.name)] = (int(parent), int(group))
    return found


def descendants(ancestor: int) -> list[int]:
    """All living descendants of a process, itself not among them."""
    children = defaultdict(list)
    for pid, (parent, _) in _table().items():
        children[parent].append(pid)
    found: list[int] = []
    open_ = [ancestor]
    while open_:
        of = children.get(open_.pop(), [])
        found += of
        open_ += of
    return sorted(found)


def members(group: int) -> list[int]:
    """All living processes of a process group."""
    return sorted(pid for pid, (_, of) in _table().items() if of == group)
