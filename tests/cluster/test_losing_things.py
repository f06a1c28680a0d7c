"""What is killed from outside: the driver, Ray's raylet, a node. Nothing stays behind, nothing finished is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from marked import marked, wait_for
from toy_search import BOUNDARIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HERE = Path(__file__).resolve().parent
RIGHT = {boundary.key for boundary in BOUNDARIES}


def start(folder: Path, environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "toy_search.py"), str(folder), *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=400)
    assert out.startswith('{"status"') and out.count("\n") == 1, out[-3000:] + err[-3000:]  # nothing of Ray's beside it
    told: dict[str, Any] = json.loads(out)
    assert not set(err.splitlines()) - set(told["notes"]), err[-3000:]  # nor on standard error: our own lines alone
    return told


def records(folder: Path) -> dict[str, float]:
    """Finished trials by folder, with the time of their record."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("trials/*/record.json")}


def in_a_trial(folder: Path, finished: int) -> bool:
    """So many trials are finished, and another one's ranks are at work."""
    done = records(folder)
    running = [p for p in folder.glob("trials/*") if p.name not in done and list(p.glob("ranks/*.jsonl"))]
    return len(done) >= finished and bool(running)


def slow(environment: dict[str, str]) -> dict[str, str]:
    return {**environment, "TOY_STEP_S": "2"}


def check_resumed(folder: Path, before: dict[str, float], told: dict[str, Any]) -> None:
    assert (told["status"], told["best"]) == (0, "core_attn")
    keys = [key for _, key, outcome, _ in told["records"] if outcome == "completed"]
    assert sorted(keys) == sorted(RIGHT)  # each once
    assert {outcome for _, _, outcome, _ in told["records"]} <= {"completed", "node_lost", "infrastructure", "launch_error"}
    assert {name: time for name, time in records(folder).items() if name in before} == before  # none was run again


def test_driver_killed(tmp_path: Path, toy_environment: dict[str, str], mark: str) -> None:
    folder = tmp_path / "run"
    process = start(folder, slow(toy_environment))
    assert wait_for(lambda: in_a_trial(folder, 2), 300) is not None, process.stderr and process.poll()
    before = records(folder)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ranks = wait_for(lambda: not any("autotune.trial.zygote" in line for line in marked(mark).values()), 60)
    assert ranks is not None, marked(mark)
    gone = wait_for(lambda: not marked(mark), 180)  # Ray's own agents look after their raylet only now and then.
    assert gone is not None, marked(mark)
    print(f"after the driver was killed ranks and zygotes were gone in {ranks:.1f} s, Ray {gone:.1f} s later")
    check_resumed(folder, before, finish(start(folder, toy_environment, "--resume")))
    assert wait_for(lambda: not marked(mark), 30) is not None, marked(mark)


def test_raylet_killed(tmp_path: Path, toy_environment: dict[str, str], mark: str) -> None:
    folder = tmp_path / "run"
    process = start(folder, slow(toy_environment))
    assert wait_for(lambda: in_a_trial(folder, 1), 300) is not None
    before = records(folder)
    raylets = [pid for pid, line in marked(mark).items() if "raylet/raylet" in line.split(" ")[0]]
    assert len(raylets) == 1
    os.kill(raylets[0], signal.SIGKILL)
    ranks = wait_for(lambda: not any("autotune.trial.zygote" in line for line in marked(mark).values()), 60)
    assert ranks is not None and ranks < 8, marked(mark)  # Ray by itself takes 10 s and more
    print(f"ranks and zygotes gone {ranks:.1f} s after the raylet was killed")
    told = finish(process)
    assert told["status"] == 4, told
    assert "Raylet is terminated" in (folder / "ray.log").read_text()
    assert not any("\x1b" in text for text in (*told["notes"], told["stop"], (folder / "ray.log").read_text()))
    assert wait_for(lambda: not marked(mark), 180) is not None, marked(mark)
    check_resumed(folder, before, finish(start(folder, toy_environment, "--resume")))


def test_disk_full(tmp_path: Path, toy_environment: dict[str, str], mark: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small file system can be mounted by root only")
    try:
        folder = disk / "run"
        told = finish(start(folder, toy_environment))
        assert told["status"] == 4, told
        assert "No space left on device" in told["stop"] or "infrastructure" in told["stop"]
        before = records(folder)
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        check_resumed(folder, before, finish(start(folder, toy_environment, "--resume")))
        assert wait_for(lambda: not marked(mark), 180) is not None, marked(mark)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
