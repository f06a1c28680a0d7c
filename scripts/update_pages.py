"""Write ``docs/defaults.md`` and ``docs/errors.md`` from the code; with ``--check`` only say whether they differ."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from autotune.cli.main import cli
from autotune.records import write_atomically

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
([all of them](outputs.md#exit-status)). `{{...}}` stands for what the message fills in. What a trial ran into is told by
`autotune diagnose`.

| setting | rule | way out |
|---|---|---|
{rows}
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
    return ERRORS.format(rows=_rows(found))


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


def _rows(rows: list[tuple[str, str, str]]) -> str:
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
