"""Toy ranks are importable in every process that Ray starts."""

from __future__ import annotations

import os
import uuid

import pytest
from marked import HERE


@pytest.fixture
def mark() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def toy_environment(mark: str) -> dict[str, str]:
    """For a driver in a process of its own; all that it starts carries the mark."""
    path = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TOY_"))}
    return {**kept, "PYTHONPATH": path, "TOY_MARK": mark}
