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
  autotune plan --recipe moonlight16b --trace --trace-labels '[],moe_act,layernorm+moe_act'

\b
All figures are predictions: nothing is launched. A trace allocates what the real model
allocates and runs no kernel. Exit status 3: no predicted peak is within --mem-target.
"""


@click.command(epilog=_EPILOG)
@request_options
@click.option(
    "--trace",
    is_flag=True,
    help="Second opinion: run the installed Megatron's model, tensors without kernels, on one rank of each pipeline stage.",
)
@click.option(
    "--trace-labels",
    metavar="SETTING,...",
    help="What to trace, labels joined by +, known to the ledger or not; default: control, single labels, full.",
)
@format_option
@verbosity_options
@click.pass_obj
def plan(verbosity: Any, /, format_: str, trace: bool, trace_labels: str | None, **options: Any) -> None:
    """Show every recompute setting of a recipe with its predicted peak and replay cost.

    Takes what `run` takes. Without --mem-target it still shows peaks, breakpoints and the wall.
    """
    request = make_request(**options)
    from autotune.engine.plan import plan as plan_engine
    from autotune.engine.plan import refuse_when_nothing_fits

    result = plan_engine(request)
    if trace or trace_labels is not None:
        from dataclasses import replace

        from autotune.engine.trace import trace_plan
        from autotune.workload.resolve import resolve_workload

        workload = resolve_workload(request.recipe, overrides=request.overrides)
        # Beside the result, never in it: a trace takes minutes, and standard output may be a JSON file.
        report = trace_plan(result, workload, trace_labels, on_text=lambda text: click.echo(text, err=True))
        result = replace(result, trace=report)
    if format_ == "json":
        from autotune.records import dump_json

        click.echo(dump_json(result), nl=False)
    else:
        from autotune.report.plan_text import print_plan

        print_plan(result, everything=verbosity.verbose)
    refuse_when_nothing_fits(result)
