"""The options that ``run`` and ``plan`` share, read into one Request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autotune.errors import RequestError
from autotune.units import parse_size_bytes

if TYPE_CHECKING:
    from autotune.engine.request import Request

F = TypeVar("F", bound=Callable[..., Any])

BACKENDS = ("auto", "gpu", "cpu", "predict", "replay")
SAMPLERS = ("planner", "exhaustive", "tpe", "gp", "random")


def verbosity_options(command: F) -> F:
    """``--quiet`` and ``--verbose``: kept on the context's root object, so that an error shows them respected."""

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and context.find_root().obj is not None:
            setattr(context.find_root().obj, str(parameter.name), True)

    for name, text in (("verbose", "Also show notes, and the traceback of a defect."), ("quiet", "Print the result only.")):
        command = click.option(f"--{name}", is_flag=True, expose_value=False, callback=keep, is_eager=True, help=text)(command)
    return command


def _complete_recipe(_context: click.Context, _option: click.Parameter, incomplete: str) -> list[str]:
    """Aliases of the catalog that begin so; whatever else names a recipe is not completed."""
    from autotune.workload.catalog import aliases

    return [alias for alias in aliases() if alias.startswith(incomplete)]


def request_options(command: F) -> F:
    """Everything that says what is asked; a command that takes them gets ``make_request``'s keywords."""
    options = (
        click.argument("overrides", nargs=-1, metavar="[KEY.PATH=VALUE]..."),
        click.option(
            "--recipe",
            required=True,
            metavar="R",
            shell_complete=_complete_recipe,
            help="Alias (see `recipes`), Bridge recipe function, module:function, workload file or Hugging Face config.json.",
        ),
        click.option(
            "--mem-target",
            metavar="SIZE",
            help="Limit of every rank's peak: 75GB is 75*10^9 bytes, 75GiB is 75*2^30; a bare number is refused.",
        ),
        click.option(
            "--mem-metric",
            type=click.Choice(["allocated", "reserved"]),
            default="allocated",
            show_default=True,
            help="Which peak is held against the limit.",
        ),
        click.option(
            "--backend",
            type=click.Choice(BACKENDS),
            default="auto",
            show_default=True,
            help="Where trials run. auto takes gpu, cpu or predict, whichever this machine and the recipe allow, and says why.",
        ),
        click.option(
            "--evidence",
            metavar="FILE[:TABLE]",
            help="Recorded trials for --backend replay, or the directory of an earlier run whose trials count.",
        ),
        click.option(
            "--space",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Search space of your own instead of the architecture's (YAML).",
        ),
        click.option(
            "--sampler", type=click.Choice(SAMPLERS), default="planner", show_default=True, help="Who proposes the next trial."
        ),
        click.option(
            "--max-trials", type=click.IntRange(min=1), metavar="N", help="Stop after N trials (exit status 4 if still open)."
        ),
        click.option(
            "--max-gpu-hours",
            type=click.FloatRange(min=0.0, min_open=True),
            metavar="H",
            help="Begin no trial after H GPU-hours of trials (exit status 4 if still open).",
        ),
        click.option("--prove", is_flag=True, help="Go on until every immediate neighbour of the answer was launched."),
        click.option(
            "--steady-steps",
            type=click.IntRange(min=1),
            default=3,
            show_default=True,
            metavar="K",
            help="Steady steps that a pass needs.",
        ),
        click.option("--max-slowdown", metavar="PERCENT", help="Largest replay cost against the control, such as 5%."),
        click.option(
            "--out", type=click.Path(path_type=Path), metavar="DIR", help="Run directory; default runs/<recipe>-<time>."
        ),
        click.option("--resume", is_flag=True, help="Go on with the run in --out; no finished trial is repeated."),
        click.option("--address", metavar="ADDR", help="Ray cluster; default: this machine."),
        click.option(
            "--log-to",
            multiple=True,
            metavar="TRACKER",
            help="Log each launch: wandb[:PROJECT] or mlflow[:TRACKING_URI]; may be given twice.",
        ),
        click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Seed of every random choice."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def format_option(command: F) -> F:
    """``--format``."""
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="json prints the file that scripts read, and nothing else.",
    )(command)


def parse_fraction(text: str, *, setting: str) -> float:
    """Read ``5%`` as 0.05.

    Raises:
        RequestError: No percent sign, no number, or a negative one.
    """
    number = text.strip().removesuffix("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not text.strip().endswith("%") or not 0 <= value < float("inf"):
        raise RequestError(setting, text, "a slowdown is a percentage", "write for example 5%")
    return value / 100


def make_request(*, mem_target: str | None, max_slowdown: str | None, **fields: Any) -> Request:
    """The options as a Request.

    Raises:
        RequestError: A size or percentage that cannot be read, or options that contradict each other.
    """
    from autotune.engine.request import Request

    if fields["backend"] == "replay" and fields["evidence"] is None:
        raise RequestError("--backend", "replay", "replay reads recorded trials", "name them with --evidence FILE[:TABLE]")
    of_a_run = fields["evidence"] is not None and Path(fields["evidence"]).is_dir()
    if fields["evidence"] is not None and fields["backend"] not in ("replay", "auto") and not of_a_run:
        raise RequestError(
            "--evidence", fields["evidence"], f"--backend {fields['backend']} reads no evidence", "use --backend replay"
        )
    if fields["resume"] and fields["out"] is None:
        raise RequestError("--resume", None, "which run to go on with is not said", "name its directory with --out DIR")
    return Request(
        mem_target_bytes=None if mem_target is None else parse_size_bytes(mem_target),
        max_slowdown=None if max_slowdown is None else parse_fraction(max_slowdown, setting="--max-slowdown"),
        **fields,
    )
