"""Cell by cell, page, Markdown, terminal and JSON say the same; one figure out of place in any of them is found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from page_samples import measured_run, predicted_run, surveyed_run
from shown_tables import Tables, disagreements, expected, markdown_tables, page_tables, terminal_tables

from autotune.report.terminal import print_result
from autotune.report.write import write_outputs

RUNS: dict[str, Callable[[Path], Path]] = {"predicted": predicted_run, "measured": measured_run, "surveyed": surveyed_run}
READERS: dict[str, Callable[[str], Tables]] = {
    "Markdown": markdown_tables,
    "page": page_tables,
    "terminal": terminal_tables,
}
IN_THE_TERMINAL = {
    "Certificate", "At risk, launch these first", "Breakpoints", "Levers outside recompute", "Trials",
    "Predicted against measured", "Calibration",
}  # fmt: skip
FIGURE = re.compile(r"[+-]?\d+\.\d+ (?:GB|MB|GiB|MiB|ms|%|x)|[+-]?\d+ %")


def outputs(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("COLUMNS", "600")
    view, facts = write_outputs(folder)
    print_result(view, facts)
    return {
        "Markdown": (folder / "report.md").read_text(),
        "page": (folder / "report.html").read_text(),
        "terminal": capsys.readouterr().out,
    }


def wrong_in(name: str, text: str, folder: Path) -> list[str]:
    wanted = expected(folder)
    if name == "terminal":
        return disagreements(READERS[name](text), {t: rows for t, rows in wanted.items() if t in IN_THE_TERMINAL}, most=8)
    return disagreements(READERS[name](text), wanted)


@pytest.mark.parametrize("run", RUNS)
def test_every_table_is_what_the_records_say(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RUNS[run](tmp_path / "run")
    filled = {title for title, rows in expected(folder).items() if rows}
    assert {"Certificate", "At risk, launch these first", "Breakpoints", "Levers outside recompute"} <= filled
    if run != "predicted":
        assert {"Trials", "Predicted against measured", "Calibration", "Peak of every rank"} <= filled
    assert ("Survey of every setting" in filled) == (run == "surveyed")
    for name, text in outputs(folder, capsys, monkeypatch).items():
        assert wrong_in(name, text, folder) == [], name


@pytest.mark.parametrize("name", READERS)
def test_any_figure_changed_in_one_output_is_found(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every cell with a figure in turn gets another figure of the same run: most checks of plausibility would let that pass."""
    folder = surveyed_run(tmp_path / "run")
    text = outputs(folder, capsys, monkeypatch)[name]
    shown = READERS[name](text)
    wanted = {t: rows for t, rows in expected(folder).items() if name != "terminal" or t in IN_THE_TERMINAL}
    most = 8 if name == "terminal" else None
    changed = 0
    for title in wanted:
        columns, *rows = shown.get(title, [[]])
        for number, row in enumerate(rows):
            for place, (column, cell) in enumerate(zip(columns, row, strict=False)):
                if not FIGURE.search(cell) or column in ("reason", "cost"):
                    continue
                other = "71.988 GB" if cell != "71.988 GB" else "78.222 GB"
                rows[number] = [*row[:place], other, *row[place + 1 :]]
                found = disagreements({**shown, title: [columns, *rows]}, wanted, most=most)
                assert any(line.startswith(f"{title}, row {number}") for line in found), (title, number, column)
                rows[number] = row
                changed += 1
    assert changed >= (40 if name == "terminal" else 60)


@pytest.mark.parametrize("figure", ["peak_bytes", "mem_target_bytes", "step_ms", "hot_rank", "peak_p95_bytes"])
def test_the_answer_follows_its_json(figure: str, tmp_path: Path) -> None:
    """Another figure in the JSON is another text in every output."""
    folder = surveyed_run(tmp_path / "run")
    write_outputs(folder)
    before = {name: (folder / name).read_text() for name in ("report.md", "report.html", "patch.py")}
    answer = json.loads((folder / "recommendation.json").read_text())
    answer[figure] += 3 if figure == "hot_rank" else 12.5 if figure == "step_ms" else 1_234_567_890
    (folder / "recommendation.json").write_text(json.dumps(answer))
    write_outputs(folder)
    for name, text in before.items():
        assert (folder / name).read_text() != text, name
