"""How a rank takes its GPU, and the snapshot of its first out-of-memory: the order of calls and the size that is kept."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.trial import gpu_snapshot, rank
from autotune.trial.lines import LineWriter, read_lines

torch = pytest.importorskip("torch")

Observer = Callable[[int, int, int, int], None]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What was called of CUDA, in order."""
    made: list[tuple[str, Any]] = []
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: made.append(("set_device", device)))
    monkeypatch.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", lambda observe: made.append(("attach", observe)), raising=False
    )
    return made


def observer(calls: list[tuple[str, Any]]) -> Observer:
    found: Observer = next(what for name, what in calls if name == "attach")
    return found


def test_a_rank_is_on_its_own_gpu_before_anything_else(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    """Attaching an observer initialises CUDA: on whatever device is current."""
    rank._take_gpu(tmp_path / "005.oom.pickle", LineWriter(tmp_path / "005.jsonl"))
    assert [name for name, _ in calls] == ["set_device", "attach"] and calls[0][1] == 5


def test_the_first_out_of_memory_is_kept_and_no_other(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {"segments": [1, 2, 3]}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: shown)
    path, lines = tmp_path / "000.oom.pickle", tmp_path / "000.jsonl"
    assert gpu_snapshot.keep_first_out_of_memory(path, LineWriter(lines))
    observer(calls)(0, 2**31, 0, 2**20)
    shown["segments"].append(4)
    observer(calls)(0, 2**32, 0, 2**20)
    assert pickle.loads(path.read_bytes()) == {"segments": [1, 2, 3]}
    (line,) = read_lines(lines)
    assert (line["event"], line["path"], line["requested_bytes"]) == ("memory_snapshot", "000.oom.pickle", 2**31)
    assert (line["snapshot_bytes"], line["device_free_bytes"]) == (path.stat().st_size, 2**20)


def test_a_snapshot_over_the_bound_is_only_counted(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_snapshot, "MOST_BYTES", 1000)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": list(range(2000))})
    path, lines = tmp_path / "000.oom.pickle", tmp_path / "000.jsonl"
    gpu_snapshot.keep_first_out_of_memory(path, LineWriter(lines))
    observer(calls)(0, 2**31, 0, 2**20)
    (line,) = read_lines(lines)
    assert not path.exists() and line["path"] is None and line["snapshot_bytes"] > 1000


def test_a_snapshot_that_cannot_be_kept_hides_no_out_of_memory(
    tmp_path: Path, calls: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an observer raises would be raised in the allocation's place: a full disk for the failure that was to be told."""
    path, lines = tmp_path / "gone" / "000.oom.pickle", tmp_path / "000.jsonl"
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": []})
    gpu_snapshot.keep_first_out_of_memory(path, LineWriter(lines))
    observer(calls)(0, 2**31, 0, 2**20)
    (line,) = read_lines(lines)
    assert (line["event"], line["path"], line["requested_bytes"]) == ("memory_snapshot", None, 2**31)
    assert line["reason"].startswith("FileNotFoundError")


def test_a_torch_without_the_observer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
    assert not gpu_snapshot.keep_first_out_of_memory(tmp_path / "x", LineWriter(tmp_path / "000.jsonl"))
