"""``autotune report``: the outputs of a run again, or several runs side by side."""

from __future__ import annotations

from pathlib import Path

import click

from autotune.cli.options import format_option, verbosity_options
from autotune.errors import RequestError

_EPILOG = """\b
Examples:
  autotune report runs/nemotron3nano-20260102-030405
  autotune report runs/moonlight --format json | jq .boundary
  autotune report runs/limit-70 runs/limit-75 --out limits.html
"""


@click.command(epilog=_EPILOG)
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Page of several runs; default comparison.html beside the first.",
)
@format_option
@verbosity_options
def report(folders: tuple[Path, ...], out: Path | None, format_: str) -> None:
    """Show a run's answer again, and write its patch and reports anew; of several runs, compare them on one page.

    They are made from the records in the run directories; nothing is launched and no record is changed.
    """
    if len(folders) > 1:
        _compare(folders, out, format_)
        return
    if out is not None:
        raise RequestError(
            "--out", str(out), "one run's page is report.html in its own folder", "name several runs to compare them"
        )
    from autotune.report.write import write_outputs

    view, facts = write_outputs(folders[0])
    if format_ == "json":
        click.echo((folders[0] / "recommendation.json").read_text(), nl=False)
        return
    from autotune.report.terminal import print_result

    print_result(view, facts)


def _compare(folders: tuple[Path, ...], out: Path | None, format_: str) -> None:
    """Several runs: a page, and their answers here."""
    from autotune.records import dump_json, write_atomically
    from autotune.report.compare import compare_page, compare_runs, read_runs

    views = read_runs(folders)
    compared = compare_runs(views)
    path = out or folders[0].parent / "comparison.html"
    try:
        write_atomically(path, compare_page(views, compared))
    except OSError as error:
        raise RequestError(
            "--out", str(path), f"cannot be written ({error.strerror})", "name a file that you can write"
        ) from None
    if format_ == "json":
        runs = {name: view.recommendation for name, view in zip(compared.names, views, strict=True)}
        click.echo(dump_json(runs), nl=False)
        return
    from autotune.report.terminal import console, print_table

    terminal = console()
    for table in compared.tables:
        print_table(terminal, table)
    click.echo(f"\nWritten to {path}")
