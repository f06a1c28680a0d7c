"""Put the real answer of the README's run into README.md: the box and what is at risk. ``--check`` only compares."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMAND = ["run", "--recipe", "nemotron3nano", "--mem-target", "75GB", "--backend", "predict", "--quiet"]
BLOCK = re.compile(r"(predicted, and answers:\n\n```text\n)(.*?)(```)", re.DOTALL)


def real_answer() -> str:
    """The box of the run and its table of settings at risk, 100 columns wide, without styles."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [sys.executable, "-m", "autotune", *COMMAND, "--out", f"{folder}/run"]
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "PYTHONPATH": str(ROOT)}
        output = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout
    box, _, rest = output.partition("\n\n")
    at_risk = rest[rest.index("At risk") : rest.index("Settings that fit")]
    lines = [line.rstrip() for line in f"{box}\n\n{at_risk}".splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def main() -> int:
    """Write, or compare; 1 if the page differs."""
    page = ROOT / "README.md"
    text = page.read_text(encoding="utf-8")
    found = BLOCK.search(text)
    assert found is not None, "README.md has no block for the answer"
    answer = real_answer()
    if "--check" in sys.argv:
        return int(found.group(2) != answer)
    page.write_text(BLOCK.sub(lambda match: match.group(1) + answer + match.group(3), text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
