"""``ray job submit -- autotune run ...`` against a running cluster gives the recommendation, and nothing of it is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from heads import RAY, Head, head_environment
from marked import HERE, marked, wait_for
from toy_search import BOUNDARIES

from autotune.trial.launch import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def dashboard(toy_environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Address of the job server of a cluster started by its own command, on loopback."""
    pytest.importorskip("aiohttp_cors", reason="ray job submit needs ray[default]")
    web, agent = free_port(), free_port()
    environment = head_environment(toy_environment)
    head = Head(
        environment, "--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={web}",
        f"--dashboard-agent-listen-port={agent}",
    )  # fmt: skip
    head.start()
    url = f"http://127.0.0.1:{web}"

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"{url}/api/jobs/", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            return error.code == 401  # It listens; the client brings the token.
        except OSError:
            return False

    try:
        if wait_for(answers, 180) is None:
            pytest.fail("the dashboard did not start")
        yield url, environment
    finally:
        head.stop()


def submit(url: str, environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(RAY), "job", "submit", "--address", url, "--", *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def test_submitted_search(dashboard: tuple[str, dict[str, str]], tmp_path: Path, mark: str) -> None:
    url, environment = dashboard
    folder = tmp_path / "run"
    done = submit(url, environment, sys.executable, str(HERE / "toy_search.py"), str(folder))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.strip().startswith('{"status"'))
    told = json.loads(line)
    assert (told["status"], told["best"], len(told["records"])) == (0, "core_attn", len(BOUNDARIES))
    noted = [json.loads(line) for path in folder.glob("trials/*/ranks/*.jsonl") for line in path.open() if '"note"' in line]
    assert {line["niceness"] for line in noted} == {os.getpriority(os.PRIO_PROCESS, 0)}
    time.sleep(1)
    assert not any("autotune.trial.zygote" in line for line in marked(mark).values())


def test_submitted_command(dashboard: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    url, environment = dashboard
    out = tmp_path / "plan"
    command = [
        "-m",
        "autotune",
        "run",
        "--recipe",
        "moonlight_tiny",
        "--mem-target",
        "400MB",
        "--backend",
        "predict",
        "--out",
        str(out),
    ]
    done = submit(url, environment, sys.executable, *command)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads((out / "recommendation.json").read_text())["recipe"] == "moonlight_tiny"
