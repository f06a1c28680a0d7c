"""The live table of a run on a terminal: progress, peak against the limit, time left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING

from autotune.report.progress import RunProgress, TrialProgress, headline, progress_table
from autotune.report.text import UNKNOWN

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

SHOWN = 12
"""The newest trials; the others are told as a number."""
BAR = 16
NARROW = 90


def live_view(progress: RunProgress, width: int) -> RenderableType:
    """The table as it stands. Below ``NARROW`` columns it keeps trial, setting, state with step and time left, and the bar."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    table = progress_table(progress)
    columns = list(range(len(table.columns))) if width >= NARROW else [0, 1, 2]
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=False)
    for index in columns:
        grid.add_column(table.columns[index], overflow="fold", justify="right" if table.is_figure(index) else "left")
    grid.add_column("peak against the limit", no_wrap=True)
    order = sorted(progress.trials.values(), key=lambda trial: trial.number)
    for trial, row in list(zip(order, table.rows, strict=True))[-SHOWN:]:
        texts = [row[index] for index in columns]
        if width < NARROW and trial.state == "running":
            texts[2] = _short_state(dict(zip(table.columns, row, strict=True)))
        grid.add_row(*map(Text, texts), _bar(trial, progress.limit_bytes))
    hidden = len(order) - SHOWN
    lines: list[RenderableType] = [Text(headline(progress), style="bold")]
    if hidden > 0:
        lines.append(Text(f"{hidden} earlier trials not shown", style="dim"))
    return Group(*lines, *([grid] if order else []))


def _short_state(row: Mapping[str, str]) -> str:
    """``step 5 of 29, 19 s left``: what the columns that a narrow terminal leaves out say of a running trial."""
    if row["step"] == UNKNOWN:
        return row["state"]
    return f"step {row['step']}" + ("" if row["left"] == UNKNOWN else f", {row['left']} left")


def _bar(trial: TrialProgress, limit_bytes: int) -> Text:
    """The peak as a bar; what is over the limit is spelled out, not only coloured."""
    from rich.text import Text

    if trial.peak_bytes is None:
        return Text("")
    share = trial.peak_bytes / limit_bytes
    filled = min(BAR, round(share * BAR))
    over = " over" if share > 1 else ""
    colour = "red" if share > 1 or trial.state == "ended early" else "green"
    return Text.assemble(("#" * filled, colour), ("." * (BAR - filled), "dim"), f"|{over}")


@contextmanager
def following(progress: RunProgress | None, console: Console, *, period_s: float = 0.5) -> Iterator[None]:
    """Show a run that goes on in this process, until the block ends; nothing where ``progress`` is None."""
    if progress is None:
        yield
        return
    from rich.live import Live

    ended = Flag()
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:

        def follow() -> None:
            while not ended.wait(period_s):
                with suppress(OSError):  # a file that the run is replacing just now is read at the next look
                    progress.update()
                live.update(live_view(progress, console.width), refresh=True)

        thread = Thread(target=follow, name="autotune-live", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            progress.update()
            live.update(live_view(progress, console.width), refresh=True)
