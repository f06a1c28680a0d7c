"""``autotune plan`` starts without what only trials and the study need."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"torch", "ray", "optuna", "megatron", "transformers", "numpy", "sqlalchemy", "pandas"}


def imported(environment: dict[str, str], *arguments: str) -> set[str]:
    """Modules that a command imports."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "autotune", *arguments],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-300:]
    lines = [line.split("|")[2].strip() for line in process.stderr.splitlines() if line.startswith("import time:")]
    return set(lines)


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_plan_imports_nothing_heavy(command_environment: dict[str, str]) -> None:
    found = imported(command_environment, "plan", "--recipe", "nemotron3nano", "--mem-target", "75GB")
    assert "rich" in packages(found), "the text is printed, so what it needs is among the imports"
    assert packages(found) & HEAVY == set()
    assert {name for name in found if name.startswith("autotune.trial.survey")} == set(), "a plan has no survey to show"


def test_listing_recipes_imports_nothing_heavy(command_environment: dict[str, str]) -> None:
    assert packages(imported(command_environment, "recipes")) & HEAVY == set()
