"""Tables of a survey launch: what one instrumented launch predicts of every setting, beside what it switched to."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from autotune.boundary.boundary import Boundary
from autotune.report.run_view import RunView
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, milliseconds, off, percent, size

if TYPE_CHECKING:
    from autotune.trial.survey.report import PredictedSetting, SurveyReport


def by_replay(survey: SurveyReport) -> tuple[PredictedSetting, ...]:
    """Every surveyed setting, the cheapest first."""
    return tuple(sorted(survey.predicted, key=lambda setting: (setting.price.replay_ms, setting.peak_bytes)))


def survey_reason(survey: SurveyReport) -> str:
    """What a survey launch is, and how far to trust this one."""
    failed = [guard for guard in survey.guards if not guard.passed]
    text = "one launch that prices every setting and tries the cheapest; no pass by itself; "
    text += f"{len(survey.guards) - len(failed)} of {len(survey.guards)} guards passed"
    text += "".join(f"; not {guard.name.replace('_', ' ')}: {guard.detail}" for guard in failed)
    return text + (f"; it ended while it tried {boundary_name(survey.trying)}" if survey.trying is not None else "")


def surveyed_fits(view: RunView, most: int) -> Table:
    """The cheapest surveyed settings that are predicted to fit, after capture too where graphs are captured."""
    survey, limit_bytes = view.survey, view.recommendation.mem_target_bytes
    assert survey is not None
    after = _after_capture(view)
    found = [
        setting
        for setting in by_replay(survey)
        if setting.peak_bytes * (1 + survey.margin) <= limit_bytes and after.get(setting.boundary, 0) <= limit_bytes
    ]
    note = f"Cheapest first, as the survey predicts them, at least {percent(survey.margin)} under the limit."
    return Table(
        title="Settings that fit by prediction",
        note=f"{note} {_EAGER}, and is within the limit, too." if after else f"{note} {_not_measured(survey)}".strip(),
        columns=("setting", "peak", "after capture", "replay"),
        rows=tuple(
            (
                boundary_name(one.boundary),
                size(one.peak_bytes),
                size(after.get(one.boundary)),
                milliseconds(one.price.replay_ms, signed=True),
            )
            for one in found[:most]
        ),
        narrow=("setting", "peak", "replay"),
    )


_EAGER = "The survey's peaks are of eager steps; that after the capture of CUDA graphs is predicted by the ledger"
_UNKNOWN = "All peaks are of eager steps; those after the capture of CUDA graphs were not measured"


def _not_measured(survey: SurveyReport) -> str:
    return f"{_UNKNOWN}." if survey.after_capture == "not measured" else ""


def _after_capture(view: RunView) -> dict[Boundary, int]:
    """What the ledger predicts from the capture on, where the survey ended before it."""
    if view.survey is None or view.survey.after_capture == "no graphs" or view.plan is None:
        return {}
    rows = view.plan.candidates
    return {Boundary.from_fields(row.boundary): row.after_capture_bytes for row in rows if row.after_capture_bytes is not None}


def survey_table(view: RunView) -> Table:
    """Every setting: predicted from the recorded steps, and measured where the launch switched to it."""
    survey = view.survey
    after = _after_capture(view)
    rows = []
    for setting in by_replay(survey) if survey is not None else ():
        assert survey is not None
        switched = survey.measurement(setting.boundary)
        rows.append(
            (
                boundary_name(setting.boundary),
                size(setting.peak_bytes),
                str(setting.rank),
                setting.phase.replace("_", " "),
                size(after.get(setting.boundary)),
                milliseconds(setting.price.replay_ms, signed=True),
                f"{setting.price.standard_error_ms:.1f} ms",
                *(
                    (UNKNOWN,) * 3
                    if switched is None
                    else (
                        size(switched.peak_bytes),
                        off(switched.peak_bytes, setting.frozen_peak_bytes),
                        milliseconds(median(switched.step_ms)) if switched.step_ms else UNKNOWN,
                    )
                ),
            )
        )
    unseen = f" {_EAGER}." if after else f" {_not_measured(survey)}".rstrip() if survey is not None else ""
    return Table(
        title="Survey of every setting",
        note="Cheapest first. Peak and replay are predicted from recorded steps, of which the highest counts; the switched peak "
        "and step were measured in the same launch, which is no launch of that setting's own. Those steps repeat the last "
        f"recorded one, so the difference is from what is predicted of that.{unseen}",
        columns=(
            "setting",
            "predicted peak",
            "hot rank",
            "phase",
            "after capture",
            "replay",
            "its error",
            "switched peak",
            "difference",
            "switched step",
        ),
        rows=tuple(rows),
    )
