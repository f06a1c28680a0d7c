"""The charts of the page as Vega-Lite specifications. Colours are CSS variables of the page, so that both themes hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.report import chart_data
from autotune.report.chart_data import GROUPS
from autotune.report.evidence_tables import comparisons
from autotune.report.run_view import RunView
from autotune.report.text import Scale, boundary_name, boundary_of, limit, signed_size, size

SERIES = {
    "predicted": ("circle", "var(--predicted)", "○"),
    "from a trial": ("square", "var(--measured)", "■"),
    "switched": ("triangle-up", "var(--g7)", "▲"),
    "ended early": ("cross", "var(--bad)", "✚"),
    "chosen": ("diamond", "var(--chosen)", "◆"),
}
"""Shape, colour and character of each kind of mark: they differ in shape, not in colour alone."""
COLOURS = dict(zip(GROUPS, (f"var(--g{index})" for index in range(len(GROUPS))), strict=True))
LIMIT = {"color": "var(--limit)", "strokeDash": [5, 4], "strokeWidth": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One chart.

    Attributes:
        name: Its place on the page.
        description: What a person who does not see it is told.
        legend: Character and text of each kind of mark, or CSS colour and text where the character is empty.
    """

    name: str
    title: str
    description: str
    spec: Mapping[str, Any]
    legend: tuple[tuple[str, str, str], ...] = ()


def charts(view: RunView) -> tuple[Chart, ...]:
    """The charts that have something to show."""
    scale = Scale.of(view.recommendation.mem_target_bytes)
    found = [_memory(view, scale), _ranks(view, scale), *_phases(view, scale), _comparison(view, scale)]
    return tuple(chart for chart in found if chart is not None)


def spec(height: int, layers: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A chart as wide as its place and ``height`` pixels high."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "layer": list(layers),
        "config": {
            "aria": False,  # the figure has one description, and its table follows it
            "background": None,
            "font": "system-ui, Segoe UI, Roboto, DejaVu Sans, sans-serif",
            "view": {"stroke": None},
            "axis": {
                "labelColor": "var(--quiet)", "titleColor": "var(--quiet)", "gridColor": "var(--line)",
                "domainColor": "var(--line)", "tickColor": "var(--line)", "titleFontWeight": "normal",
                "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 220, "aria": False,
            },
            "text": {"color": "var(--ink)", "fontSize": 12},
        },
        **more,
    }  # fmt: skip


def field(name: str, **more: Any) -> dict[str, Any]:
    """A quantitative channel."""
    return {"field": name, "type": "quantitative", **more}


