"""The terminal: a boxed result, a small plot, tables. Plain where there is no terminal or ``NO_COLOR`` is set."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.report.facts import Facts
from autotune.report.plot import legend, points
from autotune.report.run_view import RunView
from autotune.report.scatter import Point, draw
from autotune.report.table import Table
from autotune.report.text import Scale

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.workload.catalog import CatalogEntry

NARROW = 90
"""Below this many columns a table keeps the columns that it names for that."""
BEST = 8
"""Rows of a table before it refers to report.md."""
BOX_WIDTH = 110
FILE_WIDTH = 120
"""Width where the output is no terminal and COLUMNS is not set."""


def console() -> Console:
    """A console on stdout as it is now: its width, its encoding, with colour only where that is wanted."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else FILE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False, emoji=False, markup=False)


def print_result(view: RunView, facts: Facts) -> None:
    """The answer of a run, boxed, with what supports it and where the rest lies."""
    from rich.text import Text

    out = console()
    patch = tuple(f"cfg.model.{name} = {literal}" for name, literal in facts.patch)
    print_box(out, (facts.headline, facts.verdict), facts.answer, patch)
    scale = Scale.of(view.recommendation.mem_target_bytes)
    print_plot(out, points(view.recommendation, scale), scale, view.recommendation.mem_target_bytes)
    for warning in facts.warnings:
        out.print(Text(f"warning: {warning}", style="yellow"))
    for table in facts.tables:
        print_table(out, table, rest=view.folder / "report.md")
    if facts.claims:
        out.print(Text("\nWhat this does not prove", style="bold"))
        for claim in facts.claims:
            out.print(Text(f"- {claim}"))
    names = ("patch.py", "overrides.txt", "report.html", "report.md", "recommendation.json")
    written = ", ".join(name for name in names if (view.folder / name).is_file())
    out.print(Text(f"\nWritten to {view.folder}: {written}"))


def print_box(out: Console, heading: tuple[str, str], lines: Sequence[tuple[str, str]], code: Sequence[str]) -> None:
    """A box: a heading of two lines, names with their texts, lines of code."""
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 2))
    for name, text in lines:
        grid.add_row(Text(name, style="dim"), Text(text))
    parts: list[Text | Grid] = [Text(heading[0], style="bold"), Text(heading[1]), Text(), grid]
    if code:
        parts += [Text(), *(Text(line, style="green") for line in code)]
    out.print(Panel(Group(*parts), box=box.SQUARE, title="autotune", title_align="left", width=min(out.width, BOX_WIDTH)))


def print_plot(out: Console, found: Sequence[Point], scale: Scale, limit_bytes: int | None) -> None:
    """Peak memory against replay time, with the limit; nothing where there is no point."""
    from rich.text import Text

    lines = draw(
        found,
        y_line=None if limit_bytes is None else limit_bytes / scale.factor,
        width=min(out.width, 100),
        height=12,
        x_title="replay, ms a step",
        y_title=f"peak in {scale.unit} against replay time ({legend(found)})",
        line_name="limit",
    )
    if lines:
        out.print()
    for line in lines:
        out.print(Text(line), no_wrap=True, overflow="crop")


def print_table(out: Console, table: Table, *, rest: Path | None = None, most: int = BEST) -> None:
    """A table with its title and note; an empty one is left out, a long one ends with where the rest is."""
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    if not table.rows:
        return
    shown = table.used_columns
    if out.width < NARROW and len(shown) > 4:
        named = tuple(index for index in shown if table.columns[index] in table.narrow)
        shown = named or (*shown[:3], shown[-1])
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for index in shown:
        grid.add_column(table.columns[index], overflow="fold", justify="right" if table.is_figure(index) else "left")
    kept = table.rows if rest is None else table.rows[:most]
    for row in kept:
        grid.add_row(*(Text(row[index]) for index in shown))
    out.print(Text(f"\n{table.title}", style="bold"))
    out.print(Text(table.note, style="dim"))
    out.print(grid)
    if len(kept) < len(table.rows):
        out.print(Text(f"{len(table.rows) - len(kept)} more in {rest}", style="dim"))


def print_recipes(entries: Sequence[CatalogEntry]) -> None:
    """The catalog as a table."""
    rows = tuple(
        (
            entry.alias,
            entry.architecture,
            f"{entry.gpus} x {entry.gpu}" if entry.sized_for == "gpu" else f"{entry.gpus} CPU ranks",
            entry.title,
            f"{entry.bridge_function} ({entry.revision})" if entry.bridge_function else "of this project",
        )
        for entry in entries
    )
    columns = ("alias", "class", "sized for", "what", "Megatron Bridge function")
    note = "Each can be given to --recipe, and so can every other Bridge recipe by its function's name."
    print_table(console(), Table(title="Recipes", note=note, columns=columns, rows=rows))
