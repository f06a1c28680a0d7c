"""What every test shares: profiles of hypothesis, and a home folder of its own for caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Deterministic and without a time limit for one example: the suite runs on two busy cores.
settings.register_profile("project", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("project")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project_root() -> Path:
    """The folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture
def command_environment(tmp_path: Path) -> dict[str, str]:
    """Environment of a subprocess that runs the command: plain output, no terminal, this checkout on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AUTOTUNE_", "COVERAGE_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "100", "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts Megatron, Ray or a browser may take long where a busy machine starts them slowly; a hang still ends."""
    for item in items:
        if item.get_closest_marker("slow") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
