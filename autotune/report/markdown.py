"""``report.md``: one page for a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.report.facts import Facts
from autotune.report.table import Table


def render(facts: Facts) -> str:
    """The whole page."""
    parts = [f"# {_escape(facts.headline)}", f"**{_escape(facts.verdict)}**", _pairs(facts.answer, ("figure", "value"))]
    if facts.patch:
        lines = "\n".join(f"cfg.model.{name} = {literal}" for name, literal in facts.patch)
        parts += ["## Patch", f"```python\n{lines}\n```"]
    if facts.warnings:
        parts += ["## Warnings", _list(facts.warnings)]
    for table in (*facts.tables, *facts.details):
        if table.rows:
            parts += [f"## {table.title}", table.note, _table(table)]
    if facts.claims:
        parts += ["## What this does not prove", _list(facts.claims)]
    parts += ["## Measurement contract", _pairs(facts.contract, ("fact", "value"))]
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    shown = table.used_columns
    return _grid([table.columns[i] for i in shown], [[row[i] for i in shown] for row in table.rows])


def _pairs(rows: Sequence[tuple[str, str]], columns: tuple[str, str]) -> str:
    return _grid(columns, rows)


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _escape(text: str) -> str:
    """Text on one line that Markdown shows as it stands, inside a table cell too."""
    text = " ".join(text.split())
    for character in ("\\", "|", "<", "*", "_", "`"):
        text = text.replace(character, f"\\{character}")
    return text
