"""``autotune plan`` starts without what only trials and the study need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "ray", "optuna", "megatron", "transformers", "numpy", "sqlalchemy", "pandas"}


def imported(environment: dict[str, str], *arguments: str) -> set[str]:
    """Top-level packages that a command imports."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "autotune", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-300:]
    lines = [line.split("|")[2].strip() for line in process.stderr.splitlines() if line.startswith("import time:")]
    return {name.split(".")[0] for name in lines}


@pytest.mark.parametrize("format_", ["text", "json"])
def test_plan_imports_nothing_heavy(format_: str, command_environment: dict[str, str]) -> None:
    found = imported(command_environment, "plan", "--recipe", "nemotron3nano", "--mem-target", "75GB", "--format", format_)
    assert "autotune" in found
    assert found & HEAVY == set()


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["recipes"]])
def test_small_commands_import_nothing_heavy(arguments: list[str], command_environment: dict[str, str]) -> None:
    assert imported(command_environment, *arguments) & HEAVY == set()
