"""Small answers kept in the user's cache folder. A cache that cannot be read or written costs time, nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from autotune.records import write_atomically


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/autotune``, else ``~/.cache/autotune``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"


def read_cache(entry: Path) -> Any | None:
    """The remembered value, None where there is none or it is damaged."""
    try:
        return json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_cache(entry: Path, value: Any) -> None:
    """Remember a value that JSON can hold."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(entry, json.dumps(value))
    except OSError:
        return
