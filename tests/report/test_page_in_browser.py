"""The page in a real browser: what it shows, both themes, 400 px, paper, keyboard, accessibility, and how soon."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest
from page_samples import HOT, measured_run, predicted_run, surveyed_run
from shown_tables import disagreements, expected, markdown_tables, page_tables

from autotune.report.write import write_outputs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
PAINTED = "performance.getEntriesByName('first-contentful-paint')"
DRAWN = "[...document.querySelectorAll('[data-chart]')].every(place => place.dataset.drawn)"


@dataclass
class Opened:
    """A page that was opened, and everything that went wrong on it."""

    page: Page
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no chromium here")
        pytest.skip("no chromium here")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run directories with their pages."""
    made = {
        "predicted": predicted_run(tmp_path_factory.mktemp("predicted")),
        "measured": measured_run(tmp_path_factory.mktemp("measured")),
        "surveyed": surveyed_run(tmp_path_factory.mktemp("surveyed")),
        "large": measured_run(tmp_path_factory.mktemp("large"), world=1024, trials=80),
    }
    for folder in made.values():
        write_outputs(folder)
    return made


def wait_until(page: Page, condition: str, *, seconds: float = 30.0) -> None:
    """Not `wait_for_function`: from its second look on it evaluates inside the page, which the page's own policy forbids."""
    ends = monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert monotonic() < ends, f"not after {seconds:g} s: {condition}"
        page.wait_for_timeout(20)


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Opened]]:
    contexts = []

    def open_(path: Path, *, width: int = 1200, theme: str = "light", checker: bool = False) -> Opened:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme, bypass_csp=checker)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        opened = Opened(page=page, complaints=[], requests=[])
        page.on("console", lambda message: opened.complaints.append(message.text))
        page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        page.on("request", lambda request: opened.requests.append(request.url))
        page.goto(path.as_uri())
        wait_until(page, DRAWN, seconds=120)
        return opened

    yield open_
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("width", "theme"), [(1200, "light"), (1200, "dark"), (400, "light"), (400, "dark")])
@pytest.mark.parametrize("name", ["predicted", "measured", "surveyed"])
def test_page_is_whole(name: str, width: int, theme: str, runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    path = runs[name] / "report.html"
    opened = open_page(path, width=width, theme=theme)
    page = opened.page
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("[data-chart] svg").count() == page.locator("[data-chart]").count() >= 4
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (dark == "rgb(255, 255, 255)") == (theme == "light")
    # Text of the charts takes the theme's colour, and no label is cut off at either side.
    assert page.evaluate(
        "[...document.querySelectorAll('[data-chart] svg')].every(svg => [...svg.querySelectorAll('text')]"
        ".every(text => text.getBoundingClientRect().left >= svg.getBoundingClientRect().left - 1"
        " && text.getBoundingClientRect().right <= svg.getBoundingClientRect().right + 1))"
    )
    ink = page.evaluate("getComputedStyle(document.querySelector('#chart-memory .role-axis-label text')).fill")
    assert ink == page.evaluate("getComputedStyle(document.querySelector('dt')).color")


@pytest.mark.parametrize("name", ["predicted", "measured"])
def test_chosen_setting_and_hot_rank_are_read_off_the_page(
    name: str, runs: dict[str, Path], open_page: Callable[..., Opened]
) -> None:
    page = open_page(runs[name] / "report.html").page
    answer = json.loads((runs[name] / "recommendation.json").read_text())
    patch = page.locator("#patch").inner_text()
    assert re.search(r"recompute_modules = (.*)", patch)[1] == json.dumps(answer["boundary"]["recompute_modules"])  # type: ignore[index]
    assert page.locator("#chart-memory").get_attribute("aria-label").count("The chosen setting is moe") == 1  # type: ignore[union-attr]
    assert page.locator("#chart-memory svg text", has_text="moe").count() == 1
    row = page.locator("tr", has_text=re.compile("hot rank|heaviest")).first
    cells = row.locator("th, td").all_inner_texts()
    assert str(answer["hot_rank"]) in cells
    assert f"{answer['peak_bytes'] / 1e9:.3f} GB" in cells
    assert f"rank is {answer['hot_rank']}:" in str(page.locator("#chart-ranks").get_attribute("aria-label"))


def test_hot_rank_is_the_marked_bar(runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    page = open_page(runs["measured"] / "report.html").page
    fills = page.evaluate("[...document.querySelectorAll('#chart-ranks .mark-rect path')].map(bar => bar.getAttribute('fill'))")
    assert len(fills) == 16
    assert [rank for rank, fill in enumerate(fills) if fill == "var(--chosen)"] == [HOT]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["predicted", "measured"])
def test_accessibility_checker_finds_nothing_serious(
    name: str, theme: str, runs: dict[str, Path], open_page: Callable[..., Opened]
) -> None:
    page = open_page(runs[name] / "report.html", theme=theme, checker=True).page
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text() + ";0")
    found: dict[str, Any] = page.evaluate("axe.run()")
    assert [(v["id"], v["nodes"][0]["html"][:120]) for v in found["violations"] if v["impact"] in ("serious", "critical")] == []
    assert len(found["passes"]) > 15


