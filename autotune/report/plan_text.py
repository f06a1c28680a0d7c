"""A plan on the terminal."""

from __future__ import annotations

from autotune.engine.plan import PlanResult
from autotune.report.plan_facts import collect_plan
from autotune.report.plot import plan_points
from autotune.report.terminal import console, print_box, print_plot, print_table


def print_plan(result: PlanResult, *, everything: bool = False) -> None:
    """Print a plan; ``everything`` leaves no setting and no row out."""
    facts = collect_plan(result, everything=everything)
    out = console()
    print_box(out, (facts.headline, "predicted; nothing was launched"), facts.lines, ())
    target = result.mem_target_bytes
    print_plot(out, plan_points(result), None if target is None else target / 1e9)
    for table in (facts.settings, facts.stages, facts.breakpoints, facts.unusable, facts.remedies):
        print_table(out, table)
