"""Set-up scripts: which Python they take, and what they say where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = ("sh", "dirname", "id", "nice", "make", "cat", "env")


@pytest.fixture
def bare_machine(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH holds a shell and a compiler, and no Python; pyenv has no versions."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (folder / tool).symlink_to(found)
    (folder / "g++").symlink_to(folder / "sh")
    return {"PATH": str(folder), "HOME": str(tmp_path), "PYENV_ROOT": str(tmp_path / "pyenv")}


def call(root: Path, environment: dict[str, str], *command: str) -> tuple[int, str]:
    process = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return process.returncode, process.stdout


def python_named(folder: Path, name: str) -> None:
    script = folder / name
    script.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)


def test_find_python_takes_the_wanted_version(project_root: Path, bare_machine: dict[str, str]) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python_named(Path(bare_machine["PATH"]), f"python{version}")
    status, out = call(project_root, bare_machine, "scripts/find_python", version)
    assert (status, Path(out.strip())) == (0, Path(sys.executable))


def test_find_python_takes_what_python3_is(project_root: Path, bare_machine: dict[str, str]) -> None:
    python_named(Path(bare_machine["PATH"]), "python3")
    status, out = call(project_root, bare_machine, "scripts/find_python")
    assert (status, Path(out.strip())) == (0, Path(sys.executable))


def test_find_python_does_not_trust_the_name(project_root: Path, bare_machine: dict[str, str]) -> None:
    """A pyenv shim of a version that is not switched on is there by name and fails; so is a Python of another version."""
    shim = Path(bare_machine["PATH"]) / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert call(project_root, bare_machine, "scripts/find_python") == (1, "")


def test_find_python_looks_into_pyenv(project_root: Path, bare_machine: dict[str, str]) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path(bare_machine["PYENV_ROOT"]) / "versions" / f"{version}.1" / "bin"
    folder.mkdir(parents=True)
    python_named(folder, f"python{version}")
    assert call(project_root, bare_machine, "scripts/find_python", version)[0] == 0


def test_make_says_that_python_is_missing(project_root: Path, bare_machine: dict[str, str]) -> None:
    status, out = call(project_root, bare_machine, "make", "demo")
    assert status == 2
    assert "autotune: needs Python 3.11 or newer (3.12 preferred); install one" in out


@pytest.mark.parametrize(
    ("ci", "message"),
    [
        (
            "",
            "autotune: python3.12 is missing, its version pair is skipped\nautotune: neither python3.12 nor python3.11 is here\n",
        ),
        ("true", "autotune: python3.11 is missing\n"),
    ],
    ids=["a user's machine", "CI"],
)
def test_ci_skips_a_missing_python_but_not_in_ci(project_root: Path, bare_machine: dict[str, str], ci: str, message: str) -> None:
    status, out = call(project_root, {**bare_machine, "CI": ci}, ".ci/run")
    assert status == 1
    assert out.endswith(message)
