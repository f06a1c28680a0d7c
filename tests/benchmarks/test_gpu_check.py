"""The check of one GPU: every line of it but the CUDA calls, on a CPU; and how it reads a CUDA allocator's counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.gpu_check import main
from benchmarks.gpu_check_table import read_results, table
from benchmarks.gpu_rank import ScratchPeaks


class Allocator:
    """Counters as ``torch._C._cuda_memoryStats`` has them."""

    def __init__(self) -> None:
        self.now = self.peak = self.reserved = self.reserved_peak = 0

    def take(self, size: int) -> None:
        self.now += size
        self.peak = max(self.peak, self.now)
        self.reserved = max(self.reserved, self.now)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def free(self, size: int) -> None:
        self.now -= size

    def stats(self, device: int) -> dict[str, Any]:
        assert device == 0
        return {
            "allocated_bytes": {"all": {"current": self.now, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved_peak}},
        }

    def reset(self, device: int) -> None:
        self.peak, self.reserved_peak = self.now, self.reserved


def peaks(scratches: ScratchPeaks) -> tuple[int, int]:
    told = scratches.stats(0)
    return told["allocated_bytes"]["all"]["peak"], told["reserved_bytes"]["all"]["peak"]


def test_what_a_scratch_frees_is_in_no_allocated_peak() -> None:
    allocator = Allocator()
    scratches = ScratchPeaks(allocator.stats, allocator.reset, lambda: 0)
    allocator.take(100)
    allocator.free(60)  # a peak of 100 before it
    with scratches.scratch():
        allocator.take(500)
        with scratches.scratch():
            allocator.take(50)
            allocator.free(50)
        allocator.free(495)  # 5 stay
    assert peaks(scratches) == (100, 590)  # what was reserved for the scratch stays reserved
    allocator.take(70)
    assert peaks(scratches)[0] == 115
    scratches.reset(0)
    assert peaks(scratches)[0] == 115
    allocator.free(100)
    scratches.reset(0)
    assert peaks(scratches)[0] == 15


def test_a_scratch_before_cuda_is_initialised_asks_nothing() -> None:
    def never(device: int) -> Any:
        raise AssertionError("asked")

    with ScratchPeaks(never, never, lambda: None).scratch():
        pass


def test_no_gpu_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(main, ["--device", "cuda", "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and "--device='cuda': nvidia-smi shows no GPU here" in done.output


def test_what_the_time_does_not_reach_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--device", "cpu", "--out", str(tmp_path), "--minutes", "0"])
    assert done.exit_code == 0, done.output
    assert "- not reached: survey (the time was over)" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_cpu(tmp_path: Path) -> None:
    """Real launches: labels against the ledger, an out-of-memory, and the same setting after it."""
    options = ["--part", "machine", "--part", "out_of_memory", "--part", "labels", "--recipe", "llama_tiny"]
    done = CliRunner().invoke(main, ["--device", "cpu", "--out", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    lines = read_results(tmp_path / "results.jsonl")
    assert not [line for line in lines if line["part"] in ("failed", "not_reached")]
    measured = {line["boundary"]: line for line in lines if line["part"] == "label"}
    assert {"[]", "full/uniform/1"} < set(measured) and len(measured) >= 5
    assert measured["full/uniform/1"]["peak_bytes"] < measured["[]"]["peak_bytes"]
    assert all(abs(line["ledger_bytes"] / line["peak_bytes"] - 1) < 0.02 for line in measured.values())
    assert all(line["loss"] == measured["[]"]["loss"] for line in measured.values())
    (ended,) = [line for line in lines if line["part"] == "out_of_memory"]
    assert ended["failure_class"].startswith("oom_") and ended["requested_bytes"] > 0
    (after,) = [line for line in lines if line["part"] == "after_out_of_memory"]
    assert after["peak_after_bytes"] == after["peak_before_bytes"] > ended["capacity_bytes"]
    text = table(lines, json.loads(json.dumps(lines)))
    assert "| llama_tiny | [] |" in text and "+0 B" in text  # compared with itself
