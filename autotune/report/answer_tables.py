"""The tables of an answer: at risk, settings that fit, certificate, breakpoints, levers, trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.report.run_view import RunView
from autotune.report.survey_tables import survey_reason, surveyed_fits
from autotune.report.table import NOTHING, Table
from autotune.report.text import UNKNOWN, limit, milliseconds, probability, setting_name, size
from autotune.search.outcome import Breakpoint, CertificateRow, Recommendation, TrialSummary

BEST = 5
"""Settings that fit, listed after the answer."""
LAUNCH = "only a launch can tell"


def at_risk_table(recommendation: Recommendation) -> Table:
    """Cheaper settings that a launch may show to fit."""
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


def fitting_table(view: RunView) -> Table:
    """The cheapest settings that are predicted to fit: by the survey where one ran, else by the ledger."""
    if view.survey is not None:
        return surveyed_fits(view, BEST)
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


def _certificate_reason(row: CertificateRow) -> str:
    """The figures of a prediction stand in the columns; its reason repeats them after a colon."""
    if row.basis != "predicted":
        return row.reason
    said, _, figures = row.reason.partition(":")
    return f"{said}; {LAUNCH}" if figures.endswith(LAUNCH) else said


def certificate_table(recommendation: Recommendation) -> Table:
    """Why each cheaper setting is not the answer."""
    return Table(
        title="Certificate",
        note="Why each cheaper setting is not the answer. A predicted row was ruled out by its prediction, it did not fail.",
        columns=("setting", "peak", "95 % peak", "chance to fit", "replay", "step", "basis", "reason"),
        narrow=("setting", "peak", "basis", "reason"),
        rows=tuple(
            (
                setting_name(row.boundary),
                size(row.peak_bytes),
                size(row.peak_p95_bytes),
                probability(row.fit_probability),
                milliseconds(row.replay_ms, signed=True),
                milliseconds(row.step_ms),
                row.basis,
                _certificate_reason(row),
            )
            # Those that could have been the answer first, those that a rule settles after them.
            for row in sorted(recommendation.certificate, key=lambda row: row.basis in ("invalid", "no effect", "same effect"))
        ),
    )


def breakpoint_table(breakpoints: Sequence[Breakpoint], *, surveyed: bool = False) -> Table:
    """Limits at which the answer changes."""
    note = "From each limit on, up to the next one, the cheapest setting within it."
    return Table(
        title="Breakpoints",
        note=f"{note} Predicted: by the survey." if surveyed else note,
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
        note="None is applied; they replay nothing. Predicted: what each takes off the peak without recompute, and off the floor "
        "that no recompute setting goes below.",
        columns=("lever", "saves", "lowers the floor by", "setting", "cost"),
        narrow=("lever", "saves", "lowers the floor by"),
        rows=tuple(
            (row["name"], _saving(row["saves_bytes"]), _saving(row["saves_at_wall_bytes"]), row["setting"], row["cost"])
            for row in remedies
        ),
    )


def _saving(size_bytes: int | None) -> str:
    """A lever that does not reach a peak saves nothing there; what is not known is a dash."""
    return NOTHING if size_bytes is not None and size_bytes <= 0 else size(size_bytes)


def _trial_name(row: TrialSummary) -> str:
    name = setting_name(row.boundary)
    return f"survey, under {name}" if row.kind == "switched" else name


def _trial_reason(row: TrialSummary, view: RunView) -> str:
    if row.kind == "switched" and view.survey is not None:
        return survey_reason(view.survey)
    return row.reason if row.repeat_reason is None else f"{row.reason} (repeat: {row.repeat_reason})"


def trial_table(view: RunView) -> Table:
    """What was launched."""
    return Table(
        title="Trials",
        note="In the order they ran.",
        columns=("trial", "setting", "kind", "outcome", "peak", "hot rank", "step", "reason"),
        narrow=("trial", "setting", "outcome", "peak"),
        rows=tuple(
            (
                str(row.number),
                _trial_name(row),
                row.kind,
                row.status,
                size(row.peak_bytes),
                UNKNOWN if row.hot_rank is None else str(row.hot_rank),
                # A survey's steps are of many settings.
                UNKNOWN if row.kind == "switched" else milliseconds(row.step_ms),
                _trial_reason(row, view),
            )
            for row in view.recommendation.trials
            if row.kind != "predicted"  # a prediction is no trial
        ),
    )
