"""The lines a rank writes while it runs, and the folder's names for them.

One JSON object a line, flushed at once, so that a rank killed at any moment leaves what it knew. ``event`` is one of
``start``, ``phase``, ``iteration``, ``failure``, ``end``, ``note``, and of its slot ``device``; each has ``t`` (seconds since
the epoch).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec


class LineWriter:
    """Appends events to one file. A line is one ``write`` call, so a kill leaves whole lines and at most one part."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._encoder = msgspec.json.Encoder()

    def write(self, event: str, **fields: Any) -> None:
        """Write one event with the time."""
        os.write(self._file, self._encoder.encode({"event": event, "t": time.time(), **fields}) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a rank's file; a part at the end (a kill, a full disk) is dropped. None written: empty."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    lines = []
    for line in raw.split(b"\n"):
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


class LineFollower:
    """Reads the lines of a file as they come. A file that was put in its place (another attempt) is read from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self._pending = b""

    def read(self) -> list[dict[str, Any]]:
        """The whole lines written since the last call."""
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset, self._pending = inode, 0, b""
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [msgspec.json.decode(line) for line in lines if line]
