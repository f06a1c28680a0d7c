"""Several runs on one page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from page_samples import measured_run, predicted_run
from test_figures_agree import check_figures
from test_page import flat, read_page, records, tooltips

from autotune.cli.main import main
from autotune.report.compare import compare_runs, read_runs, run_names


def report(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["report", *arguments])
    return int(left.value.code or 0)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return predicted_run(tmp_path / "a"), measured_run(tmp_path / "b")


def test_runs_stand_side_by_side(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    assert report(*map(str, runs)) == 0
    terminal = flat(capsys.readouterr().out)
    path = runs[0].parent / "comparison.html"
    page = read_page(path)
    compared = compare_runs(read_runs(runs))
    assert compared.names == ("a", "b")
    for table in compared.tables:
        assert table.rows != ()
        for row in table.rows:
            for cell in row:
                assert flat(cell) in flat(" ".join(page.text))
                assert len(cell) > 60 or flat(cell) in terminal  # a longer one is folded
    numbers = [n for run in runs for n in records(run)]
    assert check_figures(" ".join(page.text), numbers, "page") >= 10
    assert check_figures("\n".join(tooltips(json.loads(page.data["specs"]))), numbers, "chart") >= 4


def test_only_what_differs_is_shown_as_different(runs: tuple[Path, Path]) -> None:
    compared = compare_runs(read_runs(runs))
    differing = {row[0] for row in compared.tables[1].rows}
    assert {"steps run", "per-rank peak"} <= differing
    same = {name for name, _ in compared.same}
    assert {"model", "layout", "batch", "precision"} <= same
    assert differing & same == set()


def test_json_holds_every_recommendation(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert report(*map(str, runs), "--format", "json", "--out", str(runs[0].parent / "c.html")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {folder.name: json.loads((folder / "recommendation.json").read_text()) for folder in runs}
    assert (runs[0].parent / "c.html").is_file()


def test_names_are_as_short_as_tells_them_apart(tmp_path: Path) -> None:
    assert run_names([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ("x/run", "y/run")
    assert run_names([tmp_path / "x", tmp_path / "x"]) == ("x (1)", "x (2)")


def test_one_run_takes_no_page_name(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(runs[0]), "--out", "x.html") == 2
    assert "one run's page is report.html in its own folder" in capsys.readouterr().err


def test_a_missing_run_is_one_line(runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(str(runs[0]), str(tmp_path / "none")) == 2
    assert "holds no run" in capsys.readouterr().err
    assert not (tmp_path / "comparison.html").exists()
