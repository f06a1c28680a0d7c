"""Ray's head goes in the middle of a run: killed and started again at once, or gone for good. The run stops resumably."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from heads import Head, head_environment
from marked import marked, wait_for
from test_losing_things import check_resumed, finish, in_a_trial, records, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def environment(toy_environment: dict[str, str]) -> dict[str, str]:
    """Of cluster and driver; the driver gives a head that is gone three quarters of what Ray gives it."""
    return {**head_environment(toy_environment), "TOY_STEP_S": "1.5", "RAY_gcs_rpc_server_reconnect_timeout_s": "24"}


@pytest.fixture
def head(environment: dict[str, str]) -> Iterator[Head]:
    started = Head(environment, "--include-dashboard=false")
    started.start()
    try:
        yield started
    finally:
        started.stop()


def lose(head: Head, folder: Path, environment: dict[str, str], mark: str) -> tuple[subprocess.Popen[str], dict[str, float]]:
    """A run whose head is killed within its second trial or a later one; the run, and what it had finished."""
    process = start(folder, environment, "--address", head.address)
    assert wait_for(lambda: in_a_trial(folder, 1), 300) is not None, process.poll()
    before = records(folder)
    head.kill()
    ranks = wait_for(lambda: not any("autotune.trial.zygote" in line for line in marked(mark).values()), 60)
    assert ranks is not None and ranks < 10, marked(mark)
    print(f"ranks and zygotes gone {ranks:.1f} s after the head was killed")
    return process, before


def test_killed_and_started_again(head: Head, tmp_path: Path, environment: dict[str, str], mark: str) -> None:
    folder = tmp_path / "run"
    process, before = lose(head, folder, environment, mark)
    head.start()
    said, words = process.communicate(timeout=120)
    if process.returncode == 0:  # Ray's exception came first
        told = json.loads(said)
        assert told["status"] == 4 and "--resume" in told["stop"], told
        assert {outcome for _, _, outcome, _ in told["records"]} <= {"completed", "node_lost", "infrastructure"}
    else:
        assert (process.returncode, said) == (4, ""), words[-3000:]
        assert f"Ray's head at {head.address} was started again" in words and "add --resume" in words
    check_resumed(folder, before, finish(start(folder, environment, "--address", head.address, "--resume")))
    head.stop()
    assert wait_for(lambda: not marked(mark), 60) is not None, marked(mark)


def test_gone_for_good(head: Head, tmp_path: Path, environment: dict[str, str], mark: str) -> None:
    """Ray by itself would end the driver with status 1, that of a defect."""
    folder = tmp_path / "run"
    process, before = lose(head, folder, environment, mark)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said[-3000:]
    assert f"Ray's head at {head.address} has not answered for" in said and "add --resume" in said
    assert wait_for(lambda: not marked(mark), 60) is not None, marked(mark)
    head.start()
    check_resumed(folder, before, finish(start(folder, environment, "--address", head.address, "--resume")))
