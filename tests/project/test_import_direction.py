"""The one direction: workload -> boundary -> ledger -> search -> (trial, cluster) -> engine -> report -> cli."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

# What a package must never import, at any depth of its code.
FORBIDDEN = {
    "workload": {"ledger", "search", "trial", "cluster", "engine", "report", "cli"},
    "boundary": {"ledger", "search", "trial", "cluster", "engine", "report", "cli"},
    "ledger": {"search", "trial", "cluster", "engine", "report", "cli"},
    "search": {"cluster", "engine", "report", "cli"},
    "trial": {"cluster", "engine", "report", "cli"},
    "cluster": {"report", "cli"},
    "engine": {"report", "cli"},
    "report": {"cli", "cluster"},
}
# Who may import heavy third-party packages at all; everyone else never does. Inside worker processes only.
HEAVY = {
    "torch": {"trial", "boundary", "workload", "cluster"},
    "megatron": {"trial", "boundary", "workload"},
    "transformer_engine": {"trial"},
    "ray": {"cluster"},
    "optuna": {"search"},
}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module a file imports, at any depth of its code."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            assert node.level == 0, f"{path}: relative import"
            found.append(node.module)
    return tuple(found)


def files(root: Path) -> list[Path]:
    return sorted((root / "autotune").rglob("*.py"))


def test_packages_import_only_along_the_direction(project_root: Path) -> None:
    wrong = []
    for path in files(project_root):
        package = path.relative_to(project_root / "autotune").parts[0]
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "autotune" and len(parts) > 1 and parts[1] in FORBIDDEN.get(package, set()):
                wrong.append(f"{path.relative_to(project_root)} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("heavy", sorted(HEAVY))
def test_heavy_packages_stay_in_their_rooms(project_root: Path, heavy: str) -> None:
    wrong = []
    for path in files(project_root):
        package = path.relative_to(project_root / "autotune").parts[0]
        wrong += [
            f"{path.relative_to(project_root)} imports {name}"
            for name in imports(path)
            if name.split(".")[0] == heavy and package not in HEAVY[heavy]
        ]
    assert wrong == []
