"""``autotune plan``: what a run would weigh, without running anything."""

from __future__ import annotations

from typing import Any

import click

from autotune.cli.options import format_option, make_request, request_options, verbosity_options

_EPILOG = """\b
Examples:
  autotune plan --recipe nemotron3nano --mem-target 75GB
  autotune plan --recipe deepseek_v3 model.seq_length=8192
  autotune plan --recipe moonlight16b --format json | jq '.breakpoints'

\b
All figures are predictions: nothing is launched.
"""


@click.command(epilog=_EPILOG)
@request_options
@format_option
@verbosity_options
@click.pass_obj
def plan(verbosity: Any, /, format_: str, **options: Any) -> None:
    """Show every recompute setting of a recipe with its predicted peak and replay cost.

    Takes what `run` takes. Without --mem-target it still shows peaks, breakpoints and the wall.
    """
    request = make_request(**options)
    from autotune.engine.plan import plan as plan_engine

    result = plan_engine(request)
    if format_ == "json":
        from autotune.records import dump_json

        click.echo(dump_json(result), nl=False)
        return
    from autotune.report.plan_text import print_plan

    print_plan(result, everything=verbosity.verbose)
