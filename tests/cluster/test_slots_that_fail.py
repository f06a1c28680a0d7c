"""Slots that cannot be made ready: each reason is one line of ours, never an error of Ray's with a traceback in it."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from marked import HERE, marked, wait_for

from autotune.cluster.connection import connect, disconnect
from autotune.cluster.group import SlotGroup
from autotune.errors import AutotuneError, RequestError, StoppedError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def group() -> Iterator[SlotGroup]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(HERE.parent.parent)]))
        patch.setenv("TOY_MARK", "slots")
        patch.delenv("RAY_ADDRESS", raising=False)
        connect(None, local_cpus=2)
        try:
            made = SlotGroup(2, {"CPU": 1}, timeout_s=60)
            yield made
            made.close()
        finally:
            disconnect()


def warm(group: SlotGroup, program: str = "toy_rank", timeout_s: float = 60, **environment: str) -> Sequence[object]:
    return group.warm("cpu", None, environment, program, timeout_s=timeout_s)


def said(error: AutotuneError) -> str:
    text = str(error)
    assert "\n" not in text and "Traceback" not in text and "\x1b" not in text
    return text


def test_reasons_are_lines(group: SlotGroup) -> None:
    """One after the other on the same slots, which stay usable until they are killed."""
    with pytest.raises(RequestError) as lacks:
        warm(group, TOY_LACKS="1")
    assert "the toy is not installed here; install it" in said(lacks.value)
    assert re.search(
        rf"; see \S+/autotune-zygote-({group.pids[0]}|{group.pids[1]})\.log on {socket.gethostname()}$", said(lacks.value)
    )
    with pytest.raises(RequestError) as unknown:
        warm(group, "no_such_program")
    assert "No module named 'no_such_program'" in said(unknown.value)
    with pytest.raises(ValueError, match="environment variable"):  # a defect stays one
        warm(group, **{"A=B": "1"})
    log = Path(tempfile.gettempdir()) / f"autotune-zygote-{group.pids[0]}.log"
    log.unlink()
    log.mkdir()
    try:
        with pytest.raises(StoppedError) as broken:
            warm(group)
    finally:
        log.rmdir()
    assert "a rank slot could not be made ready ([Errno 21] Is a directory" in said(broken.value)
    assert len(warm(group)) == 2
    with pytest.raises(StoppedError) as late:
        warm(group, timeout_s=0.5, TOY_IMPORTS_S="3")
    assert "not ready within" in said(late.value)
    assert wait_for(lambda: sum("autotune.trial.zygote" in line for line in marked("slots").values()) == 2, 30) is not None
    slot = group.pids[1]
    threading.Timer(1.0, os.kill, (slot, signal.SIGKILL)).start()
    with pytest.raises(StoppedError) as killed:
        warm(group, TOY_IMPORTS_S="8")
    assert "a rank slot died before it was ready" in said(killed.value) and "--resume" in said(killed.value)