def tips(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    """Tooltip lines: field and title of texts that are formatted already."""
    return [{"field": field, "type": "nominal", "title": title} for field, title in pairs]


def _limit_rule(axis: str, view: RunView, scale: Scale) -> list[dict[str, Any]]:
    """The limit as a line with its name."""
    value = view.recommendation.mem_target_bytes / scale.factor
    text = {
        "align": "right",
        "dx": -4,
        "dy": -6,
        "baseline": "bottom",
        "text": f"limit {limit(view.recommendation.mem_target_bytes)}",
    }
    rule = {
        "data": {"values": [{"limit": value}]},
        "mark": {"aria": False, "type": "rule", **LIMIT},
        "encoding": {axis: field("limit")},
    }
    if axis == "x":
        return [rule]
    name = {
        "data": {"values": [{"limit": value}]},
        "mark": {"aria": False, "type": "text", "color": "var(--limit)", **text},
        "encoding": {"y": field("limit"), "x": {"value": "width"}},
    }
    return [rule, name]


def _memory(view: RunView, scale: Scale) -> Chart | None:
    found = chart_data.memory(view, scale)
    if not found.rows:
        return None
    used = [name for name in SERIES if any(row["series"] == name for row in found.rows)]
    x_title = "step time, ms (predicted where not launched)" if found.timed else "predicted replay, ms a step"
    x = field(
        "x",
        title=x_title,
        scale={"zero": False, "nice": True},
        axis={"grid": False, "tickCount": 8, "labelOverlap": True, "labelSeparation": 8},
    )
    y = field("y", title=f"peak, {scale.unit}", scale={"zero": False, "nice": True})
    shape = {"field": "series", "type": "nominal", "legend": None,
             "scale": {"domain": list(SERIES), "range": [mark for mark, _, _ in SERIES.values()]}}  # fmt: skip
    colour = {"field": "series", "type": "nominal", "legend": None,
              "scale": {"domain": list(SERIES), "range": [colour for _, colour, _ in SERIES.values()]}}  # fmt: skip
    shown = tips(("setting", "setting"), ("series", "kind"), ("peak", "peak"), ("interval", "5 % to 95 %"), ("time", "time"))
    is_chosen = "datum.series === 'chosen'"
    chosen = next((row for row in found.rows if row["series"] == "chosen"), None)
    here = "scale('x', datum.x)"
    intervals = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"aria": False, "type": "rule", "opacity": 0.35},
        "encoding": {"x": x, "y": field("low"), "y2": {"field": "high"}, "color": colour},
    }
    layers = [
        *_limit_rule("y", view, scale),
        {
            "data": {"values": list(found.front)},
            "mark": {"aria": False, "type": "line", "interpolate": "step-after", "color": "var(--quiet)", "strokeWidth": 1},
            "encoding": {"x": x, "y": y},
        },
        *([intervals] if any("low" in row for row in found.rows) else []),
        {
            "mark": {"aria": False, "type": "point", "strokeWidth": 1.5},
            "encoding": {
                "x": x, "y": y, "shape": shape, "color": colour, "tooltip": shown,
                "fill": {"condition": {"test": "datum.series === 'predicted'", "value": "var(--page)"}, **colour},
                "size": {"condition": {"test": is_chosen, "value": 190}, "value": 55},
            },
        },
        {
            "transform": [{"filter": is_chosen}],
            "mark": {
                "aria": False, "type": "text", "fontWeight": "bold",
                # Towards the side that has room, and never beyond it.
                "align": {"expr": f"{here} < width / 2 ? 'left' : 'right'"},
                "dx": {"expr": f"{here} < width / 2 ? 10 : -10"},
                "limit": {"expr": f"max({here}, width - {here}) - 10"},
                "dy": 14,
            },
            "encoding": {"x": x, "y": y, "text": {"field": "setting"}},
        },
    ]  # fmt: skip
    data = {"data": {"values": list(found.rows)}}
    counts = ", ".join(f"{sum(row['series'] == name for row in found.rows)} {name}" for name in used)
    told = "" if chosen is None else f" The chosen setting is {chosen['setting']}: peak {chosen['peak']}, {chosen['time']}."
    names = {
        "predicted": "predicted by the survey" if view.survey is not None else "predicted",
        "switched": "switched, in the survey launch",
        "from a trial": f"a fresh launch, {view.recommendation.kind}",
        "ended early": "out of memory or ended early",
    }
    return Chart(
        name="memory",
        title="Memory against time",
        description=f"Peak against {'step time' if found.timed else 'replay time'} of {len(found.rows)} points ({counts}) "
        f"and the limit of {limit(view.recommendation.mem_target_bytes)}.{told}",
        spec=spec(340, layers, **data),
        legend=(
            *((SERIES[name][2], SERIES[name][1], names.get(name, name)) for name in used),
            ("—", "var(--quiet)", f"front of the {found.front_series}: nothing beats these in both"),
            ("╌╌", "var(--limit)", "limit"),
        ),
    )


def _ranks(view: RunView, scale: Scale) -> Chart | None:
    rows = chart_data.ranks(view, scale)
    if not rows:
        return None
    staged = "stage" in rows[0]
    many = len(rows) > 32
    x: dict[str, Any] = {"field": "rank", "type": "ordinal", "title": "first rank of the stage" if staged else "rank",
                         "axis": {"labelAngle": 0, "labelOverlap": True, "grid": False, "ticks": not many},
                         "scale": {"paddingInner": 0 if many else 0.2}}  # fmt: skip
    shown = tips(
        ("rank", "rank"), *([("stage", "stage")] if staged else []), ("peak", "peak"), *([] if staged else [("held", "reserved")])
    )
    layers = [
        {
            "mark": {"aria": False, "type": "bar", **({"size": 40} if len(rows) <= 12 else {})},
            "encoding": {
                "x": x, "y": field("y", title=f"peak, {scale.unit}"), "tooltip": shown,
                "color": {"condition": {"test": "datum.hot", "value": "var(--chosen)"}, "value": "var(--bar)"},
            },
        },
        *_limit_rule("y", view, scale),
    ]  # fmt: skip
    hot = max(rows, key=lambda row: (row["hot"], row["y"]))
    low = min(rows, key=lambda row: row["y"])
    what = "pipeline stages" if staged else "ranks"
    return Chart(
        name="ranks",
        title="Peak of every pipeline stage" if staged else "Peak of every rank",
        description=f"Peaks of {len(rows)} {what}. The {'heaviest' if staged else 'hot'} rank is {hot['rank']}: {hot['peak']}. "
        f"The lowest is rank {low['rank']}: {low['peak']}.",
        spec=spec(220, layers, data={"values": list(rows)}),
        legend=(("■", "var(--chosen)", "heaviest stage" if staged else "hot rank"), ("╌╌", "var(--limit)", "limit")),
    )


