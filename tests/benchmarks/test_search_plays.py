"""The generator of truths and the plays against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.trial.backends.tables import load_table
from benchmarks.generator import Machine
from benchmarks.search import Truth, main, play


@pytest.mark.parametrize("seed", range(12))
def test_drawn_tables_are_tables(seed: int, tmp_path: Path) -> None:
    table = Machine(seed).table()
    assert json.dumps(table) == json.dumps(Machine(seed).table())
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    read = load_table(str(path))
    assert read.complete and len(read.runs) == len(table["rows"]) and len(read.mem_targets_bytes) == 3
    truth = Truth(table)
    for boundary, runs in read.runs.items():
        assert all(run.completed and run.ranks for run in runs)
        hottest = max(rank.allocated_peak_bytes for run in runs for rank in run.ranks.values())
        assert hottest == pytest.approx(truth.peak_bytes(boundary), rel=0.03)


def test_a_launch_over_the_limit_is_out_of_memory_and_one_within_is_the_recorded_run() -> None:
    truth = Truth(Machine(4).table())
    boundary = next(iter(truth.rows))
    peak = max(r.allocated_peak_bytes for r in truth.recorded.runs[boundary][0].ranks.values())
    within = truth.launch(boundary, number=0, run_index=0, limit_bytes=peak * 2, seed=0)
    assert within.completed and within.step_ms == truth.recorded.runs[boundary][0].step_ms
    over = truth.launch(boundary, number=0, run_index=0, limit_bytes=peak - 1, seed=0)
    assert not over.completed and over.failure is not None and over.step_ms == ()
    assert max(r.allocated_peak_bytes for r in over.ranks.values()) <= peak - 1


def test_on_one_table_the_planner_finds_in_few_launches_what_the_first_pass_in_order_does_not() -> None:
    table = Machine(1).table()
    limit = table["mem_targets_bytes"][1]
    planner, narrow = (play(Truth(table), limit, 0, name) for name in ("planner", "narrow_first"))
    assert planner.found and not planner.false_pass and planner.launches <= 8 < narrow.launches
    assert narrow.regret_percent_of_step is not None and narrow.regret_percent_of_step > 1
    for p in (planner, narrow):
        assert p.gpu_hours == pytest.approx(p.launches * 16 * 4 / 60, abs=0.001)


def test_the_command_prints_plays_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plays", "2", "--samplers", "narrow_first", "--format", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert len(out["plays"]) == 2 and {"table", "limit_bytes", "launches", "false_pass", "certificate_right"} <= set(
        out["plays"][0]
    )
    assert out["summary"][0]["sampler"] == "narrow_first"
