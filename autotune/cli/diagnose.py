"""``autotune diagnose``: what failed first in a training log, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.options import format_option
from autotune.units import format_gb_and_gib

if TYPE_CHECKING:
    from autotune.trial.diagnosis import Diagnosis

_EPILOG = """\b
Examples:
  autotune diagnose train.log
  autotune diagnose logs/rank_*.log
  autotune diagnose runs/nemotron3nano-20260102-030405 --format json

\b
Several log files are those of one run. A run directory of autotune shows each
trial that failed, and what a second trial shows of it.
"""


@click.command(epilog=_EPILOG)
@click.argument("logs", nargs=-1, required=True, metavar="LOG... | RUN_DIR", type=click.Path(path_type=Path))
@format_option
def diagnose(logs: tuple[Path, ...], format_: str) -> int:
    """Name the failure that came first: class, rank, stage, memory asked for and available, and what to do.

    Works on any log of a PyTorch training. An out-of-memory on one rank wins over the timeouts that it causes on the others.
    """
    from autotune.records import dump_json
    from autotune.trial.diagnosis import diagnose as run

    found = run(logs)
    if format_ == "json":
        click.echo(dump_json({"diagnoses": found}), nl=False)
        return 0
    for number, diagnosis in enumerate(found):
        if number:
            click.echo()
        click.echo(text_of(diagnosis))
    return 0


def in_training(diagnosis: Diagnosis) -> bool:
    """Whether the failure came in a step, as far as its stage says."""
    return diagnosis.stage not in (None, "launch", "model_build")


def text_of(diagnosis: Diagnosis) -> str:
    """One diagnosis as text."""
    lines = [diagnosis.source]
    where = [f"rank {diagnosis.rank}"] if diagnosis.rank is not None else []
    where += [diagnosis.stage] if diagnosis.stage else []
    where += [f"step {diagnosis.step}"] if diagnosis.step else ["step unknown"] if in_training(diagnosis) else []
    where += [f"at {diagnosis.time}"] if diagnosis.time and not diagnosis.time[0].isspace() and ":" in diagnosis.time else []
    lines.append(f"  class       {diagnosis.failure_class}{' (borderline)' if diagnosis.borderline else ''}")
    if where:
        lines.append(f"  where       {', '.join(where)}")
    for label, size in (
        ("requested", diagnosis.requested_bytes),
        ("available", diagnosis.available_bytes),
        ("allocated", diagnosis.allocated_bytes),
        ("device", diagnosis.total_bytes),
    ):
        if size is not None:
            lines.append(f"  {label:<11} {format_gb_and_gib(size)}")
    if diagnosis.root_cause:
        lines.append(f"  root cause  {diagnosis.root_cause[:300]}")
    if diagnosis.consequences:
        lines.append(f"  after it    {diagnosis.consequences} failures that only follow from it")
    lines += [f"  compared    {text}" for text in diagnosis.comparisons]
    lines += [f"  {'what to do' if not place else '':<11} {lever}" for place, lever in enumerate(diagnosis.levers)]
    return "\n".join(lines)
