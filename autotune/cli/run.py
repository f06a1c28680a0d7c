"""``autotune run``: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autotune.cli.options import format_option, make_request, request_options, verbosity_options
from autotune.errors import RequestError

_EPILOG = """\b
Examples:
  autotune run --recipe nemotron3nano --mem-target 75GB
  autotune run --recipe moonlight16b --mem-target 36GB --out runs/moonlight --resume
  autotune run --recipe llama3_8b --mem-target 70GiB --max-slowdown 5% train.global_batch_size=64

\b
The run directory holds recommendation.json, patch.py, overrides.txt, report.html,
report.md, candidates.json, workload.json, study.journal, and every trial under trials/.
"""


@click.command(epilog=_EPILOG)
@request_options
@format_option
@verbosity_options
@click.pass_context
def run(context: click.Context, /, format_: str, **options: Any) -> int:
    """Find the cheapest recompute setting that fits, and write it as a patch.

    Overrides change the workload in Hydra's form, as Bridge takes them (model.seq_length=8192).
    """
    if options["mem_target"] is None:
        raise RequestError("--mem-target", None, "the limit to fit under is missing", "give for example --mem-target 75GB")
    request = make_request(**options)
    from autotune.cli.display import RunDisplay, defaults_line
    from autotune.cli.streams import stdout_for_the_answer
    from autotune.engine.run import run as run_engine
    from autotune.report.write import write_outputs

    verbosity = context.obj
    display = RunDisplay(verbose=verbosity.verbose, quiet=verbosity.quiet, defaults=defaults_line(context))
    with stdout_for_the_answer(), display:
        recommendation = run_engine(request, display.show)
    assert recommendation.run_directory is not None
    folder = Path(recommendation.run_directory)
    view, facts = write_outputs(folder)
    if format_ == "json":
        click.echo((folder / "recommendation.json").read_text(), nl=False)
    else:
        from autotune.report.terminal import print_result

        print_result(view, facts)
    return recommendation.exit_status
