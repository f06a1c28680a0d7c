"""``report.html``: the whole answer on one self-contained page."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from autotune import __version__
from autotune.report.allocator import allocator_advice
from autotune.report.chart_library import chart_script
from autotune.report.charts import Chart, charts
from autotune.report.facts import Facts
from autotune.report.run_view import RunView
from autotune.report.text import hydra_fields

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def render_page(view: RunView, facts: Facts) -> str:
    """The page of one run. Every text is one of ``facts``; the charts take their texts from the same place."""
    found = {chart.name: chart for chart in charts(view)}
    return render_template(
        "report.html.j2",
        tuple(found.values()),
        facts=facts,
        view=view,
        charts=found,
        phase_charts=[chart for name, chart in found.items() if name.startswith("phases-")],
        tables={table.title: table for table in (*facts.tables, *facts.details)},
        overrides=() if view.answer is None else hydra_fields(view.answer),
        advice=allocator_advice(view.workload),
    )


def render_template(name: str, found: tuple[Chart, ...], **values: Any) -> str:
    """A page with its charts; styles, script and library stand in the page itself."""
    from markupsafe import Markup

    # Not one "<" may stand in a script element's data: a setting's name could otherwise end the element.
    specs = msgspec.json.encode({chart.name: chart.spec for chart in found}).decode().replace("<", "\\u003c")
    return (
        _environment()
        .get_template(name)
        .render(
            **values,
            version=__version__,
            library_version=version("vl-convert-python") if found else "",
            library=Markup(chart_script()) if found else "",
            specs=Markup(specs),
            style=Markup((TEMPLATES / "page.css").read_text()),
            script=Markup((TEMPLATES / "page.js").read_text()),
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
