"""A measured run on real terminals: 200 columns where it runs, 80 columns and NO_COLOR where another shell watches it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]  # 30 s on two quiet cores

TMUX = shutil.which("tmux")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|9[0-7]|38)(?:;\d+)*m")
STYLE = re.compile(r"\x1b\[[\d;]*m")
LEFT = re.compile(r"left with (\d+)")


@dataclass
class Pane:
    """A terminal of its own, and every screen that was seen on it (with its styles)."""

    name: str
    columns: int
    socket: str
    screens: list[str] = field(default_factory=list)

    def tmux(self, *arguments: str) -> str:
        assert TMUX is not None
        command = [TMUX, "-S", self.socket, "-f", "/dev/null", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def start(self, command: list[str], environment: dict[str, str]) -> None:
        # An inherited width would hold for every terminal; a shell of a person exports none.
        line = f"unset COLUMNS LINES; {shlex.join(command)}; echo left with $?; exec sleep 600"
        names = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        size = ("-x", str(self.columns), "-y", "45")
        self.tmux("new-session", "-d", "-s", self.name, *size, *names, "sh", "-c", line)

    def look(self) -> str:
        screen = self.tmux("capture-pane", "-p", "-e", "-t", self.name)
        if not self.screens or self.screens[-1] != screen:
            self.screens.append(screen)
        return screen

    def everything(self) -> str:
        """With what has scrolled off, without styles."""
        return self.tmux("capture-pane", "-p", "-S", "-1000", "-t", self.name)

    @property
    def plain(self) -> list[str]:
        return [STYLE.sub("", screen) for screen in self.screens]


@pytest.fixture(scope="module")
def panes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pane, Pane]]:
    """The run's own terminal and the watching one, after the run has ended."""
    if TMUX is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no tmux here")
        pytest.skip("no tmux here")
    pytest.importorskip("megatron.core")
    folder = tmp_path_factory.mktemp("tmux")
    socket, out = str(folder / "socket"), folder / "run"
    own, other = Pane("run", 200, socket), Pane("watch", 80, socket)
    autotune = [sys.executable, "-m", "autotune"]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "LANG": "C.UTF-8", "NO_COLOR": ""}
    try:
        own.start([*autotune, "run", "--recipe", "llama_tiny", "--mem-target", "28.5MB", "--out", str(out)], environment)
        watching = False
        deadline = time.monotonic() + 420
        while time.monotonic() < deadline:
            screens = [own.look()]
            if watching:
                screens.append(other.look())
            elif (out / "request.json").exists():
                other.start([*autotune, "watch", str(out)], {**environment, "NO_COLOR": "1"})
                watching = True
            if len(screens) == 2 and all(LEFT.search(screen) for screen in screens):
                break
            time.sleep(0.3)
        yield own, other
    finally:
        subprocess.run([TMUX, "-S", socket, "kill-server"], check=False, capture_output=True)


def seen(screens: list[str]) -> str:
    """Every fifth screen, for the one who has to find out why a test failed."""
    return "\n".join(line.rstrip() for screen in screens[::5] for line in (f"-- of {len(screens)}", *screen.splitlines()) if line)


def squeezed(text: str) -> str:
    return re.sub(r"[\s│]+", " ", text)


def test_both_end_with_the_answer_and_its_status(panes: tuple[Pane, Pane]) -> None:
    for pane in panes:
        text = squeezed(pane.everything())
        assert LEFT.findall(text) == ["0"], text[-2000:]
        assert "llama_tiny under 28.500 MB (27.180 MiB): recompute mlp" in text
        assert "measured, pass" in text
        assert 'cfg.model.recompute_modules = ["mlp"]' in text


def test_the_same_figures_at_both_widths(panes: tuple[Pane, Pane]) -> None:
    own, other = (squeezed(pane.everything().partition("┌─ autotune")[2]) for pane in panes)  # the boxed result
    for row in ("peak", "hot rank", "step time", "replay cost"):
        said = re.search(rf" {row} ([+\w][^:;(]*?(?:MB|ms|measured))", own)
        assert said is not None, row
        assert f" {row} {said[1]}" in other


def test_live_table_shows_what_is_waited_for_then_progress_and_the_bar(panes: tuple[Pane, Pane]) -> None:
    own, _ = panes
    screens = own.plain
    assert any("starting the ranks" in screen for screen in screens)
    rows = [line for screen in screens for line in screen.splitlines() if "survey, under full, uniform, 1 layer" in line]
    assert any(re.search(r"running +\d+ of \d+ .* \d+\.\d{3} MB +\d+\.\d %.* #+\.*\|", row) for row in rows), seen(screens)
    assert any(re.search(r" (?:\d+ min )?\d+ s +#", row) for row in rows), "no time left was shown"
    assert any(re.search(r"running; (?:\d+ min )?\d+ s", screen) for screen in screens), "no time passed was shown"


def test_a_narrow_watcher_sees_trials_and_bars(panes: tuple[Pane, Pane]) -> None:
    _, other = panes
    table = [screen for screen in other.plain if "peak against the limit" in screen and "step time" not in screen]
    assert any(re.search(r"survey,.*#+\.*\|", screen) for screen in table)
    assert any("mlp" in screen for screen in table)


def test_colour_where_it_is_wanted_only(panes: tuple[Pane, Pane]) -> None:
    own, other = panes
    assert any(COLOUR.search(screen) for screen in own.screens)
    assert not any(COLOUR.search(screen) for screen in other.screens)
    for pane in panes:
        assert max(len(line) for screen in pane.plain for line in screen.splitlines()) <= pane.columns
