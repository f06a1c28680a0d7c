"""What a real terminal, a file and ``NO_COLOR`` get."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

PLAN = [sys.executable, "-m", "autotune", "plan", "--recipe", "nemotron3nano", "--mem-target", "75GB"]
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)(?:;\d+)*m")
ANY_STYLE = re.compile(r"\x1b\[[\d;]*m")


def in_a_terminal(command: list[str], environment: dict[str, str], columns: int) -> str:
    """Output of a command whose stdout is a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen(command, env=environment, stdin=slave, stdout=slave, stderr=subprocess.PIPE)
    os.close(slave)
    output = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        output += part
    os.close(master)
    assert process.wait() == 0, process.stderr.read() if process.stderr else ""
    if process.stderr is not None:
        process.stderr.close()
    return output.decode()


@pytest.fixture
def terminal_environment(command_environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in command_environment.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}


@pytest.mark.parametrize("columns", [50, 200])
def test_plan_fits_the_terminal(columns: int, terminal_environment: dict[str, str]) -> None:
    output = in_a_terminal(PLAN, terminal_environment, columns)
    assert ANY_STYLE.search(output)
    lines = [ANY_STYLE.sub("", line).rstrip("\r") for line in output.split("\n")]
    assert max(map(len, lines)) <= columns


def test_no_color_is_honoured(terminal_environment: dict[str, str]) -> None:
    assert not COLOUR.search(in_a_terminal(PLAN, {**terminal_environment, "NO_COLOR": "1"}, 80))


def test_a_file_gets_plain_text(command_environment: dict[str, str]) -> None:
    environment = {name: value for name, value in command_environment.items() if name not in ("NO_COLOR", "COLUMNS")}
    output = subprocess.run(PLAN, env=environment, capture_output=True, text=True, check=True).stdout
    assert "\x1b" not in output
    assert "cheapest that fits" in output


def test_ascii_only_output_is_survived(command_environment: dict[str, str]) -> None:
    environment = {**command_environment, "PYTHONIOENCODING": "ascii", "LANG": "C"}
    output = subprocess.run(PLAN, env=environment, capture_output=True, check=True).stdout
    assert output.isascii()
    assert b"cheapest that fits" in output
