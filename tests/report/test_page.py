"""The page, Markdown, terminal and JSON of one run agree; the page fetches nothing and escapes everything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from page_samples import measured_run, predicted_run
from test_figures_agree import check_figures, every_number

from autotune.report.chart_data import GROUPS
from autotune.report.facts import Facts
from autotune.report.terminal import print_result
from autotune.report.write import write_outputs

RUNS: dict[str, Callable[[Path], Path]] = {"predicted": predicted_run, "measured": measured_run}


class PageText(HTMLParser):
    """Visible text of a page, and the data of its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.data: dict[str, str] = {}
        self.links: list[str] = []
        self._inside: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.links += [str(named[name]) for name in ("src", "href") if name in named]
        if tag in ("script", "style"):
            self._inside = named.get("id") or tag
        self.text += [str(named["aria-label"])] if "aria-label" in named else []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text.append(data)
        else:
            self.data[self._inside] = self.data.get(self._inside, "") + data


def read_page(path: Path) -> PageText:
    page = PageText()
    page.feed(path.read_text())
    return page


def flat(text: str) -> str:
    """Text without what wrapping, boxes and Markdown add."""
    return re.sub(r"[\s\\|│─┌┐└┘#`-]+", "", text)


@pytest.fixture(params=list(RUNS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return RUNS[request.param](tmp_path)


def tooltips(value: Any) -> list[str]:
    """Every text in the data of the charts."""
    if isinstance(value, dict):
        return [text for item in value.values() for text in tooltips(item)]
    if isinstance(value, list):
        return [text for item in value for text in tooltips(item)]
    return [value] if isinstance(value, str) else []


def records(folder: Path) -> list[float]:
    """Every number of the run's JSON files, and the differences that the outputs state."""
    found = [n for path in folder.rglob("*.json") for n in every_number(json.loads(path.read_text()))]
    answer = json.loads((folder / "recommendation.json").read_text())
    limit, seen = answer["mem_target_bytes"], {row["name"]: row["peak_bytes"] for row in answer["trials"]}
    for timeline in answer["timelines"]:
        for peak in timeline["phases"]:
            found += [sum(peak["terms"].get(term, 0) for term in terms) for terms in GROUPS.values()]
            known = {term for terms in GROUPS.values() for term in terms}
            found.append(sum(nbytes for term, nbytes in peak["terms"].items() if term not in known))
    plan = {row["name"]: row for row in json.loads((folder / "candidates.json").read_text())["candidates"]}
    found += [limit - n for n in list(found) if 0 < n <= 2 * limit]
    return found + [peak - plan[name]["peak_bytes"] for name, peak in seen.items() if name in plan]


def all_texts(facts: Facts) -> list[str]:
    tables = (*facts.tables, *facts.details)
    cells = [row[i] for table in tables for row in table.rows for i in table.used_columns if row[i] != "-"]
    pairs = [text for _, text in (*facts.answer, *facts.contract)]
    return [facts.headline, facts.verdict.partition(": ")[2], *pairs, *cells, *facts.claims, *facts.warnings]


def test_page_and_markdown_show_the_same_texts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view, facts = write_outputs(folder)
    page, markdown = flat(" ".join(read_page(folder / "report.html").text)), flat((folder / "report.md").read_text())
    for text in all_texts(facts):
        assert flat(text) in page, text
        assert flat(text) in markdown, text
    print_result(view, facts)
    terminal = flat(capsys.readouterr().out)
    for text in (facts.headline, *(f"cfg.model.{name} = {literal}" for name, literal in facts.patch)):
        assert flat(text) in terminal
        assert flat(text) in page


def test_no_output_shows_a_figure_that_no_record_holds(folder: Path) -> None:
    write_outputs(folder)
    numbers = records(folder)
    page = read_page(folder / "report.html")
    specs = json.loads(page.data["specs"])
    assert check_figures(" ".join(page.text), numbers, "page") >= 40
    assert check_figures("\n".join(tooltips(specs)), numbers, "charts") >= 40
    assert check_figures((folder / "report.md").read_text(), numbers, "Markdown") >= 40


def test_chart_marks_stand_where_their_texts_say(folder: Path) -> None:
    """A mark's place and the text of its tooltip are one figure."""
    write_outputs(folder)
    specs = json.loads(read_page(folder / "report.html").data["specs"])
    checked = 0
    for name in ("memory", "ranks"):
        for row in specs[name]["data"]["values"]:
            shown = float(re.search(r"(\d+\.\d{3}) GB", row["peak"])[1])  # type: ignore[index]
            assert abs(shown - row["y"]) < 0.0011
            checked += 1
    assert checked > 20
    for name in ("phases-0", "phases-1"):
        totals: dict[str, float] = {}
        for row in specs[name]["data"]["values"]:
            if "to" in row:
                totals[row["phase"]] = max(totals.get(row["phase"], 0.0), row["to"])
                shown = float(re.search(r"(\d+\.\d{3}) GB", row["total"])[1])  # type: ignore[index]
                assert row["to"] <= shown + 0.002
        assert len(totals) >= 10


def test_page_fetches_nothing_and_is_small(folder: Path) -> None:
    write_outputs(folder)
    text = (folder / "report.html").read_text()
    page = read_page(folder / "report.html")
    assert [link for link in page.links if not link.startswith(("#", "data:"))] == []
    assert "default-src 'none'" in text
    assert len(text.encode()) < 1_500_000
    assert str(folder) not in text


def test_names_cannot_become_markup(tmp_path: Path) -> None:
    write_outputs(measured_run(tmp_path))
    text = (tmp_path / "report.html").read_text()
    assert "<script>alert(1)" not in text
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text
    markup = text[text.index("<body>") : text.index('<script type="application/json"')]
    assert "<script" not in markup


def test_stopped_run_has_a_page_without_a_patch(tmp_path: Path) -> None:
    folder = measured_run(tmp_path)
    answer = json.loads((folder / "recommendation.json").read_text())
    answer |= {"boundary": None, "name": None, "peak_bytes": None, "peak_p95_bytes": None, "hot_rank": None, "replay_cost": None,
               "exit_status": 4, "open": ["full/uniform/1"], "step_ms": None, "timelines": answer["timelines"][:1]}  # fmt: skip
    (folder / "recommendation.json").write_text(json.dumps(answer))
    write_outputs(folder)
    page = read_page(folder / "report.html")
    assert "stopped before an answer" in " ".join(page.text)
    assert "Copy patch" not in " ".join(page.text)
    assert set(json.loads(page.data["specs"])) == {"memory", "phases-0"}
