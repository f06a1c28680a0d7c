"""``autotune watch``: a run that another shell started."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.options import verbosity_options
from autotune.errors import ExitStatus

if TYPE_CHECKING:
    from autotune.report.progress import RunProgress

OUTPUTS_S = 10.0
"""How long an answer's page is waited for; one that was never written (a library is missing) is not."""
_EPILOG = """\b
Examples:
  autotune watch runs/nemotron3nano-20260102-030405
  autotune watch runs/moonlight --once
  autotune watch runs/moonlight > moonlight.log

\b
Ends with the run, with its exit status; 4 where the run was stopped or killed.
"""


@click.command(epilog=_EPILOG)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show how it stands and end.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="SECONDS", help="How often to look."
)
@verbosity_options
def watch(folder: Path, once: bool, interval: float) -> int:
    """Follow a running job from another shell: trials, peaks against the limit, time left.

    Reads the run directory and changes nothing in it.
    """
    from autotune.report.progress import RunProgress, is_running

    progress = RunProgress(folder)
    progress.update()
    if once:
        _show(progress)
        return ExitStatus.OK
    alive = is_running(folder)
    _follow(progress, interval)
    if not progress.answered:
        what = "the run was stopped before an answer" if alive else "no process works on this run and it has no answer"
        click.echo(f"{what}; go on with: autotune run ... --out {folder} --resume", err=True)
        return ExitStatus.STOPPED
    _wait_for_outputs(folder)
    from autotune.report.facts import collect
    from autotune.report.run_view import read_run
    from autotune.report.terminal import print_result

    view = read_run(folder)
    print_result(view, collect(view))
    return view.recommendation.exit_status


def _wait_for_outputs(folder: Path) -> None:
    """The run writes its answer, lets the directory go and renders: the page comes last, seconds later on a busy machine."""
    deadline = time.monotonic() + OUTPUTS_S
    while not (folder / "report.html").is_file() and time.monotonic() < deadline:
        time.sleep(0.1)


def _show(progress: RunProgress) -> None:
    from autotune.report.live import live_view
    from autotune.report.terminal import console

    out = console()
    out.print(live_view(progress, out.width))


def _follow(progress: RunProgress, interval: float) -> None:
    """Until nobody works on the run: a live table on a terminal, else a line for each change."""
    from autotune.report.live import following
    from autotune.report.progress import is_running, state_lines
    from autotune.report.terminal import console

    out = console()
    if sys.stdout.isatty():
        with following(progress, out, period_s=interval):
            while is_running(progress.folder):
                time.sleep(interval)
        return
    said: dict[int, str] = {}
    while True:
        alive = is_running(progress.folder)  # before reading: what was written last is then read
        progress.update()
        for number, line in state_lines(progress).items():
            if said.get(number) != line:
                said[number] = line
                click.echo(line)
        sys.stdout.flush()
        if not alive:
            return
        time.sleep(interval)