def test_what_comes_late_is_waited_for_under_the_policy(runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    page = open_page(runs["predicted"] / "report.html").page
    page.evaluate("void setTimeout(() => { window.late = true }, 300)")
    wait_until(page, "window.late")
    page.evaluate("void setTimeout(() => { window.later = true }, 300)")
    with pytest.raises(Exception, match="unsafe-eval"):
        page.wait_for_function("window.later")


def test_keyboard_reaches_everything(runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    page = open_page(runs["measured"] / "report.html").page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the answer"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.copy") == "patch"
    page.keyboard.press("Enter")
    wait_until(page, "document.getElementById('said').textContent !== ''")
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        here = page.evaluate("document.activeElement.tagName + ' ' + (document.activeElement.getAttribute('aria-label') || '')")
        if here.startswith("BODY"):
            break
        seen.append(here)
    assert "SUMMARY " in seen
    assert any("Certificate, table" in place for place in seen)


def test_copy_puts_the_patch_on_the_clipboard(browser: Browser, runs: dict[str, Path]) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto((runs["predicted"] / "report.html").as_uri())
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text }")
    page.locator("[data-copy=patch]").click()
    wait_until(page, "window.copied")
    assert page.evaluate("window.copied").splitlines() == page.locator("#patch").inner_text().strip().splitlines()
    context.close()


@pytest.mark.parametrize("name", ["predicted", "measured", "surveyed", "large"])
def test_prints_on_two_pages(name: str, runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    pdf = open_page(runs[name] / "report.html").page.pdf(prefer_css_page_size=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 2


def test_large_run_is_small_and_paints_soon(runs: dict[str, Path], open_page: Callable[..., Opened]) -> None:
    path = runs["large"] / "report.html"
    assert path.stat().st_size <= 3_000_000
    times = []
    for _ in range(5):
        opened = open_page(path)
        wait_until(opened.page, f"{PAINTED}.length")  # The entry comes after the paint.
        times.append(opened.page.evaluate(f"{PAINTED}[0].startTime"))
        assert opened.complaints == []
    assert median(times) <= 1000
    assert opened.page.locator("#chart-ranks .mark-rect path").count() == 1024


def test_measured_run_on_this_machine(tmp_path: Path, open_page: Callable[..., Opened]) -> None:
    """Real training steps, and their page."""
    pytest.importorskip("torch")
    from autotune.engine.request import Request
    from autotune.engine.run import run

    answer = run(Request(recipe="llama_tiny", mem_target_bytes=60_000_000, out=tmp_path / "run"))
    _, facts = write_outputs(tmp_path / "run")
    opened = open_page(tmp_path / "run" / "report.html")
    assert opened.complaints == []
    wanted = expected(tmp_path / "run")
    assert wanted["Survey of every setting"] and wanted["Calibration"] and wanted["Predicted against measured"]
    assert disagreements(page_tables(opened.page.content()), wanted) == []
    assert disagreements(markdown_tables((tmp_path / "run" / "report.md").read_text()), wanted) == []
    assert opened.page.locator("h1").inner_text() == facts.headline
    assert "measured, pass" in opened.page.locator(".badge").inner_text()
    assert opened.page.locator("tr", has_text="hot rank").first.locator("th").inner_text() == str(answer.hot_rank)
    assert opened.page.locator("#chart-ranks .mark-rect path").count() == answer.world_size == 2
