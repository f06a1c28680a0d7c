"""The texts of a plan: which settings are worth a look, which are not offered and why, and where the peak stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.engine.plan import PlanResult, PlanRow
from autotune.records import to_builtins
from autotune.report.answer_tables import breakpoint_table, remedy_table
from autotune.report.facts import wall_text
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, boundary_of, limit, milliseconds, probability, size


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """Everything a plan tells, as text.

    Attributes:
        headline: Recipe, architecture and limit in one line.
        lines: Name and text of what is known of the whole workload.
        settings: Distinct settings, cheapest first; the pick or every one.
        stages: Peak of every pipeline stage for the control and for the cheapest setting that fits.
        unusable: Settings of one label, and full ones, that are not offered, with the reason.
    """

    headline: str
    lines: tuple[tuple[str, str], ...]
    settings: Table
    stages: Table
    unusable: Table
    breakpoints: Table
    remedies: Table


def collect_plan(result: PlanResult, *, everything: bool = False) -> PlanFacts:
    """Format a plan; ``everything`` also lists settings that another one beats in both peak and replay."""
    usable = sorted(
        (row for row in result.candidates if _can_be_launched(row)), key=lambda row: (row.replay_ms or 0.0, row.order)
    )
    choice = next((row for row in usable if row.fits), None)
    picked = usable if everything else _worth_a_look(usable)
    target = "" if result.mem_target_bytes is None else f", limit {limit(result.mem_target_bytes)}"
    return PlanFacts(
        headline=f"{result.recipe}: {result.architecture['title']}{target}",
        lines=_lines(result, usable, choice),
        settings=_settings(picked, len(usable), choice),
        stages=_stages([row for row in (usable[0] if usable else None, choice) if row is not None]),
        unusable=_unusable(result.candidates),
        breakpoints=breakpoint_table(result.breakpoints),
        remedies=remedy_table(to_builtins(result.remedies)),
    )


def _can_be_launched(row: PlanRow) -> bool:
    return row.status in ("distinct", "not checkable here")


def _worth_a_look(usable: Sequence[PlanRow]) -> list[PlanRow]:
    """Settings that no cheaper one beats in peak, and those whose 95 % peak alone is over the limit."""
    picked, lowest = [], float("inf")
    for row in usable:
        if row.peak_bytes is not None and row.peak_bytes < lowest:
            lowest = row.peak_bytes
            picked.append(row)
        elif row.at_risk:
            picked.append(row)
    return picked


def _lines(result: PlanResult, usable: Sequence[PlanRow], choice: PlanRow | None) -> tuple[tuple[str, str], ...]:
    source = result.workload_source
    lines = [("read from", f"{source['reference']} ({source['kind']}, {source.get('revision') or 'no revision'})")]
    lines += [("reader", note) for note in source.get("notes", ())]
    if source.get("overrides"):
        lines.append(("overrides", " ".join(source["overrides"])))
    if result.kernels == "stand_in":
        lines.append(("kernels", "the stand-ins of trials on a CPU, not Transformer Engine's; --backend gpu prices those"))
    if result.mem_target_bytes is not None:
        at_risk = [boundary_name(boundary_of(row.boundary)) for row in usable if row.at_risk]
        lines.append(("cheapest that fits", _choice(choice)))
        more = f"; {len(at_risk) - 5} more" if len(at_risk) > 5 else ""
        lines.append(("at risk", ("; ".join(at_risk[:5]) or "none") + more))
    lines.append(("labels offered", ", ".join(_offered(usable)) or "none"))
    lines += [("", note) for note in result.boundary_notes]
    lines.append(("wall", wall_text(to_builtins(result.wall))))
    coverage = "everything in this workload" if result.coverage.covered else "; ".join(result.coverage.reasons)
    lines.append(("ledger covers" if result.coverage.covered else "not covered", coverage))
    return tuple(lines)


def _offered(usable: Sequence[PlanRow]) -> list[str]:
    """Labels that have an effect of their own, alone or with others, by name."""
    return sorted({label for row in usable for label in boundary_of(row.boundary).modules})


def _choice(choice: PlanRow | None) -> str:
    if choice is None:
        return "none by its predicted 95 % peak"
    name = boundary_name(boundary_of(choice.boundary))
    return f"{name}: 95 % peak {size(choice.peak_p95_bytes)}, replay {milliseconds(choice.replay_ms, signed=True)}, predicted"


def _settings(picked: Sequence[PlanRow], count: int, choice: PlanRow | None) -> Table:
    note = f"Cheapest first, predicted; {count} distinct settings"
    if len(picked) < count:
        note += ", without those that a cheaper one beats in peak (--verbose shows all)"
    return Table(
        title="Settings",
        note=f"{note}.",
        columns=("setting", "peak", "95 % peak", "replay", "fits", "heaviest stage"),
        rows=tuple(
            (
                boundary_name(boundary_of(row.boundary)),
                size(row.peak_bytes),
                size(row.peak_p95_bytes),
                milliseconds(row.replay_ms, signed=True),
                _fits(row, row is choice),
                UNKNOWN if row.stage is None else f"{row.stage} (rank {row.rank}), {row.phase}",
            )
            for row in picked
        ),
    )


def _fits(row: PlanRow, chosen: bool) -> str:
    if row.fits is None:
        return UNKNOWN
    if row.fits:
        return "yes, cheapest" if chosen else "yes"
    return f"{'at risk' if row.at_risk else 'no'}, {probability(row.fit_probability)}"


def _stages(rows: Sequence[PlanRow]) -> Table:
    table = []
    for found in {row.name: row for row in rows if len(row.stages) > 1}.values():
        heaviest = max((stage.peak_bytes for stage in found.stages), default=0)
        for stage in found.stages:
            mark = "heaviest" if stage.peak_bytes == heaviest else ""
            name = boundary_name(boundary_of(found.boundary))
            table.append((name, str(stage.stage), str(stage.rank), size(stage.peak_bytes), stage.phase, mark))
    return Table(
        title="Pipeline stages",
        note="Predicted peak of every stage.",
        columns=("setting", "stage", "first rank", "peak", "phase", ""),
        rows=tuple(table),
    )


def _unusable(candidates: Sequence[PlanRow]) -> Table:
    single = [row for row in candidates if not _can_be_launched(row) and len(boundary_of(row.boundary).modules) <= 1]
    return Table(
        title="Not offered",
        note="Single labels and full recompute; what is said of a label holds for its combinations.",
        columns=("setting", "status", "reason"),
        rows=tuple((boundary_name(boundary_of(row.boundary)), row.status, row.reason) for row in single),
    )
