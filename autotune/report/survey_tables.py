"""Tables of a survey launch: what one instrumented launch predicts of every setting, beside what it switched to."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from autotune.report.run_view import RunView
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, milliseconds, off, percent, size
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


def surveyed_fits(survey: SurveyReport, limit_bytes: int, most: int) -> Table:
    """The cheapest surveyed settings that are predicted to fit."""
    found = [setting for setting in by_replay(survey) if setting.peak_bytes * (1 + survey.margin) <= limit_bytes]
    return Table(
        title="Settings that fit by prediction",
        note=f"Cheapest first, as the survey predicts them, at least {percent(survey.margin)} under the limit.",
        columns=("setting", "peak", "replay"),
        rows=_priced(found[:most]),
    )


def _priced(settings: Sequence[PredictedSetting]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (boundary_name(one.boundary), size(one.peak_bytes), milliseconds(one.price.replay_ms, signed=True)) for one in settings
    )


def survey_table(view: RunView) -> Table:
    """Every setting: predicted from the recorded step, and measured where the launch switched to it."""
    survey = view.survey
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
                milliseconds(setting.price.replay_ms, signed=True),
                f"{setting.price.standard_error_ms:.1f} ms",
                *(
                    (UNKNOWN,) * 3
                    if switched is None
                    else (
                        size(switched.peak_bytes),
                        off(switched.peak_bytes, setting.peak_bytes),
                        milliseconds(median(switched.step_ms)) if switched.step_ms else UNKNOWN,
                    )
                ),
            )
        )
    return Table(
        title="Survey of every setting",
        note="Cheapest first. Peak and replay are predicted from one recorded step; the switched peak and step were measured in "
        "the same launch, which is no launch of that setting's own.",
        columns=(
            "setting",
            "predicted peak",
            "hot rank",
            "phase",
            "replay",
            "its error",
            "switched peak",
            "difference",
            "switched step",
        ),
        rows=tuple(rows),
    )
