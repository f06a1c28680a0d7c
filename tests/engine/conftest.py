"""The engine's tests share the toy space of the search's tests, and the recorded tables of the trials' tests."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("search", "trial"):
    path = str(Path(__file__).parent.parent / folder)
    if path not in sys.path:
        sys.path.insert(0, path)
