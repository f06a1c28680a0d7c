"""``autotune report``: the outputs of a run again."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.options import format_option, verbosity_options

_EPILOG = """\b
Examples:
  autotune report runs/nemotron3nano-20260102-030405
  autotune report runs/nemotron3nano-20260102-030405 --format json
  NO_COLOR=1 autotune report runs/moonlight > moonlight.txt
"""


@click.command(epilog=_EPILOG)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@format_option
@verbosity_options
def report(folder: Path, format_: str) -> None:
    """Show a run's answer again, and write its patch and report anew.

    They are made from the records in the run directory; nothing is launched and no record is changed.
    """
    from autotune.report.write import write_outputs

    view, facts = write_outputs(folder)
    if format_ == "json":
        click.echo((folder / "recommendation.json").read_text(), nl=False)
        return
    from autotune.report.terminal import print_result

    print_result(view, facts)
