"""Figures of the accuracy benchmark on predictions made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak
from benchmarks import score
from benchmarks.accuracy import as_json, main
from benchmarks.accuracy_text import render
from benchmarks.rows import Row
from benchmarks.score import Scored, after_offset, deltas, setting_pairs, summarize


def row(name: str, measured: int | None, **changes: object) -> Row:
    fields: dict[str, object] = {
        "id": name, "table": "t", "family": "f", "half": "A", "measured_bytes": measured, "boundary": Boundary.selective([name]),
    }  # fmt: skip
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


def scored(name: str, measured: int, predicted: int | None, **changes: object) -> Scored:
    low, high = (None, None) if predicted is None else (predicted * 99 // 100, predicted * 101 // 100)
    return Scored(row=row(name, measured, **changes), predicted_bytes=predicted, p05_bytes=low, p95_bytes=high)


def prediction() -> Prediction:
    def stage(index: int, first: int, steady: int, after: int) -> StagePeak:
        phases = tuple(
            PhasePeak(iteration=iteration, phase="loss", peak_bytes=peak, terms={})
            for iteration, peak in (("first", first), ("steady", steady), ("after_capture", after))
        )
        peak = max(first, steady, after)
        return StagePeak(stage=index, rank=index, peak_bytes=peak, phase="loss", phases=phases)

    return Prediction(
        peak_bytes=200, peak_p05_bytes=190, peak_p95_bytes=220, phase="loss", stage=0, rank=0, replay_ms=0.0,
        replay_ms_by_label={}, stages=(stage(0, 100, 150, 200), stage(1, 80, 90, 95)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reports", "iterations", "peak", "stage"),
    [
        ("last stage", ("first", "steady", "after_capture"), 95, 1),
        ("first stage", ("first",), 100, 0),
        ("any stage", ("first", "steady"), 150, 0),
        ("any stage", ("first", "steady", "after_capture"), 200, 0),
    ],
)
def test_a_row_is_compared_with_the_rank_and_iterations_it_reports(
    reports: str, iterations: tuple[str, ...], peak: int, stage: int
) -> None:
    found = score._scored(row("x", 100, reports=reports, iterations=iterations), prediction())
    assert (found.predicted_bytes, found.stage) == (peak, stage)
    assert found.p05_bytes is not None
    assert found.p95_bytes is not None
    assert found.p05_bytes < peak < found.p95_bytes


def test_figures() -> None:
    figures = summarize(
        [
            scored("a", 1000, 1005),
            scored("b", 1000, 960),
            scored("c", 1000, 1100),
            scored("d", 1000, None),
            scored("e", 1000, 5000, marks=("doubtful",)),
        ]
    )
    assert (figures.rows, figures.covered, figures.coverage) == (4, 3, 0.75)
    assert figures.mape_percent == pytest.approx((0.5 + 4 + 10) / 3)
    assert figures.bias_percent == pytest.approx((0.5 - 4 + 10) / 3)
    assert figures.within_1_percent == pytest.approx(100 / 3)
    assert figures.within_5_percent == pytest.approx(200 / 3)
    assert figures.max_percent == pytest.approx(10)
    assert figures.inside_interval_percent == pytest.approx(100 / 3)


def test_figures_of_nothing() -> None:
    figures = summarize([])
    assert (figures.rows, figures.mape_percent, figures.coverage) == (0, None, 0.0)


def test_pairs_are_settings_of_one_workload_more_than_50_mb_apart() -> None:
    mb = 1_000_000
    items = [
        scored("none", 1000 * mb, 1000 * mb, group="g"),
        scored("near", 1040 * mb, 900 * mb, group="g"),
        scored("up", 1100 * mb, 1001 * mb, group="g"),
        scored("tie", 900 * mb, 1000 * mb, group="g"),
        scored("elsewhere", 2000 * mb, 1 * mb, group="h"),
    ]
    pairs = {(pair.first, pair.second): pair.ordered for pair in setting_pairs(items)}
    assert pairs == {
        ("none", "up"): True,
        ("none", "tie"): False,
        ("near", "up"): True,
        ("near", "tie"): False,
        ("up", "tie"): True,
    }
    assert [(change.second, change.measured_bytes) for change in deltas(items)] == [
        ("near", 40 * mb),
        ("up", 100 * mb),
        ("tie", -100 * mb),
    ]


def test_first_iteration_peaks_are_not_paired_with_later_ones() -> None:
    items = [
        scored("none", 10**9, 10**9, group="g", iterations=("first",)),
        scored("moe", 2 * 10**9, 3 * 10**9, group="g"),
    ]
    assert setting_pairs(items) == ()
    assert deltas(items) == ()


def test_one_offset_takes_the_common_error_away() -> None:
    items = [scored("none", 1100, 1000, group="t"), scored("act", 1050, 960, group="t"), scored("other", 100, 90)]
    assert after_offset(items) == {"none": pytest.approx(0), "act": pytest.approx(100 * (1060 / 1050 - 1))}


def test_json_and_text_hold_the_contract() -> None:
    items = [scored("none", 40 * 10**9, 41 * 10**9, group="t"), Scored(row=row("lost", 5), reason="not covered: --foo")]
    answer = json.loads(
        json.dumps(as_json(items), default=lambda value: {name: getattr(value, name) for name in value.__slots__})
    )
    assert {"id", "table", "measured_bytes", "predicted_bytes", "phase", "family"} <= set(answer["rows"][0])
    assert answer["rows"][1]["predicted_bytes"] is None
    assert answer["rows"][1]["reason"] == "not covered: --foo"
    assert {"coverage", "mape_percent", "within_5_percent", "pairs_ordered_percent"} <= set(answer["summary"])
    text = render(items)
    assert "40.000" in text
    assert "lost: not covered: --foo" in text
    assert "over 30 GB" in text


def test_bad_file_is_one_line_and_status_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--rows", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 2
    assert result.output.count("\n") == 1
