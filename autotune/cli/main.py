"""The command ``autotune``: its group, its errors and its exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from autotune.cli.diagnose import diagnose
from autotune.cli.doctor import doctor
from autotune.cli.plan import plan
from autotune.cli.recipes import recipes
from autotune.cli.report import report
from autotune.cli.run import run
from autotune.cli.watch import watch
from autotune.errors import AutotuneError, ExitStatus

_MACHINE_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)
"""Failures of the machine, not of autotune: a full or broken disk."""
_EPILOG = """\b
Examples:
  autotune run --recipe nemotron3nano --mem-target 75GB
  autotune plan --recipe deepseek_v3
  autotune report runs/nemotron3nano-20260102-030405

\b
Exit status: 0 a boundary is recommended, 2 the request is wrong, 3 no boundary
passes, 4 stopped before an answer (resumable), 1 a defect of autotune.

\b
Shell completion (or zsh_source, fish_source):
  eval "$(_AUTOTUNE_COMPLETE=bash_source autotune)"
"""


@dataclass(slots=True)
class Verbosity:
    """How much is printed; set by ``--quiet`` and ``--verbose`` while the arguments are read."""

    verbose: bool = False
    quiet: bool = False


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command; every failure is one line on stderr and one of the exit statuses of ``errors.py``."""
    verbosity = Verbosity()
    try:
        status = cli.main(args, prog_name="autotune", standalone_mode=False, obj=verbosity)
        sys.stdout.flush()  # a reader that closed the pipe shows here, not at exit
    except AutotuneError as error:
        status = _fail(str(error), error.exit_status)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        status = ExitStatus.BAD_REQUEST
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "autotune"
        status = _fail(f"{_one_line(error.format_message()).rstrip('.')}; see `{command} --help`", ExitStatus.BAD_REQUEST)
    except click.ClickException as error:
        status = _fail(error.format_message(), ExitStatus.BAD_REQUEST)
    except (KeyboardInterrupt, click.Abort):
        status = _fail("interrupted; what was finished is kept, --resume goes on from it", ExitStatus.STOPPED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = ExitStatus.OK
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _MACHINE_FAILURES:
            place = f" ({error.filename})" if error.filename else ""
            status = _fail(f"{error.strerror}{place}; mend it, a run goes on with --resume", ExitStatus.STOPPED)
        else:
            status = _defect(error, verbosity.verbose)
    sys.exit(int(status or 0))


def _fail(message: str, status: ExitStatus) -> ExitStatus:
    click.echo(f"autotune: {_one_line(message)}", err=True)
    return status


def _defect(error: Exception, verbose: bool) -> ExitStatus:
    """A failure that nobody foresaw: where it happened, and how to report it."""
    if verbose:
        import traceback

        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace else ""  # noqa: PTH119
    hint = "report it with the traceback above" if verbose else "run again with --verbose and report it with the traceback"
    return _fail(f"defect: {type(error).__name__}: {error}{place}; this is a fault of autotune, {hint}", ExitStatus.DEFECT)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print_version(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from autotune.cli.version import version_line

        click.echo(version_line())
        context.exit()


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print autotune and the stack it finds here.",
)
def cli() -> None:
    """Find the cheapest activation-recompute setting that makes a Megatron Bridge recipe fit a memory limit.

    Every answer is a patch for `cfg.model` with its evidence, and the reason why each cheaper setting is not the answer.
    """


for _command in (run, plan, recipes, report, watch, diagnose, doctor):
    cli.add_command(_command)
