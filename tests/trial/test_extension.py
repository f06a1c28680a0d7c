"""Building an extension: one at a time in a folder, and a dead builder's lock blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune.trial.extension import alone_in

HOLD = """
import sys, time
from pathlib import Path
from autotune.trial.extension import alone_in
with alone_in(Path(sys.argv[1])):
    (Path(sys.argv[1]) / "some_ext" / "lock").touch()
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_builder_that_was_killed_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    (tmp_path / "some_ext").mkdir()
    builder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert builder.stdout is not None and builder.stdout.readline() == b"held\n"
    waiting = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert waiting.stdout is not None
    os.set_blocking(waiting.stdout.fileno(), False)
    time.sleep(1.0)
    assert waiting.stdout.readline() == b"", "one at a time"
    os.kill(builder.pid, signal.SIGKILL)
    os.set_blocking(waiting.stdout.fileno(), True)
    assert waiting.stdout.readline() == b"held\n"
    for process in (builder, waiting):
        process.kill()
        process.wait()
    with alone_in(tmp_path):
        assert not (tmp_path / "some_ext" / "lock").exists(), "torch would wait for it for ever"
