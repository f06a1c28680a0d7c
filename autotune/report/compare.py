"""Several runs side by side: their answers, what differs between what they hold for, and their breakpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.report.answer_tables import breakpoint_table
from autotune.report.chart_data import memory
from autotune.report.charts import Chart, field, spec, tips
from autotune.report.facts import Facts, collect
from autotune.report.run_view import RunView, read_run
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, Scale, limit, milliseconds, setting_name, size
from autotune.search.outcome import Recommendation

COLOURS = ("--g3", "--g4", "--g5", "--g7", "--g8", "--g6", "--g0", "--g9")
"""Of the runs, in their order; more runs than colours begin again, and every run has its name beside its mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRuns:
    """What is told about several runs, as text.

    Attributes:
        names: Short names of the runs: their folders' own.
        tables: Answers, what differs, breakpoints.
        same: Facts in which all runs agree.
    """

    headline: str
    names: tuple[str, ...]
    tables: tuple[Table, ...]
    same: tuple[tuple[str, str], ...]


def read_runs(folders: Sequence[Path]) -> tuple[RunView, ...]:
    """Read run directories.

    Raises:
        RequestError: One of them holds no finished run.
    """
    return tuple(read_run(folder) for folder in folders)


def compare_runs(views: Sequence[RunView]) -> ComparedRuns:
    """Format what is the same and what is not."""
    names = run_names([view.folder for view in views])
    facts = [collect(view) for view in views]
    differing, same = _contracts(facts)
    return ComparedRuns(
        headline=f"{len(views)} runs compared",
        names=names,
        tables=(
            Table(
                title="Answers",
                note="One row a run; every figure has the kind of its run.",
                columns=(
                    "run",
                    "recipe",
                    "limit",
                    "setting",
                    "kind",
                    "verdict",
                    "peak",
                    "95 % peak",
                    "hot rank",
                    "step",
                    "replay",
                ),
                rows=tuple(_answer(name, view.recommendation) for name, view in zip(names, views, strict=True)),
            ),
            Table(
                title="What differs",
                note="Facts that the answers are tied to and that are not the same for all runs.",
                columns=("fact", *names),
                rows=differing,
            ),
            Table(
                title="Breakpoints",
                note="From each limit on, up to the run's next one, the cheapest setting within it.",
                columns=("run", *breakpoint_table(()).columns),
                rows=tuple(
                    (name, *row)
                    for name, view in zip(names, views, strict=True)
                    for row in breakpoint_table(view.recommendation.breakpoints).rows
                ),
            ),
        ),
        same=same,
    )


def run_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """The shortest ends of the paths that tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = tuple("/".join(part[-length:]) for part in parts)
        if len(set(names)) == len(names):
            return names
    return tuple(f"{'/'.join(part[-1:])} ({number})" for number, part in enumerate(parts, 1))


def _answer(name: str, answer: Recommendation) -> tuple[str, ...]:
    cost = answer.replay_cost
    return (
        name,
        answer.recipe,
        limit(answer.mem_target_bytes),
        UNKNOWN if answer.boundary is None else setting_name(answer.boundary),
        answer.kind,
        answer.verdict,
        size(answer.peak_bytes),
        size(answer.peak_p95_bytes),
        UNKNOWN if answer.hot_rank is None else str(answer.hot_rank),
        milliseconds(answer.step_ms),
        *((UNKNOWN,) * 3 if cost is None else (milliseconds(cost.ms, signed=True), cost.reference, cost.basis)),
    )


def _contracts(facts: Sequence[Facts]) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]:
    """Facts of the measurement contract that differ, one column a run, and those that do not."""
    merged: list[dict[str, str]] = []
    for found in facts:
        texts: dict[str, str] = {}
        for name, text in found.contract:
            texts[name] = f"{texts[name]}; {text}" if name in texts else text
        merged.append(texts)
    names = dict.fromkeys(name for texts in merged for name in texts)
    rows = [(name, *(texts.get(name, UNKNOWN) for texts in merged)) for name in names]
    return (
        tuple(row for row in rows if len(set(row[1:])) > 1),
        tuple((row[0], row[1]) for row in rows if len(set(row[1:])) == 1),
    )


def compare_chart(views: Sequence[RunView], names: Sequence[str]) -> Chart | None:
    """Predicted fronts of all runs, each with its answer: peak against the replay it costs."""
    scale = Scale.of(max(view.recommendation.mem_target_bytes for view in views))
    colours = [f"var({COLOURS[number % len(COLOURS)]})" for number in range(len(views))]
    fronts: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    limits: list[dict[str, Any]] = []
    for name, view in zip(names, views, strict=True):
        answer = view.recommendation
        predicted = memory(view, scale).predicted_front
        fronts += [{"run": name, "x": row["replay_ms"], "y": row["y"]} for row in predicted]
        limits.append({"run": name, "limit": answer.mem_target_bytes / scale.factor})
        if answer.boundary is not None and answer.replay_cost is not None and answer.peak_bytes is not None:
            cost = answer.replay_cost
            answers.append(
                {
                    "run": name,
                    "x": round(cost.ms, 3),
                    "y": round(answer.peak_bytes / scale.factor, 4),
                    "setting": setting_name(answer.boundary),
                    "peak": f"{size(answer.peak_bytes)}, {answer.kind}",
                    "time": f"{milliseconds(cost.ms, signed=True)} against {cost.reference}, {cost.basis}",
                }
            )
    if not answers and not fronts:
        return None
    colour = {"field": "run", "type": "nominal", "legend": None, "scale": {"domain": list(names), "range": colours}}
    x = field("x", title="replay, ms a step", scale={"zero": True}, axis={"grid": False, "tickCount": 8, "labelOverlap": True})
    y = field("y", title=f"peak, {scale.unit}", scale={"zero": False})
    shown = tips(("run", "run"), ("setting", "setting"), ("peak", "peak"), ("time", "replay"))
    layers = [
        {
            "data": {"values": limits},
            "mark": {"aria": False, "type": "rule", "strokeDash": [5, 4]},
            "encoding": {"y": field("limit"), "color": colour},
        },
        {
            "data": {"values": fronts},
            "mark": {"aria": False, "type": "line", "interpolate": "step-after", "strokeWidth": 1, "opacity": 0.7},
            "encoding": {"x": x, "y": y, "color": colour},
        },
        {
            "data": {"values": answers},
            "mark": {"aria": False, "type": "point", "shape": "diamond", "filled": True, "size": 170},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": shown},
        },
        {
            "data": {"values": answers},
            "mark": {"aria": False, "type": "text", "align": "left", "dx": 9, "dy": -9},
            "encoding": {"x": x, "y": y, "text": {"field": "run"}},
        },
    ]
    told = "; ".join(f"{row['run']}: {row['setting']}, {row['peak']}, {row['time']}" for row in answers)
    return Chart(
        name="compare",
        title="Memory against replay",
        description=f"Answers of {len(views)} runs: {told or 'none'}.",
        spec=spec(340, layers),
        legend=(
            *(("◆", colour, name) for name, colour in zip(names, colours, strict=True)),
            ("—", "var(--quiet)", "predicted front of a run"),
            ("╌╌", "var(--quiet)", "its limit"),
        ),
    )


def compare_page(views: Sequence[RunView], compared: ComparedRuns) -> str:
    """The page of several runs."""
    from autotune.report.html import render_template

    chart = compare_chart(views, compared.names)
    return render_template("compare.html.j2", () if chart is None else (chart,), compared=compared, chart=chart)
