"""``autotune plan`` starts without what only trials and the study need."""

from __future__ import annotations

import subprocess
import sys

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


def test_plan_imports_nothing_heavy(command_environment: dict[str, str]) -> None:
    found = imported(command_environment, "plan", "--recipe", "nemotron3nano", "--mem-target", "75GB")
    assert "rich" in found, "the text is printed, so what it needs is among the imports"
    assert found & HEAVY == set()


def test_listing_recipes_imports_nothing_heavy(command_environment: dict[str, str]) -> None:
    assert imported(command_environment, "recipes") & HEAVY == set()
