"""Faults injected into trials on real Ray slots: what ended it, how fast, and that nothing is left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from marked import HERE, marked
from toy_search import LIMITS

from autotune.boundary.boundary import Boundary
from autotune.cluster.backend import ClusterBackend
from autotune.trial.backends.base import TrialRequest
from autotune.trial.lines import read_lines
from autotune.trial.record import TrialRecord
from autotune.workload.resolve import resolve_workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "clean": {},
    "oom_in_collective": {"0": {"do": "collective", "step": 2}, "1": {"do": "oom", "step": 2}},
    "killed": {"0": {"do": "collective", "step": 3}, "1": {"do": "killed", "step": 3}},
    "hang": {"0": {"do": "hang", "step": 3}, "1": {"do": "collective", "step": 3}},
    "deaf": {"0": {"do": "deaf", "step": 2}, "1": {"do": "oom", "step": 2}},
    "orphan": {"0": {"do": "orphan", "step": 1}, "1": {"do": "oom", "step": 2}},
    "port": {"0": {"do": "port"}, "1": {"do": "port"}},
    "teardown": {"1": {"do": "teardown", "step": 99}},
    **{f"again_{number}": {} for number in range(11)},
}


@dataclass
class Faults:
    """A source of one trial a fault; keeps when each began and came back, and who was alive then."""

    folder: Path
    mark: str
    open: list[str] = field(default_factory=lambda: list(FAULTS))
    began: dict[str, float] = field(default_factory=dict)
    records: dict[str, TrialRecord] = field(default_factory=dict)
    left: dict[str, dict[int, str]] = field(default_factory=dict)
    times: int = 0

    @property
    def finished(self) -> bool:
        return not self.open

    def next_request(self) -> TrialRequest | None:
        if not self.open:
            return None
        name = self.open.pop(0)
        folder = self.folder / name
        folder.mkdir()
        (folder / "toy.json").write_text(json.dumps(FAULTS[name]))
        self.began[name] = time.monotonic()
        return TrialRequest(
            number=len(self.began) - 1, boundary=Boundary.selective(()), workload_digest="toy", world_size=2, steps=4,
            limit_bytes=10, folder=folder,
        )  # fmt: skip

    def accept(self, request: TrialRequest, record: TrialRecord) -> None:
        assert request.folder is not None
        name = request.folder.name
        assert name not in self.records  # each result exactly once
        self.records[name] = record
        self.left[name] = {pid: line for pid, line in marked(self.mark).items() if "toy_rank" in line or "time.sleep" in line}

    def progress(self, request: TrialRequest, figures: Mapping[str, Any]) -> None:
        self.times += 1


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    mark = "faults"
    path = os.pathsep.join([str(HERE), str(HERE.parent.parent)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("TOY_MARK", mark)
        patch.delenv("RAY_ADDRESS", raising=False)
        folder = tmp_path_factory.mktemp("faults")
        backend = ClusterBackend(
            resolve_workload("moonlight_tiny", overrides=()), backend="cpu", program="toy_rank", limits=LIMITS
        )
        source = Faults(folder=folder, mark=mark)
        try:
            backend.drive(source, folder)
            yield source
        finally:
            backend.close()


def failure(faults: Faults, name: str) -> tuple[str, int | None, str]:
    found = faults.records[name].failure
    assert found is not None
    return found.failure_class, found.rank, found.stage


def ended_after_s(faults: Faults, name: str) -> float:
    """Seconds between the last line of the rank that failed and the end of the last process."""
    ranks = {int(path.stem): read_lines(path) for path in (faults.folder / name / "ranks").glob("*.jsonl")}
    began = min(line["t"] for lines in ranks.values() for line in lines if line["event"] == "start")
    failed = faults.records[name].failure
    assert failed is not None and failed.rank is not None
    return float(faults.records[name].details["wall_s"]) - (ranks[failed.rank][-1]["t"] - began)


def test_all_trials_came_back_once(faults: Faults) -> None:
    assert list(faults.records) == list(FAULTS) and faults.times > 0
    assert all(not record.details["left_pids"] for record in faults.records.values())


def test_nothing_is_left_alive(faults: Faults) -> None:
    # Zygotes are what runs ``autotune.trial.zygote --program toy_rank`` and stay; ranks are forks of them.
    for name, left in faults.left.items():
        ranks = [line for line in left.values() if "autotune.trial.zygote" not in line]
        zygotes = [line for line in left.values() if "autotune.trial.zygote" in line]
        assert (ranks, len(zygotes)) == ([], 2), name


def test_ranks_run_at_the_niceness_of_who_launched_them(faults: Faults) -> None:
    """As under torchrun: Ray by itself makes its workers nicer by 15, and a busy machine's other work then comes first."""
    lines = [json.loads(line) for path in (faults.folder / "clean" / "ranks").glob("*.jsonl") for line in path.open()]
    found = [line["niceness"] for line in lines if line["event"] == "note"]
    assert found == [os.getpriority(os.PRIO_PROCESS, 0)] * 2


def test_out_of_memory_ends_ranks_that_block_in_a_collective(faults: Faults) -> None:
    assert failure(faults, "oom_in_collective") == ("oom_capacity", 1, "post_optimizer_forward")
    assert faults.records["oom_in_collective"].failure.requested_bytes == 2 * 2**20  # type: ignore[union-attr]
    assert ended_after_s(faults, "oom_in_collective") <= 5.0


def test_a_killed_rank(faults: Faults) -> None:
    assert failure(faults, "killed") == ("rank_killed", 1, "steady(3)")
    assert ended_after_s(faults, "killed") <= 5.0


def test_a_hang_is_seen_by_its_silence(faults: Faults) -> None:
    kind, _, stage = failure(faults, "hang")
    assert (kind, stage) == ("hang", "steady(3)")
    assert faults.records["hang"].details["wall_s"] < LIMITS.wall_s / 3


def test_a_rank_deaf_to_sigterm(faults: Faults) -> None:
    assert failure(faults, "deaf")[:2] == ("oom_capacity", 1)
    assert ended_after_s(faults, "deaf") <= 5.0


def test_an_orphan_in_a_session_of_its_own(faults: Faults) -> None:
    assert failure(faults, "orphan")[:2] == ("oom_capacity", 1)
    assert ended_after_s(faults, "orphan") <= 5.0
    pid = int((faults.folder / "orphan" / "orphan.pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_a_taken_port_is_no_failure(faults: Faults) -> None:
    record = faults.records["port"]
    assert record.completed and record.failure is None
    assert (faults.folder / "port" / "ranks" / "000.attempt1.jsonl").exists()


def test_a_hang_in_teardown_keeps_the_result(faults: Faults) -> None:
    record = faults.records["teardown"]
    assert record.completed and record.failure is None and record.details["teardown_hang"]


def own_time_s(faults: Faults, name: str) -> float:
    """From the first line of any rank to the last."""
    times = [json.loads(line)["t"] for path in (faults.folder / name / "ranks").glob("*.jsonl") for line in path.open()]
    return float(max(times) - min(times))


def test_overhead_of_ten_trials(faults: Faults) -> None:
    """What a trial costs beyond its ranks' own time, from one start to the next; its figure is in docs/cluster.md.

    The bound here is wide: the machine of a test may be busy.
    """
    names = [name for name in FAULTS if name.startswith("again")]
    over = [faults.began[b] - faults.began[a] - own_time_s(faults, a) for a, b in pairwise(names)]
    print("overhead per trial, s:", " ".join(f"{seconds:.2f}" for seconds in over))
    assert sorted(over)[len(over) // 2] < 10.0
