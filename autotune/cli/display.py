"""What a run shows while it goes on: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from autotune.engine.events import Event

_LAUNCHING = ("cpu", "gpu")
"""Backends whose trials take long enough to be looked at."""


def defaults_line(context: click.Context) -> str:
    """The options that were left at their defaults, with what they are: ``docs/defaults.md`` says what each does."""
    found = []
    for option in context.command.params:
        value = context.params.get(str(option.name))
        left = context.get_parameter_source(str(option.name)) is click.core.ParameterSource.DEFAULT
        if (
            option.name != "format_"
            and left
            and isinstance(option, click.Option)
            and isinstance(value, str | int | float)
            and not isinstance(value, bool)
        ):
            found.append(f"{option.opts[-1]} {value}")
    return f"defaults: {', '.join(found)}" if found else ""


class RunDisplay:
    """Shows the events of a run on stderr.

    Args:
        verbose: Every line, also the progress of running trials; no live table.
        quiet: Nothing.
        defaults: A line to show once the request is accepted.
    """

    def __init__(self, *, verbose: bool, quiet: bool, defaults: str) -> None:
        self._defaults = defaults
        self._began_t = time.time()
        self._verbose = verbose
        self._quiet = quiet
        self._console: Console | None = None
        self._stack = ExitStack()

    def __enter__(self) -> RunDisplay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def show(self, event: Event) -> None:
        """Take one event."""
        if self._quiet:
            return
        if event.kind == "workload" and self._defaults:
            click.echo(self._defaults, err=True)
        if event.kind == "backend" and self._live_wanted(event):
            click.echo(event.text, err=True)
            self._go_live(Path(event.data["run_directory"]))
        elif self._console is not None:
            # The table says what trials do; what it does not say stays above it.
            if event.kind in ("note", "prediction", "finished"):
                self._console.print(event.text, markup=False, highlight=False)
        elif self._verbose or event.kind != "trial_progress":
            click.echo(event.text, err=True)

    def _live_wanted(self, event: Event) -> bool:
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return terminal and not self._verbose and event.data.get("backend") in _LAUNCHING and "run_directory" in event.data

    def _go_live(self, folder: Path) -> None:
        from rich.console import Console

        from autotune.report.live import following
        from autotune.report.progress import RunProgress

        self._console = Console(stderr=True, highlight=False)
        self._stack.enter_context(following(RunProgress(folder, since_t=self._began_t), self._console))
