"""From the report of a survey launch to what the search takes of it."""

from __future__ import annotations

from autotune.search.survey import SurveyedSetting, SurveyFindings
from autotune.trial.record import TrialRecord
from autotune.trial.survey.launch import switched_records
from autotune.trial.survey.report import PredictedSetting, SurveyReport


def findings_of(report: SurveyReport, launch: TrialRecord) -> SurveyFindings:
    """Findings of a survey launch: every predicted setting, and the settings it switched to.

    Args:
        report: ``survey.json`` of the launch.
        launch: The launch's own record; switched records are numbered after it but are no launches.
    """
    return SurveyFindings(
        base=report.base,
        settings=tuple(_setting(setting) for setting in report.predicted),
        switched=tuple(switched_records(report, launch, launch.number)),
        inert_labels=report.inert_labels,
        base_step_ms=report.base_step_ms,
    )


def _setting(setting: PredictedSetting) -> SurveyedSetting:
    phases: dict[str, int] = {}
    for of_rank in setting.ranks.values():
        for phase, size in of_rank.items():
            phases[phase] = max(phases.get(phase, 0), size)
    return SurveyedSetting(
        boundary=setting.boundary,
        peak_bytes=setting.peak_bytes,
        phases=phases,
        replay_ms=setting.price.replay_ms,
        replay_error_ms=setting.price.standard_error_ms,
    )
