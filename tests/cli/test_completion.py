"""Shell completion knows commands, options and recipes."""

from __future__ import annotations

import pytest
from click.shell_completion import BashComplete

from autotune.cli.main import cli


def completions(*words: str) -> set[str]:
    """What is offered for the last word."""
    shell = BashComplete(cli, {}, "autotune", "_AUTOTUNE_COMPLETE")
    return {item.value for item in shell.get_completions(list(words[:-1]), words[-1])}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), {"run", "plan", "recipes", "report", "watch"}),
        (("wa",), {"watch"}),
        (("run", "--mem"), {"--mem-target", "--mem-metric"}),
        (("run", "--backend", "p"), {"predict"}),
        (("plan", "--recipe", "nemo"), {"nemotron3nano", "nemotron3super", "nemotron_tiny"}),
        (("plan", "--recipe", "no-such"), set()),
    ],
)
def test_completion(words: tuple[str, ...], offered: set[str]) -> None:
    found = completions(*words)
    assert offered <= found
    assert offered or not found
