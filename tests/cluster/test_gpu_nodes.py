"""What the gpu backend does on a node before it touches a GPU: memory that has to come back, variables, Bridge's revision.

A stand-in for ``nvidia-smi``, a real program on the path, tells what a file says.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.cluster import gpu_memory
from autotune.cluster.backend import ClusterBackend, refuse_other_bridge
from autotune.cluster.drive import _left_behind
from autotune.cluster.gpu_memory import UNKNOWN_PID, SlotGpus
from autotune.cluster.gpus import read_gpus
from autotune.cluster.group import Place
from autotune.cluster.ranks import NO_ANSWER, SlotRanks
from autotune.errors import RequestError
from autotune.trial.allocator_setting import after_fragmentation, is_expandable, lacking
from autotune.trial.assemble import Ending, assemble
from autotune.trial.backends.base import TrialRequest
from autotune.trial.lines import LineWriter, read_lines
from autotune.trial.spec import TrialSpec
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

NVIDIA_SMI = """#!/bin/sh
case "$1" in
  *compute-apps*) cat "{folder}/apps" ;;
  *) cat "{folder}/gpus" ;;
esac
"""
MIB = 2**20


class Node:
    """Two GPUs whose used memory is what a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set(4, 4)
        (folder / "apps").write_text("")

    def set(self, first_mib: int | None, second_mib: int) -> None:
        rows = [f"1, GPU-b, NVIDIA H100 80GB HBM3, 81559, {second_mib}, 550.54, 1980, 0x0000000000000001\n"]
        if first_mib is not None:
            rows.insert(0, f"0, GPU-a, NVIDIA H100 80GB HBM3, 81559, {first_mib}, 550.54, 1755, 0x0000000000000004\n")
        part = self.folder / "gpus.part"
        part.write_text("".join(rows))
        part.rename(self.folder / "gpus")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(NVIDIA_SMI.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return Node(tmp_path)


OLDER_NVIDIA_SMI = """#!/bin/sh
case "$1" in
  *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
  *) cat "{folder}/gpus" ;;
esac
"""


def test_a_driver_from_before_the_reasons_had_their_new_name(node: Node) -> None:
    """R535 renamed the field; an older driver refuses the whole question, and no GPU would be seen to give its memory back."""
    (node.folder / "bin" / "nvidia-smi").write_text(OLDER_NVIDIA_SMI.format(folder=node.folder))
    node.set(100, 4)
    assert [(gpu.index, gpu.used_bytes, gpu.throttled) for gpu in read_gpus()] == [
        (0, 100 * MIB, "0x0000000000000004"),
        (1, 4 * MIB, "0x0000000000000001"),
    ]


def later(seconds: float, call: Callable[[], None]) -> None:
    threading.Timer(seconds, call).start()


def told(path: Path) -> list[tuple[str, list[int]]]:
    return [(line["when"], [gpu["used_bytes"] // MIB for gpu in line["gpus"]]) for line in read_lines(path)]


def test_memory_that_comes_back_is_waited_for(node: Node, tmp_path: Path) -> None:
    gpus, path = SlotGpus(["0"], patience_s=20.0), tmp_path / "000.jsonl"
    gpus.before(path)
    node.set(70000, 4)
    later(1.0, lambda: node.set(30, 4))
    began = time.monotonic()
    assert gpus.after(path) == []
    assert 0.5 < time.monotonic() - began < 15.0
    assert told(path) == [("before", [4]), ("after", [30])]


def test_memory_that_stays_names_its_processes(node: Node, tmp_path: Path) -> None:
    gpus, path = SlotGpus(["GPU-a"], patience_s=0.5), tmp_path / "000.jsonl"
    gpus.before(path)
    node.set(70000, 70000)
    (node.folder / "apps").write_text("GPU-a, 4711\nGPU-b, 4712\nGPU-a, 4713\n")
    assert gpus.after(path) == [4711, 4713]  # not those of the slot beside it
    (node.folder / "apps").write_text("")
    assert gpus.after(path) == [UNKNOWN_PID]
    assert "pids 4711, 4713" in _left_behind(3, [4711, 4713]) and "--resume" in _left_behind(3, [4711])
    assert "no process that holds it can be seen" in _left_behind(3, [UNKNOWN_PID])


def test_a_gpu_that_is_not_told_any_more_is_not_back(node: Node, tmp_path: Path) -> None:
    gpus, path = SlotGpus(["0"], patience_s=0.3), tmp_path / "000.jsonl"
    gpus.before(path)
    node.set(None, 4)
    assert gpus.after(path) == [UNKNOWN_PID]


def test_without_a_driver_nothing_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "read_gpus", lambda: ())
    gpus, path = SlotGpus(["0"], patience_s=0.3), tmp_path / "000.jsonl"
    gpus.before(path)
    assert gpus.after(path) == []


def test_the_record_tells_what_was_in_use_before_during_and_after(node: Node, tmp_path: Path) -> None:
    spec = TrialSpec(
        number=0, workload=recipe(), boundary=Boundary.selective(()), world_size=1, steps=1, backend="gpu", folder=str(tmp_path)
    )
    gpus, path = SlotGpus(["0"]), spec.rank_file(0)
    gpus.before(path)
    lines = LineWriter(path)
    lines.write("start", host="n1")
    lines.write("built", phases={"build": 10}, reserved={"build": 20}, allocated_bytes=10)
    step: dict[str, Any] = dict(step=1, step_ms=1.0, host_ms=1.0, loss=1.0, grad_norm=1.0, skipped=False, nan=False)
    lines.write("iteration", **step, phases={"forward": 30}, reserved={"forward": 40}, device_used_bytes=900 * MIB)
    lines.write("end", completed=True, steps=1)
    node.set(8, 4)
    assert gpus.after(path) == []
    record = assemble(spec, Ending(statuses={0: 0}), {0: read_lines(path)})
    assert record.completed and record.ranks[0].allocated_peak_bytes == 30
    assert record.details["devices"] == {
        "0": {
            "used_before_bytes": 4 * MIB,
            "used_during_bytes": 900 * MIB,
            "used_after_bytes": 8 * MIB,
            "clock_mhz": [1755],
            "throttled": ["0x0000000000000004"],
        }
    }


def test_a_look_at_the_gpu_after_the_end_does_not_move_the_first_death(tmp_path: Path) -> None:
    """Rank 1 wrote last and died first: what its slot wrote later of the GPU is no word of the rank."""
    spec = TrialSpec(
        number=0, workload=recipe(), boundary=Boundary.selective(()), world_size=2, steps=1, backend="gpu", folder=str(tmp_path)
    )
    phase = {"event": "phase", "phase": "forward", "step": 1, "microbatch": 1}
    after = {"event": "device", "when": "after", "gpus": []}
    lines = {0: [{**phase, "t": 20.0}, {**after, "t": 21.0}], 1: [{**phase, "t": 10.0}, {**after, "t": 30.0}]}
    failure = assemble(spec, Ending(statuses={0: -9, 1: -9}), lines).failure
    assert failure is not None and (failure.failure_class, failure.rank) == ("rank_killed", 1)


def recipe(**variables: str) -> Workload:
    return replace(resolve_workload("moonlight_tiny", overrides=()), env_vars=variables)


def graphs(workload: Workload) -> Workload:
    return replace(workload, features=replace(workload.features, cuda_graph_impl="transformer_engine"))


def test_expandable_segments_need_their_companion_under_graphs() -> None:
    expandable = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments:True"}
    assert is_expandable(expandable) and is_expandable({"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    assert lacking(graphs(recipe(**expandable))) == {"NCCL_GRAPH_REGISTER": "0"}
    assert lacking(graphs(recipe(**expandable, NCCL_GRAPH_REGISTER="1"))) == {"NCCL_GRAPH_REGISTER": "0"}
    assert lacking(graphs(recipe(**expandable, NCCL_GRAPH_REGISTER="0"))) == {}
    assert lacking(recipe(**expandable)) == {} and lacking(graphs(recipe())) == {}


def test_every_trial_has_what_is_lacking_and_a_repeat_the_allocator_setting_too() -> None:
    workload = graphs(recipe(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", NCCL_NVLS_ENABLE="0"))
    backend = ClusterBackend(workload, backend="gpu")

    def variables(**changes: Any) -> dict[str, str]:
        asked = TrialRequest(
            number=0, boundary=Boundary.selective(()), workload_digest="", world_size=2, folder=Path("t"), **changes
        )
        return backend.spec(asked).variables

    assert variables() == {**workload.env_vars, "NCCL_GRAPH_REGISTER": "0"}
    assert is_expandable(variables(repeat_reason="allocator"))
    assert after_fragmentation(recipe(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")) == {
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True",
        "NCCL_GRAPH_REGISTER": "0",
    }


def test_a_gpu_trial_takes_bridge_and_nothing_else() -> None:
    asked = TrialRequest(number=0, boundary=Boundary.selective(()), workload_digest="", world_size=2, folder=Path("t"))
    assert ClusterBackend(recipe(), backend="gpu").spec(asked).loop == "bridge"


def test_a_snapshot_of_another_bridge_is_refused() -> None:
    snapshot = resolve_workload("nemotron3nano", overrides=())
    workload = replace(snapshot, source=replace(snapshot.source, kind="catalog", revision="0.6.2"))
    refuse_other_bridge(workload, {"0.6.2", "0.6.2+600d069b", None})
    with pytest.raises(RequestError, match=r"are those of Bridge 0\.6\.2, and a node would train those of Bridge 0\.7"):
        refuse_other_bridge(workload, {"0.6.2", "0.7.0"})
    refuse_other_bridge(replace(workload, source=replace(workload.source, kind="megatron_args")), {"0.7.0"})


def test_a_slot_that_does_not_say_how_its_trial_ended_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that hangs keeps a slot from its answer, and the next trial would measure what the last one left."""
    place = Place(node=0, local_rank=0, local_world_size=1, address="127.0.0.1", devices="0")
    answers: dict[str, list[int]] = {"a": [], "b": [4711]}

    class Slot:
        def __init__(self, name: str) -> None:
            self.end = SimpleNamespace(remote=lambda: name)

    ranks = SlotRanks([Slot("a"), Slot("b"), Slot("late")], [place] * 3)
    waited: list[float] = []

    def wait(calls: list[str], *, num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        waited.append(timeout)
        return [call for call in calls if call in answers], [call for call in calls if call not in answers]

    monkeypatch.setattr(ranks, "_ray", SimpleNamespace(wait=wait, get=answers.get, exceptions=ranks._ray.exceptions))
    left = ranks.end()
    assert sorted(left) == [NO_ANSWER, 4711]
    assert "has not said whether the processes of trial 3 are gone" in _left_behind(3, left)
    assert waited[0] > gpu_memory.PATIENCE_S + 20  # a slot that waits for its memory is not late
