"""Commands and links in the documentation are real."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "requirements").glob("*.md")])
BLOCK = re.compile(r"^```(?:console|sh|bash|python|text)\n(.*?)^```|((?:^    \S.*\n)+)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
FAST = {"plan", "recipes", "--version", "--help"}
"""Commands of autotune that take a second; the others have tests of their own."""


def commands(page: Path) -> Iterator[str]:
    """Shell commands in the code blocks of a page, without prompts, comments and output."""
    for block in BLOCK.finditer(page.read_text()):
        text = block.group(1) or block.group(2)
        for line in text.replace("\\\n", " ").splitlines():
            command = line.strip().removeprefix("$ ").split("  #")[0].strip()
            if command.startswith(("autotune ", "make ", "python -m ")):
                yield command


def fast_commands() -> list[tuple[str, str]]:
    found = [(str(page.relative_to(ROOT)), command) for page in PAGES for command in commands(page)]
    once = {command: page for page, command in found if command.split()[0] == "autotune" and command.split()[1] in FAST}
    return sorted((page, command) for command, page in once.items())


def test_there_are_pages_and_commands() -> None:
    assert {"README.md", "CONTRIBUTING.md"} <= {page.name for page in PAGES}
    assert fast_commands() != []


@pytest.mark.parametrize(("page", "command"), fast_commands())
def test_fast_command_runs(page: str, command: str, command_environment: dict[str, str], tmp_path: Path) -> None:
    arguments = shlex.split(command.split("|", maxsplit=1)[0])[1:]
    process = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        env=command_environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, f"{page}: {command}: {process.stderr}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {command.split()[1] for page in PAGES for command in commands(page) if command.startswith("make ")}
    assert wanted - targets == set()


def test_relative_links_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in LINK.findall(BLOCK.sub("", page.read_text()))]
    local = [(page, target) for page, target in links if "://" not in target and not target.startswith("mailto:")]
    assert [f"{page.relative_to(ROOT)}: {target}" for page, target in local if not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index]
    assert missing == []


def test_readme_shows_the_real_answer() -> None:
    """Where a figure has changed for a reason, ``make readme`` writes it anew."""
    command = [sys.executable, str(ROOT / "scripts" / "update_readme.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: make readme"


def test_every_decision_is_numbered_once_and_answers() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [page.name[:3] for page in pages]
    assert len(numbers) == len(set(numbers))
    assert all(number.isdigit() for number in numbers)
