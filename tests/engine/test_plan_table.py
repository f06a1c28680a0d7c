"""The table that ``plan`` prints is the one that a run keeps, and is quickly made."""

from __future__ import annotations

import pytest

from autotune.engine.plan import plan, plan_of
from autotune.engine.prepare import prepare
from autotune.engine.request import Request
from autotune.ledger.prediction import AFTER_CAPTURE
from autotune.records import dump_json


@pytest.mark.parametrize("recipe", ["nemotron3nano", "kimi_k2"])
def test_a_plan_without_details_shows_what_a_run_predicts(recipe: str) -> None:
    request = Request(recipe=recipe, mem_target_bytes=75 * 10**9)
    whole = prepare(request)
    assert dump_json(plan(request)) == dump_json(plan_of(whole, request.mem_target_bytes))
    light = prepare(request, detailed=False)
    assert all(len(stage.phases) <= 1 for c in light.candidates if c.prediction for stage in c.prediction.stages)
    assert any(len(stage.phases) > 1 for c in whole.candidates if c.prediction for stage in c.prediction.stages)


def test_peaks_after_the_capture_are_those_of_its_phases() -> None:
    """Where a survey ends before the capture, a report has to know them."""
    whole = prepare(Request(recipe="nemotron3nano"))
    rows = {row.name: row for row in plan(Request(recipe="nemotron3nano")).candidates}
    seen = 0
    for candidate in whole.candidates:
        if candidate.prediction is not None:
            phases = [p for s in candidate.prediction.stages for p in s.phases if p.iteration == AFTER_CAPTURE]
            assert rows[candidate.boundary.key].after_capture_bytes == max(p.peak_bytes for p in phases)
            seen += 1
    assert seen > 10
    assert {row.after_capture_bytes for row in plan(Request(recipe="llama_tiny")).candidates} == {None}


@pytest.mark.parametrize("recipe", ["nemotron3nano", "moonlight16b", "deepseek_v3"])
def test_no_candidate_is_predicted_below_the_floor(recipe: str) -> None:
    """Full recompute is not the lowest everywhere: on Moonlight what it keeps between steps is more than moe_act leaves."""
    result = plan(Request(recipe=recipe))
    lowest = min(row.peak_bytes for row in result.candidates if row.status == "distinct" and row.peak_bytes is not None)
    assert result.wall.floor_bytes <= lowest


def test_a_plan_prices_the_kernels_that_a_run_would_launch() -> None:
    """moonlight_tiny without recompute measures 59.2 MB on a CPU; with Transformer Engine's buffers it would be 5 times that."""
    peaks = {}
    for backend in ("auto", "cpu", "gpu"):
        result = plan(Request(recipe="moonlight_tiny", backend=backend))
        peaks[backend] = next(row.peak_bytes for row in result.candidates if row.name == "[]")
        assert result.kernels == ("te" if backend == "gpu" else "stand_in")
    assert peaks["auto"] == peaks["cpu"]
    assert peaks["auto"] == pytest.approx(59.2e6, rel=0.02)
    assert plan(Request(recipe="nemotron3nano")).kernels == "te"
