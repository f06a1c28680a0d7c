"""Calls the command in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotune.cli.main import main


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command with arguments; gives its status and what it printed to stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return call
