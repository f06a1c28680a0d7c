"""``autotune doctor``: what this machine or cluster has for trials, and what ``auto`` would choose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from autotune.cli.options import format_option

if TYPE_CHECKING:
    from autotune.cluster.doctor import Examination

_EPILOG = """\b
Examples:
  autotune doctor
  autotune doctor --recipe moonlight_tiny
  autotune doctor --address auto --recipe nemotron3nano --out /shared/runs

\b
Exit status: 0 nothing is missing, 4 something is.
"""


@click.command(epilog=_EPILOG)
@click.option("--address", metavar="ADDR", help="Look at every node of this Ray cluster; default: this machine only.")
@click.option("--recipe", metavar="R", help="Also say which backend `run --backend auto` would take for it, and why.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Check that every node sees this directory.")
@format_option
def doctor(address: str | None, recipe: str | None, out: Path | None, format_: str) -> int:
    """Look at versions, GPUs, compiler, ports and shared storage, and name what is missing."""
    from autotune.cli.streams import stdout_for_the_answer
    from autotune.cluster.doctor import examine
    from autotune.records import dump_json

    with stdout_for_the_answer():
        examination = examine(address, out)
        choice = _choice(recipe, address) if recipe is not None else None
    if format_ == "json":
        click.echo(dump_json({"examination": examination, "auto": choice}), nl=False)
    else:
        click.echo(_text(examination, choice))
    return 4 if any(check.level == "missing" for check in examination.checks) else 0


def _choice(recipe: str, address: str | None) -> str:
    from autotune.engine.backends import choose
    from autotune.engine.request import Request
    from autotune.workload.resolve import resolve_workload

    return choose(Request(recipe=recipe, address=address), resolve_workload(recipe, overrides=())).why


def _text(examination: Examination, choice: str | None) -> str:
    lines = [examination.scope]
    for node in examination.nodes:
        gpus = f"{len(node.gpus)} x {node.gpus[0].name}" if node.gpus else "no GPU"
        lines.append(
            f"  {node.host} ({node.address}): {gpus}, {node.cpus} CPUs, {node.memory_bytes / 1e9:.0f} GB, Python {node.python}"
        )
    width = max(len(check.name) for check in examination.checks)
    for check in examination.checks:
        way_out = f"; {check.way_out}" if check.way_out else ""
        lines.append(f"{check.level:<8} {check.name:<{width}}  {check.text}{way_out}")
    if choice is not None:
        lines.append(choice)
    return "\n".join(lines)
