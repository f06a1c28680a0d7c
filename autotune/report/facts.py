"""The one source of formatted figures: Markdown, terminal and page show these texts and format none themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ExitStatus
from autotune.report.contract import contract_rows
from autotune.report.evidence_tables import comparison_table, phase_table, rank_table
from autotune.report.run_view import RunView
from autotune.report.table import Table
from autotune.report.text import (
    UNKNOWN,
    boundary_name,
    boundary_of,
    limit,
    milliseconds,
    percent,
    probability,
    python_fields,
    size,
)
from autotune.search.outcome import Breakpoint, CertificateRow, Recommendation, ReplayCost

BEST = 5
"""Settings that fit, listed after the answer."""
OPEN_NAMED = 6
"""Open settings named where there is no answer; all of them are in recommendation.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a person is told about one run, as text.

    Attributes:
        headline: The answer in one line.
        verdict: Kind and verdict in one line, with the reason.
        answer: Name and text of each figure of the answer.
        patch: The four fields as Python literals; empty where there is no answer.
        tables: At risk, settings that fit, certificate, breakpoints, levers, trials; one without rows is not shown.
        details: Ranks, phases, predictions beside trials: on the page and in Markdown, too long for a terminal.
        claims: What the answer does not prove.
    """

    headline: str
    verdict: str
    answer: tuple[tuple[str, str], ...]
    patch: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    details: tuple[Table, ...]
    contract: tuple[tuple[str, str], ...]
    claims: tuple[str, ...]
    warnings: tuple[str, ...]


def collect(view: RunView) -> Facts:
    """Format every figure of a run."""
    recommendation = view.recommendation
    return Facts(
        headline=_headline(recommendation),
        verdict=f"{recommendation.kind}, {recommendation.verdict}: {recommendation.verdict_reason}",
        answer=_answer(recommendation),
        patch=() if view.answer is None else python_fields(view.answer),
        tables=(
            _at_risk(recommendation),
            _fitting(view),
            _certificate(recommendation),
            breakpoint_table(recommendation.breakpoints),
            remedy_table(recommendation.remedies),
            _trials(recommendation),
        ),
        details=(rank_table(view), phase_table(view), comparison_table(view)),
        contract=contract_rows(view.workload, recommendation, view.answer_trial),
        claims=recommendation.claims,
        warnings=recommendation.warnings,
    )


def setting_name(fields: Mapping[str, Any]) -> str:
    """A setting as JSON holds it, by the name that people see."""
    return boundary_name(boundary_of(fields))


def _headline(recommendation: Recommendation) -> str:
    under = f"{recommendation.recipe} under {limit(recommendation.mem_target_bytes)}"
    if recommendation.boundary is not None:
        return f"{under}: recompute {setting_name(recommendation.boundary)}".replace("recompute no recompute", "no recompute")
    if recommendation.exit_status == ExitStatus.STOPPED:
        return f"{under}: stopped before an answer, open settings: {len(recommendation.open)}"
    return f"{under}: no recompute setting passes"


def _answer(recommendation: Recommendation) -> tuple[tuple[str, str], ...]:
    """The figures of the answer that are known."""
    target, peak, p95 = recommendation.mem_target_bytes, recommendation.peak_bytes, recommendation.peak_p95_bytes
    kind = recommendation.kind
    rows = [("limit", f"{limit(target)}, {recommendation.mem_metric} on every rank")]
    if peak is not None:
        rows.append(("peak", f"{limit(peak)}, {kind}; {percent(peak / target)} of the limit"))
    if p95 is not None and kind == "predicted":
        side = "under" if p95 <= target else "over"
        rows.append(("95 % peak", f"{limit(p95)}, predicted; {size(abs(target - p95))} {side} the limit"))
    elif p95 is not None:
        rows.append(("prediction", f"{size(recommendation.peak_p05_bytes)} to {size(p95)}, predicted before the trials"))
    if recommendation.reserved_peak_bytes is not None:
        rows.append(("reserved peak", f"{size(recommendation.reserved_peak_bytes)}, {kind}"))
    if recommendation.hot_rank is not None:
        measured = f"{recommendation.ranks_measured} of {recommendation.world_size} ranks measured"
        rows.append(
            ("hot rank" if kind != "predicted" else "heaviest rank", f"rank {recommendation.hot_rank}, {kind}; {measured}")
        )
    if recommendation.step_ms is not None:
        rows.append(("step time", f"{milliseconds(recommendation.step_ms)}, {kind}, median of steady steps"))
    if recommendation.replay_cost is not None:
        rows.append(("replay cost", replay_cost(recommendation.replay_cost)))
    if recommendation.runner_up is not None:
        rows.append(("runner-up", _runner_up(recommendation.runner_up, recommendation)))
    if recommendation.exit_status == ExitStatus.STOPPED and recommendation.open:
        rows.append(("open", _open(recommendation.open)))
    if recommendation.wall is not None:
        rows.append(("wall", wall_text(recommendation.wall)))
    return tuple(rows)


def _open(names: Sequence[str]) -> str:
    more = f" and {len(names) - OPEN_NAMED} more" if len(names) > OPEN_NAMED else ""
    return f"{', '.join(names[:OPEN_NAMED])}{more}"


def replay_cost(cost: ReplayCost) -> str:
    """Extra time of a step, against what, and on which basis."""
    ratio = "" if cost.ratio is None else f" ({percent(cost.ratio, signed=True)})"
    return f"{milliseconds(cost.ms, signed=True)} a step{ratio} against {cost.reference}, {cost.basis}"


def _runner_up(other: CertificateRow, recommendation: Recommendation) -> str:
    text = f"{setting_name(other.boundary)}: peak {size(other.peak_bytes)}, replay {milliseconds(other.replay_ms, signed=True)}"
    text += f", {other.basis}"
    cost = recommendation.replay_cost
    if recommendation.step_ms and other.step_ms:
        return f"{text}; {other.step_ms / recommendation.step_ms:.2f} x the step time"
    if cost is not None and cost.ms > 0 and other.replay_ms is not None:
        return f"{text}; {other.replay_ms / cost.ms:.2f} x the replay"
    return text


def wall_text(wall: Mapping[str, Any]) -> str:
    """The phase that sets the peak without recompute, and the floor that no setting goes below."""
    place = f"the {wall['phase']} phase of stage {wall['stage']} (rank {wall['rank']})"
    floor = (
        f"no recompute setting goes below {size(wall['floor_bytes'])}, {wall['floor_phase']} phase of stage {wall['floor_stage']}"
    )
    return f"without recompute {place} sets the peak, {size(wall['control_peak_bytes'])}; {floor}; predicted"


def _at_risk(recommendation: Recommendation) -> Table:
    return Table(
        title="At risk, launch these first",
        note="Cheaper settings whose predicted peak fits and whose 95 % peak does not.",
        columns=("setting", "peak", "95 % peak", "replay", "chance to fit"),
        rows=tuple(
            (
                setting_name(row.boundary),
                size(row.peak_bytes),
                size(row.peak_p95_bytes),
                milliseconds(row.replay_ms, signed=True),
                probability(row.fit_probability),
            )
            for row in recommendation.at_risk
        ),
    )


def _fitting(view: RunView) -> Table:
    rows = [row for row in view.plan.candidates if row.fits and row.status == "distinct"] if view.plan else []
    rows.sort(key=lambda row: (row.replay_ms or 0.0, row.order))
    return Table(
        title="Settings that fit by prediction",
        note="Cheapest first; each predicted 95 % peak is within the limit.",
        columns=("setting", "peak", "95 % peak", "replay"),
        rows=tuple(
            (
                setting_name(row.boundary),
                size(row.peak_bytes),
                size(row.peak_p95_bytes),
                milliseconds(row.replay_ms, signed=True),
            )
            for row in rows[:BEST]
        ),
    )


def _certificate(recommendation: Recommendation) -> Table:
    return Table(
        title="Certificate",
        note="Why each cheaper setting is not the answer. A predicted row was ruled out by its prediction, it did not fail.",
        columns=("setting", "peak", "95 % peak", "chance to fit", "replay", "step", "basis", "reason"),
        rows=tuple(
            (
                setting_name(row.boundary),
                size(row.peak_bytes),
                size(row.peak_p95_bytes),
                probability(row.fit_probability),
                milliseconds(row.replay_ms, signed=True),
                milliseconds(row.step_ms),
                row.basis,
                # The figures of a prediction stand in the columns; its reason repeats them after a colon.
                row.reason.partition(":")[0] if row.basis == "predicted" else row.reason,
            )
            # Those that could have been the answer first, those that a rule settles after them.
            for row in sorted(recommendation.certificate, key=lambda row: row.basis in ("invalid", "no effect", "same effect"))
        ),
    )


def breakpoint_table(breakpoints: Sequence[Breakpoint]) -> Table:
    """Limits at which the answer changes."""
    return Table(
        title="Breakpoints",
        note="From each limit on, up to the next one, the cheapest setting within it.",
        columns=("limit from", "setting", "replay", "step", "kind"),
        rows=tuple(
            (
                limit(row.from_bytes),
                setting_name(row.boundary),
                milliseconds(row.replay_ms, signed=True),
                milliseconds(row.step_ms),
                row.kind,
            )
            for row in breakpoints
        ),
    )


def remedy_table(remedies: Sequence[Mapping[str, Any]]) -> Table:
    """Levers that replay nothing, as JSON holds them."""
    return Table(
        title="Levers outside recompute",
        note="None is applied; they replay nothing. Savings are predicted.",
        columns=("lever", "saves", "setting", "cost"),
        rows=tuple((row["name"], size(row["saves_bytes"]), row["setting"], row["cost"]) for row in remedies),
    )


def _trials(recommendation: Recommendation) -> Table:
    return Table(
        title="Trials",
        note="In the order they ran.",
        columns=("trial", "setting", "kind", "outcome", "peak", "hot rank", "step", "reason"),
        rows=tuple(
            (
                str(row.number),
                setting_name(row.boundary),
                row.kind,
                row.status,
                size(row.peak_bytes),
                UNKNOWN if row.hot_rank is None else str(row.hot_rank),
                milliseconds(row.step_ms),
                row.reason if row.repeat_reason is None else f"{row.reason} (repeat: {row.repeat_reason})",
            )
            for row in recommendation.trials
            if row.kind != "predicted"  # a prediction is no trial
        ),
    )
