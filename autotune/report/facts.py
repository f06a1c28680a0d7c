"""The one source of formatted figures: Markdown, terminal and page show these texts and format none themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ExitStatus
from autotune.report.answer_tables import (
    at_risk_table,
    breakpoint_table,
    certificate_table,
    fitting_table,
    remedy_table,
    trial_table,
)
from autotune.report.contract import contract_rows, measured_on
from autotune.report.evidence_tables import calibration_table, comparison_table, phase_name, phase_table, rank_table
from autotune.report.run_view import RunView
from autotune.report.survey_tables import survey_table
from autotune.report.table import Table
from autotune.report.text import (
    boundary_name,
    boundary_of,
    limit,
    milliseconds,
    percent,
    python_fields,
    setting_name,
    size,
)
from autotune.search.outcome import CertificateRow, Recommendation, ReplayCost

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
        tables: At risk, settings that fit, certificate, breakpoints, levers, trials, predictions beside trials, calibration;
            one without rows is not shown.
        details: Ranks, phases, every surveyed setting: on the page and in Markdown, too long for a terminal.
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
        answer=_answer(view),
        patch=() if view.answer is None else python_fields(view.answer),
        tables=(
            at_risk_table(recommendation),
            fitting_table(view),
            certificate_table(recommendation),
            breakpoint_table(recommendation.breakpoints, surveyed=view.survey is not None),
            remedy_table(recommendation.remedies),
            trial_table(view),
            comparison_table(view),
            calibration_table(recommendation),
        ),
        details=(rank_table(view), phase_table(view), survey_table(view)),
        contract=contract_rows(view.workload, recommendation, view.answer_trial),
        claims=recommendation.claims,
        warnings=recommendation.warnings,
    )


def _headline(recommendation: Recommendation) -> str:
    under = f"{recommendation.recipe} under {limit(recommendation.mem_target_bytes)}"
    if recommendation.boundary is not None:
        boundary = boundary_of(recommendation.boundary)
        if boundary.granularity is None or boundary.is_control:
            return f"{under}: no recompute is needed"
        return f"{under}: recompute {boundary_name(boundary)}"
    if recommendation.exit_status == ExitStatus.STOPPED:
        return f"{under}: stopped before an answer, open settings: {len(recommendation.open)}"
    return f"{under}: no recompute setting passes"


def _answer(view: RunView) -> tuple[tuple[str, str], ...]:
    """The figures of the answer that are known."""
    recommendation = view.recommendation
    target, peak, p95 = recommendation.mem_target_bytes, recommendation.peak_bytes, recommendation.peak_p95_bytes
    kind = recommendation.kind
    rows = [("limit", f"{limit(target)}, {recommendation.mem_metric} on every rank")]
    if peak is not None:
        rows.append(("peak", f"{limit(peak)}, {kind}; {percent(peak / target)} of the limit"))
    if p95 is not None and kind == "predicted":
        side = "under" if p95 <= target else "over"
        rows.append(("95 % peak", f"{limit(p95)}, predicted; {size(abs(target - p95))} {side} the limit"))
    elif p95 is not None:
        by = "by the survey, before the fresh launch" if view.survey is not None else "before the trials"
        rows.append(("prediction", f"{size(recommendation.peak_p05_bytes)} to {size(p95)}, predicted {by}"))
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
        by_survey = view.survey is not None and recommendation.replay_cost.basis == "predicted"
        rows.append(("replay cost", replay_cost(recommendation.replay_cost) + (" by the survey" if by_survey else "")))
    where = measured_on(recommendation, view.answer_trial)
    if where:
        rows.append(("measured on", where))
    if recommendation.boundary is not None:
        rows.append(("ruled out", ruled_out(recommendation.certificate)))
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


_BASES = (
    (("measured",), "by their trials"),
    (("replayed",), "by recorded trials"),
    (("switched",), "in the survey launch"),
    (("predicted",), "by prediction"),
    (("invalid", "not checkable here"), "by a rule of this Megatron Core"),
    (("no effect", "same effect"), "as changing nothing"),
    (("open",), "not yet: open"),
)


def ruled_out(certificate: Sequence[CertificateRow]) -> str:
    """How many cheaper settings there are and what rules them out: ``9 cheaper settings: 2 by their trials, ...``."""
    counts = [(sum(row.basis in bases for row in certificate), text) for bases, text in _BASES]
    told = ", ".join(f"{count} {text}" for count, text in counts if count)
    return f"cheaper settings: {len(certificate)}" + (f"; {told}" if told else "")


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
    place = f"the {phase_name(wall['phase'])} phase of stage {wall['stage']} (rank {wall['rank']})"
    below = f"{phase_name(wall['floor_phase'])} phase of stage {wall['floor_stage']}"
    floor = f"no recompute setting goes below {size(wall['floor_bytes'])}, {below}"
    return f"without recompute {place} sets the peak, {size(wall['control_peak_bytes'])}; {floor}; predicted"
