"""Markdown, terminal, patch and JSON never disagree on a figure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import measured_recommendation, measured_trial, sample_recommendation

from autotune.report.facts import Facts
from autotune.report.table import Table
from autotune.report.terminal import print_result
from autotune.report.write import write_outputs

SIZE = re.compile(r"(\d+\.\d{3}) (GB|GiB|MB|MiB)\b")
SCALE = {"GB": 1e9, "GiB": 2.0**30, "MB": 1e6, "MiB": 2.0**20}
TIME = re.compile(r"([+-]?\d+\.\d) ms\b")


def every_number(value: Any) -> list[float]:
    """All numbers anywhere in a JSON value, those inside its texts too."""
    if isinstance(value, dict):
        return [number for item in value.values() for number in every_number(item)]
    if isinstance(value, list):
        return [number for item in value for number in every_number(item)]
    if isinstance(value, str):
        return [float(found) * SCALE[unit] for found, unit in SIZE.findall(value)]
    return [] if isinstance(value, bool) or value is None else [float(value)]


def check_figures(text: str, numbers: list[float], source: str) -> int:
    """Every size and time in the text is one of the numbers, to the digits shown; how many there were."""
    sizes = [(float(found) * SCALE[unit], 0.0006 * SCALE[unit]) for found, unit in SIZE.findall(text)]
    times = [(float(found), 0.051) for found in TIME.findall(text)]
    sides = [*numbers, *(-number for number in numbers if number < 0)]  # a size is read without its sign
    for figure, slack in [*sizes, *times]:
        assert any(abs(figure - number) <= slack for number in sides), f"{figure} in {source} is not in the JSON"
    return len(sizes) + len(times)


@pytest.fixture(params=["predicted", "measured"])
def run_folder(request: pytest.FixtureRequest, write_run: Callable[..., Path]) -> Path:
    if request.param == "predicted":
        return write_run(sample_recommendation())
    return write_run(measured_recommendation(), measured_trial())


def derived(facts: dict[str, Any]) -> list[float]:
    """Differences that an output states: the distance of a peak to the limit."""
    target = facts["mem_target_bytes"]
    return [abs(target - facts[name]) for name in ("peak_bytes", "peak_p95_bytes") if facts[name] is not None]


def test_no_output_shows_a_figure_that_the_records_do_not_hold(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view, facts = write_outputs(run_folder)
    print_result(view, facts)
    terminal = capsys.readouterr().out
    recommendation = json.loads((run_folder / "recommendation.json").read_text())
    numbers = every_number(recommendation) + derived(recommendation)
    numbers += [n for path in run_folder.glob("trials/*/record.json") for n in every_number(json.loads(path.read_text()))]
    for source in ("report.md", "patch.py"):
        assert check_figures((run_folder / source).read_text(), numbers, source) >= 5
    assert check_figures(terminal, numbers, "terminal") >= 5


def flat(text: str) -> str:
    """Text without what wrapping, boxes and Markdown add."""
    return re.sub(r"[\s\\|│─┌┐└┘#`-]+", "", text)


def texts(facts: Facts) -> list[str]:
    cells = [cell for table in facts.tables for row in table.rows for cell in row if cell != "-"]
    return [facts.headline, facts.verdict, *(text for _, text in facts.answer), *cells, *facts.claims, *facts.warnings]


def test_markdown_and_terminal_show_the_same_texts(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # nothing is folded inside a cell
    view, facts = write_outputs(run_folder)
    print_result(view, facts)
    terminal, markdown = flat(capsys.readouterr().out), flat((run_folder / "report.md").read_text())
    for text in texts(facts):
        assert flat(text) in markdown, text
        assert flat(text) in terminal, text


def test_every_figure_has_its_kind(run_folder: Path) -> None:
    _, facts = write_outputs(run_folder)
    kinds = ("measured", "predicted", "replayed", "switched", "fresh launches")
    for name, text in facts.answer:
        if name not in ("limit", "open", "ruled out"):  # counts of settings, no figures
            assert any(kind in text for kind in kinds), f"{name}: {text}"


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_terminal_keeps_its_width(
    columns: str, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    print_result(*write_outputs(write_run(sample_recommendation())))
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= int(columns)
    assert "\x1b" not in output
    assert flat('cfg.model.recompute_modules = ["moe"]') in flat(output)


def test_long_tables_end_in_the_report(write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    sample = sample_recommendation()
    folder = write_run(replace(sample, certificate=sample.certificate * 20))
    print_result(*write_outputs(folder))
    assert "32 more in" in capsys.readouterr().out
    assert (folder / "report.md").read_text().count("| mlp |") == 20


@pytest.mark.parametrize(
    ("status", "headline"),
    [
        (3, "sample under 75.000 GB (69.849 GiB): no recompute setting passes"),
        (4, "sample under 75.000 GB (69.849 GiB): stopped before an answer, open settings: 1"),
    ],
)
def test_no_answer_says_so_everywhere(
    status: int, headline: str, write_run: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(
        replace(
            sample_recommendation(), boundary=None, name=None, peak_bytes=None, peak_p95_bytes=None, hot_rank=None,
            replay_cost=None, exit_status=status, open=("full/uniform/1",) if status == 4 else (),
        )
    )  # fmt: skip
    print_result(*write_outputs(folder))
    assert flat(headline) in flat(capsys.readouterr().out)
    assert flat(headline) in flat((folder / "report.md").read_text())


def test_unused_columns_are_left_out_and_empty_tables_too() -> None:
    table = Table(title="t", note="n", columns=("a", "b"), rows=(("1", "-"), ("2", "")))
    assert table.used_columns == (0,)
