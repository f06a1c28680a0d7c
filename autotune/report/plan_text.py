"""A plan on the terminal."""

from __future__ import annotations

from autotune.engine.plan import PlanResult
from autotune.report.plan_facts import collect_plan
from autotune.report.plot import plan_points
from autotune.report.terminal import console, print_box, print_plot, print_table
from autotune.report.text import Scale


def print_plan(result: PlanResult, *, everything: bool = False) -> None:
    """Print a plan; ``everything`` leaves no setting and no row out."""
    facts = collect_plan(result, everything=everything)
    out = console()
    print_box(out, (facts.headline, "predicted; nothing was launched"), facts.lines, ())
    peaks = [row.peak_bytes for row in result.candidates if row.peak_bytes is not None]
    scale = Scale.of(result.mem_target_bytes or max(peaks, default=0))
    print_plot(out, plan_points(result, scale), scale, result.mem_target_bytes)
    for table in (facts.settings, facts.stages, facts.breakpoints, facts.unusable, facts.remedies):
        print_table(out, table)
