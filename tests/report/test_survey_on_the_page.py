"""A run whose first launch was a survey: its prices and peaks stand in for the ledger's, and it is named as what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from page_samples import ACT, CONTROL, MOE, surveyed_run

from autotune.boundary.boundary import Boundary
from autotune.report import chart_data
from autotune.report.facts import collect
from autotune.report.run_view import RunView, read_run
from autotune.report.text import Scale
from autotune.search.outcome import Recommendation


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    return read_run(surveyed_run(tmp_path / "run"))


def rows_by_series(view: RunView) -> dict[str, list[tuple[str, float, float]]]:
    found: dict[str, list[tuple[str, float, float]]] = {}
    for row in chart_data.memory(view, Scale.of(1e9)).rows:
        found.setdefault(row["series"], []).append((row["setting"], row["x"], row["y"]))
    return found


def test_chart_places_settings_at_the_survey_s_prices(view: RunView) -> None:
    """Prices of the ledger are an H100's: added to step times of a CPU they would place every setting wrongly."""
    shown = rows_by_series(view)
    base = 657.4 - 57.31  # what the fresh launch leaves without its own replay
    assert {(name, round(x - base, 2), y) for name, x, y in shown["predicted"]} == {
        ("[] (control)", 0.0, 79.2221), ("moe_act", 6.54, 78.1112), ("moe", 57.31, 71.8888),
        ("full, uniform, 1 layer", 190.9, 45.6789),
    }  # fmt: skip
    assert [(name, y) for name, _, y in shown["chosen"]] == [("moe", 71.9877)]
    assert {(name, y) for name, _, y in shown["switched"]} == {("moe", 71.9999), ("full, uniform, 1 layer", 45.7012)}


def test_survey_is_no_trial_of_its_base(view: RunView) -> None:
    facts = collect(view)
    trials = next(table for table in facts.tables if table.title == "Trials")
    row = dict(zip(trials.columns, trials.rows[0], strict=True))
    assert row["setting"] == "survey, under full, uniform, 1 layer"
    assert row["step"] == "-"
    assert "1 of 1 guards passed; it ended while it tried moe_act" in row["reason"]
    assert "predicted by the survey, before the fresh launch" in dict(facts.answer)["prediction"]


def test_settings_that_fit_are_the_survey_s(view: RunView) -> None:
    found = next(table for table in collect(view).tables if table.title == "Settings that fit by prediction")
    assert [row[0] for row in found.rows] == ["moe", "full, uniform, 1 layer"]
    assert {CONTROL.key, ACT.key} & {row[0] for row in found.rows} == set()


@pytest.fixture
def before_capture(view: RunView) -> RunView:
    """The survey of a recipe that captures graphs later: the ledger has ``moe`` over the limit from the capture on."""
    assert view.survey is not None and view.plan is not None
    later = {MOE: 75_432_100_000, Boundary.full("uniform", 1): 60_987_600_000}
    assert view.recommendation.mem_target_bytes is not None and later[MOE] > view.recommendation.mem_target_bytes
    rows = {Boundary.from_fields(row.boundary): row for row in view.plan.candidates}
    template = next(iter(rows.values()))
    made = {b: replace(rows.get(b, template), boundary=b.to_fields(), after_capture_bytes=size) for b, size in later.items()}
    plan = replace(view.plan, candidates=tuple({**rows, **made}.values()))
    return replace(view, plan=plan, survey=replace(view.survey, after_capture="not measured"))


def table(view: RunView, title: str) -> list[dict[str, str]]:
    facts = collect(view)
    found = next(table for table in (*facts.tables, *facts.details) if table.title == title)
    return [{"note": found.note, **dict(zip(found.columns, row, strict=True))} for row in found.rows]


def test_peaks_of_eager_steps_alone_are_not_compared_with_the_limit(before_capture: RunView) -> None:
    (fits,) = table(before_capture, "Settings that fit by prediction")
    assert (fits["setting"], fits["after capture"]) == ("full, uniform, 1 layer", "60.988 GB")
    assert "eager steps" in fits["note"] and "predicted by the ledger" in fits["note"]
    surveyed = {row["setting"]: row for row in table(before_capture, "Survey of every setting")}
    assert surveyed["moe"]["after capture"] == "75.432 GB" and surveyed["moe"]["predicted peak"] == "71.889 GB"
    assert "predicted by the ledger" in surveyed["moe"]["note"]


def test_a_survey_before_the_capture_says_so_where_the_ledger_says_nothing(before_capture: RunView) -> None:
    alone = replace(before_capture, plan=None)
    for title in ("Settings that fit by prediction", "Survey of every setting"):
        rows = table(alone, title)
        assert "after the capture of CUDA graphs were not measured" in rows[0]["note"]
        assert {row["after capture"] for row in rows} == {"-"}


def test_without_graphs_nothing_is_said_of_them(view: RunView) -> None:
    for title in ("Settings that fit by prediction", "Survey of every setting"):
        assert not any("capture" in row["note"] for row in table(view, title))


def test_answer_says_how_many_cheaper_settings_are_ruled_out(view: RunView) -> None:
    assert dict(collect(view).answer)["ruled out"] == "cheaper settings: 2; 1 by their trials, 1 as changing nothing"


def test_a_cpu_run_does_not_pass_for_one_on_gpus(view: RunView) -> None:
    facts = collect(view)
    assert "step times are those of a CPU" in dict(facts.answer)["measured on"]
    assert dict(facts.contract)["hardware"].endswith("the trials ran without a GPU")


def test_no_recompute_reads_as_an_answer(view: RunView) -> None:
    answer: Recommendation = replace(view.recommendation, boundary=CONTROL.to_fields(), name=CONTROL.key)
    assert collect(replace(view, recommendation=answer)).headline.endswith(": no recompute is needed")
    answer = replace(answer, boundary=MOE.to_fields(), name=MOE.key)
    assert collect(replace(view, recommendation=answer)).headline.endswith(": recompute moe")


def test_a_lever_that_frees_nothing_at_one_place_says_so(view: RunView) -> None:
    """Graph pools come after the control's peak: leaving them out lowers the floor, not that peak."""
    levers = next(table for table in collect(view).tables if table.title == "Levers outside recompute")
    row = dict(zip(levers.columns, next(row for row in levers.rows if row[0] == "no CUDA graph pools"), strict=True))
    assert row["saves"] == "nothing"
    assert row["lowers the floor by"].endswith(" GB")
    assert not any("0.000" in cell for row in levers.rows for cell in row)
