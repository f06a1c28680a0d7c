"""``ray job submit -- autotune run ...`` against two nodes: real Megatron ranks, on the CPU, where GPU ranks would be."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from heads import head_environment
from marked import HERE, marked, wait_for
from test_job_submission import submit

from autotune.trial.launch import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
RANKS = 4


@pytest.fixture
def job_server(toy_environment: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    pytest.importorskip("aiohttp_cors", reason="ray job submit needs ray[default]")
    environment = head_environment(toy_environment)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    cluster = subprocess.Popen(
        [sys.executable, str(HERE / "two_nodes.py"), str(port), str(RANKS)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert cluster.stdin is not None and cluster.stdout is not None
    try:
        if not any(line.strip() == "ready" for line in cluster.stdout) or wait_for(lambda: _answers(url), 180) is None:
            pytest.fail("the cluster did not start")
        yield url, environment
    finally:
        cluster.stdin.close()
        try:
            cluster.wait(60)
        except subprocess.TimeoutExpired:
            cluster.kill()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/jobs/", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        return error.code == 401  # It listens; the client brings the token.
    except OSError:
        return False


def test_submitted_run(job_server: tuple[str, dict[str, str]], tmp_path: Path, mark: str) -> None:
    url, environment = job_server
    out = tmp_path / "run"
    command = ["-m", "autotune", "run", "--recipe", "llama_tiny", "--mem-target", "25MB", "--backend", "cpu", "--out", str(out)]
    done = submit(url, environment, sys.executable, *command, "--steady-steps", "3", f"world_size={RANKS}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    answer = json.loads((out / "recommendation.json").read_text())
    assert (answer["kind"], answer["verdict"]) == ("measured", "pass")
    assert answer["ranks_measured"] == answer["world_size"] == RANKS and answer["peak_bytes"] <= 25 * 10**6
    records = [json.loads(path.read_text()) for path in sorted(out.glob("trials/*/record.json"))]
    assert {record["details"]["nodes"] for record in records} == {2}
    assert all(len(record["ranks"]) == RANKS for record in records)
    starts = [next(json.loads(line) for line in path.open() if '"start"' in line) for path in out.glob("trials/*/ranks/*.jsonl")]
    assert len({line["pid"] for line in starts}) == len(starts) == RANKS * len(records)  # a fresh process for each
    assert not any(Path(f"/proc/{line['pid']}").exists() for line in starts)
    assert not any("autotune.trial.zygote" in line for line in marked(mark).values())
