"""Ranks that fail in a search: each failure is its own boundary's alone, and a run cut off among them gives the same answer."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from marked import marked, wait_for
from test_losing_things import finish, records, start
from toy_search import BOUNDARIES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "[]": {"1": {"do": "killed_once", "step": 2}},
    "core_attn": {"0": {"do": "collective", "step": 2}, "1": {"do": "oom", "step": 2}},
    "layernorm": {"0": {"do": "deaf", "step": 2}, "1": {"do": "oom", "step": 3}},
    "mlp": {"0": {"do": "orphan", "step": 1}, "1": {"do": "hang", "step": 2}},
    "moe_act": {},
}
"""By boundary and rank. The control is killed by something outside, once; what is left is the dearest label."""
RIGHT = [
    ("[]", "rank_killed"),
    ("[]", "completed"),
    ("core_attn", "oom_capacity"),
    ("layernorm", "oom_capacity"),
    ("mlp", "hang"),
    ("moe_act", "completed"),
]


@pytest.fixture
def environment(toy_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(FAULTS))
    return {**toy_environment, "TOY_FILE": str(path)}


def outcomes(told: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((key, outcome) for _, key, outcome, _ in told["records"])


def check(told: dict[str, Any]) -> None:
    assert (told["status"], told["best"]) == (0, "moe_act"), told
    assert outcomes(told) == sorted(RIGHT)
    assert {key for _, key, _, _ in told["records"]} == {boundary.key for boundary in BOUNDARIES}


def zygotes(mark: str) -> list[str]:
    return [line for line in marked(mark).values() if "autotune.trial.zygote" in line or "time.sleep" in line]


def test_each_failure_is_its_own_boundarys(environment: dict[str, str], tmp_path: Path, mark: str) -> None:
    """Cut off after three failures, gone on with, and asked once more: one answer, no trial twice, nothing left."""
    folder = tmp_path / "run"
    process = start(folder, environment)
    assert wait_for(lambda: len(records(folder)) >= 3, 300) is not None, process.poll()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = records(folder)
    assert wait_for(lambda: not zygotes(mark), 60) is not None, marked(mark)
    check(finish(start(folder, environment, "--resume")))
    after = records(folder)
    assert {name: time for name, time in after.items() if name in before} == before and len(after) == len(RIGHT)
    check(finish(start(folder, environment, "--resume")))
    assert records(folder) == after
    assert wait_for(lambda: not marked(mark), 180) is not None, marked(mark)  # Ray, zygotes, ranks, the orphan