def _phases(view: RunView, scale: Scale) -> list[Chart]:
    made = []
    timelines = view.recommendation.timelines
    highest = max([peak.peak_bytes for line in timelines for peak in line.phases], default=0)
    seen = max([rank.allocated_peak_bytes for trial in view.trials for rank in trial.ranks.values()], default=0)
    top = max(highest, seen, view.recommendation.mem_target_bytes) / scale.factor
    for number, timeline in enumerate(reversed(timelines)):
        rows = chart_data.phases(view, timeline, scale)
        name = boundary_name(boundary_of(timeline.boundary))
        y = {"field": "phase", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False, "domain": False}}
        x = field("from", title=f"{scale.unit}", scale={"domain": [0, top], "nice": True})
        colour = {
            "field": "group",
            "type": "nominal",
            "legend": None,
            "scale": {"domain": list(COLOURS), "range": list(COLOURS.values())},
        }
        shown = tips(("phase", "phase"), ("group", "tensors"), ("bytes", "bytes"), ("total", "peak of the phase"))
        layers = [
            {
                "transform": [{"filter": "datum.group !== 'trial'"}],
                "mark": {"aria": False, "type": "bar", "stroke": "var(--page)", "strokeWidth": 0.5},
                "encoding": {"y": y, "x": x, "x2": {"field": "to"}, "color": colour, "tooltip": shown},
            },
            {
                "transform": [{"filter": "datum.group === 'trial'"}],
                "mark": {"aria": False, "type": "tick", "color": "var(--ink)", "thickness": 2.5, "size": 18},
                "encoding": {"y": y, "x": field("seen"), "tooltip": tips(("phase", "phase"), ("total", "from the trial"))},
            },
            *_limit_rule("x", view, scale),
        ]
        peak = max(timeline.phases, key=lambda peak: peak.peak_bytes)
        used = [group for group in COLOURS if any(row["group"] == group for row in rows)]
        made.append(
            Chart(
                name=f"phases-{number}",
                title=f"Phases of {name}",
                description=f"Predicted peak of each phase of {name} by kind of tensor, on stage {timeline.stage} "
                f"(rank {timeline.rank}). The highest is {peak.phase.replace('_', ' ')}: {size(peak.peak_bytes)}.",
                spec=spec(22 * len(timeline.phases), layers, data={"values": list(rows)}),
                legend=(
                    *(("■", COLOURS[group], group) for group in used),
                    *([("┃", "var(--ink)", "from the trial")] if any(row["group"] == "trial" for row in rows) else []),
                    ("╌╌", "var(--limit)", "limit"),
                ),
            )
        )
    return made


def _comparison(view: RunView, scale: Scale) -> Chart | None:
    found = comparisons(view)
    if len({row.name for row in found}) < 2:
        return None  # one setting is told by its table
    rows = [
        {
            "x": round(row.predicted_bytes / scale.factor, 4),
            "y": round(row.seen_bytes / scale.factor, 4),
            "low": None if row.p05_bytes is None else round(row.p05_bytes / scale.factor, 4),
            "high": None if row.p95_bytes is None else round(row.p95_bytes / scale.factor, 4),
            "setting": row.name,
            "predicted": f"{size(row.predicted_bytes)}, predicted",
            "seen": f"{size(row.seen_bytes)}, {row.kind}",
            "off": signed_size(row.seen_bytes - row.predicted_bytes),
        }
        for row in found
    ]
    seen = [(row.predicted_bytes, row.seen_bytes) for row in found]
    low, high = min(map(min, seen)), max(map(max, seen))
    pad = (high - low) * 0.05 or high * 0.01
    ends = (low - pad, high + pad)
    domain = {"domain": [end / scale.factor for end in ends], "nice": False, "zero": False}
    line = [{"a": end / scale.factor} for end in ends]
    shown = tips(("setting", "setting"), ("predicted", "predicted"), ("seen", "from the trial"), ("off", "difference"))
    x = field("x", title=f"predicted peak, {scale.unit}", scale=domain)
    y = field("y", title=f"peak from the trial, {scale.unit}", scale=domain)
    layers = [
        {
            "data": {"values": line},
            "mark": {"aria": False, "type": "line", "color": "var(--quiet)", "strokeDash": [2, 3]},
            "encoding": {"x": field("a", scale=domain), "y": field("a", scale=domain)},
        },
        {
            "mark": {"aria": False, "type": "rule", "opacity": 0.5, "color": "var(--measured)", "clip": True},
            "encoding": {"x": field("low"), "x2": {"field": "high"}, "y": y},
        },
        {
            "mark": {"aria": False, "type": "point", "filled": True, "shape": "square", "size": 60, "color": "var(--measured)"},
            "encoding": {
                "x": x, "y": y,
                "tooltip": shown,
            },
        },
    ]  # fmt: skip
    widest = max(found, key=lambda row: abs(row.seen_bytes - row.predicted_bytes))
    return Chart(
        name="comparison",
        title="Predicted against measured",
        description=f"{len(found)} settings that were predicted and run. The largest difference is "
        f"{signed_size(widest.seen_bytes - widest.predicted_bytes)}, of {widest.name}.",
        spec=spec(260, layers, data={"values": rows}),
        legend=(
            ("■", "var(--measured)", "a setting, with its 5 % to 95 % interval"),
            ("╌╌", "var(--quiet)", "prediction equals trial"),
        ),
    )
