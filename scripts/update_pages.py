"""Write ``docs/defaults.md`` and ``docs/errors.md`` from the code; with ``--check`` only say whether they differ."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from autotune.cli.main import cli
from autotune.errors import ExitStatus
from autotune.records import write_atomically
from autotune.trial.advice import levers
from autotune.trial.failure import CLASSES, Symptom

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = """# Defaults

What holds where nothing is said. `autotune run` prints those in force at its start; the report's measurement contract names
what came of them.

| option | default | what it does |
|---|---|---|
{rows}

Beside the options: the limit is compared in bytes (`75GB` is 75·10^9, `75GiB` is 75·2^30); a passing peak within 2 % of the
limit is repeated once; steps closer than 1 % are one price, and the smaller peak wins.
"""
ERRORS = """# Errors and ways out

Every refusal is one line: the setting, the value, the rule and the way out. The exit status says what kind it is
([all of them](outputs.md#exit-status)). `{{...}}` stands for what the message fills in.

## The request is wrong (exit status 2)

| setting | rule | way out |
|---|---|---|
{rows}

## No boundary passes (3), or stopped before an answer (4)

| status | message |
|---|---|
{stops}

A stopped run goes on with the same command, `--out` and `--resume`; no finished trial is repeated.

## What a trial ran into

A failed trial is evidence, not the end of a run. `autotune diagnose LOG... | RUN_DIR` names its class, rank, stage and the memory
asked for, of any log of a PyTorch training.

| class | what to do, the first thing first |
|---|---|
{failures}
"""


def defaults_page() -> str:
    """Every option of ``run`` with its default."""
    rows = []
    for option in cli.commands["run"].params:
        if not isinstance(option, click.Option) or option.help is None or option.required:
            continue
        default = option.to_info_dict()["default"]
        shown = (
            "off" if option.is_flag else "none" if default is None or not isinstance(default, str | int | float) else str(default)
        )
        rows.append((f"`{option.opts[-1]}`", f"`{shown}`", option.help))
    return DEFAULTS.format(rows=_rows(rows))


def errors_page() -> str:
    """Every ``RequestError`` of the sources, by setting."""
    found = sorted({row for path in sorted((ROOT / "autotune").rglob("*.py")) for row in _errors(path)})
    stops = sorted({row for path in sorted((ROOT / "autotune").rglob("*.py")) for row in _stops(path)})
    # Without the failure at hand the advice is the general one; with it, it names bytes and settings.
    failures = [(name, "; ".join(levers(Symptom(types=(), message="", step=2), "steady(2)", name))) for name in CLASSES]
    return ERRORS.format(rows=_rows(found), stops=_rows(stops), failures=_rows(failures))


def _stops(path: Path) -> Iterator[tuple[str, str]]:
    """Messages of the errors that end a run with status 3 or 4."""
    status = {"NoBoundaryError": str(int(ExitStatus.NO_BOUNDARY)), "StoppedError": str(int(ExitStatus.STOPPED))}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in status and len(node.args) == 1:
            text = _text(node.args[0])
            if text != "{...}":
                yield status[node.func.id], text


def _errors(path: Path) -> Iterator[tuple[str, str, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "RequestError"
            and len(node.args) == 4
        ):
            setting, rule, way_out = (_text(node.args[index]) for index in (0, 2, 3))
            # One whose rule is made elsewhere says nothing here.
            if rule != "{...}":
                yield setting, rule, way_out


def _text(node: ast.expr) -> str:
    """A message with its filled-in parts as ``{...}``."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{...}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "{...}"


def _rows(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace('<', '&lt;') for cell in row)} |" for row in rows)


def main() -> int:
    """Status 1 where a page is not what the code says."""
    stale = []
    for name, text in (("defaults.md", defaults_page()), ("errors.md", errors_page())):
        path = ROOT / "docs" / name
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                write_atomically(path, text)
    if stale and "--check" in sys.argv:
        print(f"not what the code says: {', '.join(stale)}; run: python scripts/update_pages.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
