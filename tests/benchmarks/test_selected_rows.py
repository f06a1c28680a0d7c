"""The ledger against a selection of public measured rows: facts with their sources, held to bounds that a lost rule breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks
from autotune.ledger.ledger import Ledger
from benchmarks.rows import Row, load_rows
from benchmarks.score import score_row, summarize

FILE = Path(benchmarks.__file__).parent / "data" / "selected_rows.jsonl"
ROWS = {row.id: row for row in load_rows(FILE)}
RAW = {record["id"]: record for record in map(json.loads, FILE.read_text().splitlines())}
STATES_ONLY = "mlm:gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files:dev_dgx_h100"
FREE_ROUTING = ("moe_mcore_te_ep8",)
"""Experts that choose freely: the last rank's share is not in the arguments."""


@pytest.mark.parametrize("row_id", ROWS)
def test_peak_is_within_its_bound(row_id: str) -> None:
    row = ROWS[row_id]
    scored = score_row(row)
    assert scored.reason is None
    assert scored.error is not None
    bound = 0.002 if row.table == "simumax" else 0.03 if any(name in row_id for name in FREE_ROUTING) else 0.016
    assert abs(scored.error) <= bound


def test_rows_over_30_gb_and_all_together() -> None:
    scored = [score_row(row) for row in ROWS.values()]
    large = summarize(item for item in scored if (item.row.measured_bytes or 0) > 30e9)
    assert large.mape_percent is not None
    assert large.mape_percent <= 0.1
    figures = summarize(scored)
    assert figures.coverage == 1
    assert figures.mape_percent is not None
    assert figures.mape_percent <= 0.7


def after_step(row: Row) -> int:
    assert row.workload is not None
    assert row.boundary is not None
    phases = Ledger(row.workload).predict(row.boundary).stages[-1].phases
    return next(phase.peak_bytes for phase in phases if (phase.iteration, phase.phase) == ("steady", "grad_sync"))


@pytest.mark.parametrize(
    ("row_id", "bound_bytes"),
    [(STATES_ONLY, 2**20), ("mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1_uneven_pipeline:dev_dgx_h100", 3 * 2**20)],
)
def test_what_stays_between_steps_is_right_to_a_few_blocks(row_id: str, bound_bytes: int) -> None:
    assert abs(after_step(ROWS[row_id]) - RAW[row_id]["steady_allocated_bytes"]) <= bound_bytes


def test_every_rank_of_a_pipeline_is_not_needed_for_the_last_stage() -> None:
    row = ROWS["mlm:gpt/gpt3_mcore_te_tp1_pp4_vp1_uneven_pipeline:dev_dgx_h100"]
    assert score_row(row).stage == 3


def test_full_recompute_is_predicted_below_its_control() -> None:
    none = score_row(ROWS[STATES_ONLY])
    full = score_row(ROWS["mlm:gpt/gpt3_mcore_te_tp1_pp1_resume_torch_dist_uniform_full_recompute:dev_dgx_h100"])
    assert none.predicted_bytes is not None
    assert full.predicted_bytes is not None
    assert none.row.measured_bytes is not None
    assert full.row.measured_bytes is not None
    saved = none.predicted_bytes - full.predicted_bytes
    assert saved == pytest.approx(none.row.measured_bytes - full.row.measured_bytes, rel=0.01)
