"""``autotune recipes``: what the catalog holds."""

from __future__ import annotations

import click

from autotune.cli.options import format_option, verbosity_options


@click.command(
    epilog="""\b
Examples:
  autotune recipes
  autotune recipes --format json
  autotune plan --recipe moonlight16b        plan one of them
"""
)
@format_option
@verbosity_options
def recipes(format_: str) -> None:
    """List the recipes of the catalog, each with its Bridge function and revision.

    A recipe that is not listed can be named by its Bridge function, as module:function, or by a workload file.
    """
    from autotune.workload.catalog import recipes as catalog

    entries = catalog()
    if format_ == "json":
        from autotune.records import dump_json

        click.echo(dump_json(entries), nl=False)
        return
    from autotune.report.terminal import print_recipes

    print_recipes(entries)
