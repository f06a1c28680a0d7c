"""Runs a script in a fresh process: the prelude replaces functions of torch for good."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_script(body: str, *arguments: str, environment: dict[str, str] | None = None, timeout_s: float = 250) -> str:
    """Standard output of the script; its failure is the test's."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(environment or {})},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
