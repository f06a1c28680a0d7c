"""Facts that every file of the repository has to keep."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import autotune

# Absolute paths of somebody's machine. Spelled in parts, so that this file does not hold one.
MACHINE_PATH = re.compile(r"(?:^|[^A-Za-z0-9_.])/(?:" + "|".join(["work", "farm", "root", "home/[a-z]+", "Users"]) + r")/")
UNFINISHED = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
WORKPLACE = re.compile(r"\bissue #?\d+\b|\b(?:helper|session) H\d", re.IGNORECASE)


def tracked(root: Path) -> list[Path]:
    """Text files under version control; what lies in the folder where there is no git (a source archive)."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    found = [root / name for name in listing.stdout.split("\0") if name]
    return [path for path in found if path.is_file() and b"\0" not in path.read_bytes()[:4096]]


@pytest.mark.parametrize("pattern", [MACHINE_PATH, UNFINISHED, WORKPLACE], ids=["machine path", "unfinished", "workplace"])
def test_no_file_holds(project_root: Path, pattern: re.Pattern[str]) -> None:
    wrong = []
    for path in tracked(project_root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if pattern.search(line):
                wrong.append(f"{path.relative_to(project_root)}:{number}: {line.strip()[:100]}")
    assert wrong == []


def test_patterns_find_what_they_look_for() -> None:
    assert MACHINE_PATH.search("see /" + "work/main")
    assert not MACHINE_PATH.search("https://example.org/homework/a")
    assert UNFINISHED.search("# TO" + "DO later")
    assert WORKPLACE.search("as issue " + "12 says")


def test_no_source_file_is_long(project_root: Path) -> None:
    lengths = {path: path.read_text().count("\n") for path in (project_root / "autotune").rglob("*.py")}
    assert {str(path.relative_to(project_root)): length for path, length in lengths.items() if length > 400} == {}


def test_every_dependency_states_its_reason(project_root: Path) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11"
    text = (project_root / "pyproject.toml").read_text()
    for requirement in project["dependencies"]:
        line = next(line for line in text.splitlines() if f'"{requirement}"' in line)
        assert "#" in line, f"{requirement} has no reason beside it"


def test_version_has_one_source() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", autotune.__version__)


def test_python_versions_match_the_tested_stacks(project_root: Path) -> None:
    versions = (project_root / ".python-version").read_text().split()
    assert versions == ["3.12", "3.11"]
    for version in versions:
        assert (project_root / "requirements" / f"py{version.replace('.', '')}.txt").is_file()
