"""The command line as a person meets it: help, version, and errors of one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from autotune.cli.main import cli, main

Invoke = Callable[..., tuple[int, str, str]]


def test_version_names_the_stack(invoke: Invoke) -> None:
    status, out, _ = invoke("--version")
    assert status == 0
    assert re.fullmatch(r"autotune \d+\.\d+\.\d+ \(Python [\d.]+, megatron-core \S+, megatron-bridge \S+, .*\)\n", out)


@pytest.mark.parametrize("command", sorted(cli.commands))
def test_help_teaches_with_three_examples(command: str, invoke: Invoke) -> None:
    status, out, _ = invoke(command, "--help")
    assert status == 0
    examples = re.findall(r"^ +(?:NO_COLOR=1 )?autotune \S+.*$", out.split("Examples:")[1], re.MULTILINE)
    assert len(examples) >= 3
    assert all(len(line) <= 100 for line in out.splitlines())


def test_examples_in_help_parse() -> None:
    """Every example's options exist: its line parses as the command would parse it."""
    for name, command in cli.commands.items():
        for line in (command.epilog or "").splitlines():
            if not line.strip().startswith(f"autotune {name}"):
                continue
            words = line.split("|")[0].split(">")[0].split("  #")[0].strip()
            arguments = re.split(r"\s{2,}", words)[0].replace("'", "").split()[2:]
            with command.make_context(name, arguments, obj=None) as context:
                assert isinstance(context, click.Context)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--recipe", "x", "--mem-target", "75"],
         "autotune: --mem-target='75': a size needs a unit; write 75GB (10^9) or 75GiB (2^30)"),
        (["run", "--recipe", "x", "--mem-target", "-5GB"],
         "autotune: --mem-target='-5GB': a size is a positive number with a unit; write for example 75GB (10^9) or 70GiB (2^30)"),
        (["run", "--recipe", "x"],
         "autotune: --mem-target: the limit to fit under is missing; give for example --mem-target 75GB"),
        (["run", "--mem-target", "75GB"],
         "autotune: Missing option '--recipe'; see `autotune run --help`"),
        (["run", "--recipe", "x", "--mem-target", "75GB", "--max-slowdown", "5"],
         "autotune: --max-slowdown='5': a slowdown is a percentage; write for example 5%"),
        (["run", "--recipe", "x", "--mem-target", "75GB", "--backend", "replay"],
         "autotune: --backend='replay': replay reads recorded trials; name them with --evidence FILE[:TABLE]"),
        (["run", "--recipe", "x", "--mem-target", "75GB", "--backend", "cpu", "--evidence", "f.json"],
         "autotune: --evidence='f.json': --backend cpu reads no evidence; use --backend replay"),
        (["run", "--recipe", "x", "--mem-target", "75GB", "--resume"],
         "autotune: --resume: which run to go on with is not said; name its directory with --out DIR"),
        (["run", "--recipe", "x", "--mem-target", "75GB", "--max-trials", "0"],
         "autotune: Invalid value for '--max-trials': 0 is not in the range x>=1; see `autotune run --help`"),
        (["frob"], "autotune: No such command 'frob'; see `autotune --help`"),
        (["plan", "--recipe", "x", "--format", "xml"],
         "autotune: Invalid value for '--format': 'xml' is not one of 'text', 'json'; see `autotune plan --help`"),
    ],
)  # fmt: skip
def test_bad_request_is_one_line_and_status_2(arguments: list[str], message: str, invoke: Invoke) -> None:
    assert invoke(*arguments) == (2, "", f"{message}\n")


def test_no_arguments_show_the_help(invoke: Invoke) -> None:
    status, out, err = invoke()
    assert (status, out) == (2, "")
    assert err == invoke("--help")[1]


def test_full_disk_is_no_defect(command_environment: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        process = subprocess.run(
            [sys.executable, "-m", "autotune", "recipes"], env=command_environment, stdout=full, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
    assert process.returncode == 4
    assert process.stderr == "autotune: No space left on device; mend it, a run goes on with --resume\n"


def test_report_of_a_folder_without_a_run(tmp_path: object, invoke: Invoke) -> None:
    rule = "this folder holds no run (no workload.json); name a directory that `autotune run` wrote"
    assert invoke("report", str(tmp_path)) == (2, "", f"autotune: RUN='{tmp_path}': {rule}\n")


def break_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr("autotune.cli.version.version_line", fail)


def test_defect_is_status_1_and_says_how_to_report_it(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    break_version(monkeypatch)
    status, out, err = invoke("--version")
    assert (status, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("autotune: defect: ZeroDivisionError: made to fail at test_command_line.py:")
    assert "run again with --verbose and report it" in err


def test_defect_shows_its_traceback_with_verbose(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr("autotune.workload.catalog.recipes", fail)
    status, _, err = invoke("recipes", "--verbose")
    assert status == 1
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("autotune: defect: ZeroDivisionError: made to fail at")


def test_interrupt_is_status_4(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("autotune.workload.catalog.recipes", interrupt)
    status, _, err = invoke("recipes")
    assert status == 4
    assert err.strip() == "autotune: interrupted; what was finished is kept, --resume goes on from it"


def test_closed_pipe_is_no_error(command_environment: dict[str, str]) -> None:
    process = subprocess.run(
        f"{sys.executable} -m autotune recipes --format json | head -c 1",
        shell=True, env=command_environment, capture_output=True, text=True, check=False, executable="/bin/sh",
    )  # fmt: skip
    assert (process.stdout, process.stderr) == ("[", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_is_offered(shell: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AUTOTUNE_COMPLETE", f"{shell}_source")
    if shell == "bash":
        monkeypatch.setattr("click.shell_completion.BashComplete._check_version", staticmethod(lambda: None))
    status, out, _ = invoke()
    assert status == 0
    assert "_AUTOTUNE_COMPLETE" in out


def test_module_and_command_are_the_same(command_environment: dict[str, str]) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "autotune", "run", "--recipe", "x", "--mem-target", "1"],
        env=command_environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert process.stderr == "autotune: --mem-target='1': a size needs a unit; write 1GB (10^9) or 1GiB (2^30)\n"
    assert callable(main)


@pytest.mark.parametrize(("limit", "status"), [("100GB", 0), ("65GB", 0), ("60GB", 3), ("20GB", 3)])
def test_a_plan_under_which_nothing_fits_says_so_to_a_script(limit: str, status: int, invoke: Invoke) -> None:
    """Nemotron's predicted floor is 64.6 GB; the table is printed all the same, as JSON too."""
    found, out, err = invoke("plan", "--recipe", "nemotron3nano", "--mem-target", limit, "--format", "json")
    assert found == status
    assert json.loads(out)["candidates"]
    assert ("no recompute setting fits" in err) is (status == 3)
