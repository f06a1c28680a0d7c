"""What a survey launch is to do, and from its report to what the search takes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import Checker
from autotune.engine.prepare import Prepared
from autotune.search.candidate import Candidate
from autotune.search.early_stop import widest_selective
from autotune.search.evidence import launchable
from autotune.search.survey import (
    EXACT_PEAK_ERROR,
    EXACT_SAVING_ERROR,
    PEAK_ERROR,
    SAVING_ERROR,
    SurveyedSetting,
    SurveyFindings,
)
from autotune.trial.record import TrialRecord
from autotune.trial.survey.launch import switched_records
from autotune.trial.survey.plan import SurveyPlan, followed_steps_of, margin_of, not_surveyable
from autotune.trial.survey.report import PredictedSetting, SurveyReport


def plan_of_survey(prepared: Prepared, limit_bytes: int | None, *, launch_steps: int) -> SurveyPlan | str:
    """What a survey of a workload is to do; or why there can be none.

    Args:
        prepared: The workload with its candidates.
        limit_bytes: Memory of a rank.
        launch_steps: Of an ordinary launch. Where experts are spread over ranks each step routes its own tokens, so the survey
            follows all of them; else every step moves the same bytes.
    """
    refused = not_surveyable(prepared.workload)
    if refused is not None:
        return refused
    passed_over = labels_passed_over(prepared)
    free = {label for label in passed_over if lowers_a_peak(prepared.candidates, label)}
    captured = {label: reason for label, reason in passed_over.items() if label not in free}
    candidates = without_labels(prepared.candidates, captured)
    boundaries = [c.boundary for c in launchable(candidates)]
    full = [b for b in boundaries if b.granularity == "full"]
    if full and Boundary.full("uniform", 1) not in full:
        why = next((c.reason for c in candidates if c.boundary == Boundary.full("uniform", 1)), "") or "it is not in the space"
        return f"full recompute is priced under full/uniform/1, which cannot run here: {why}"
    labels = labels_valid_together(candidates)
    if not labels:
        left_out = "; ".join(dict.fromkeys(captured.values()))
        return "the space has no label to switch" + (f": {left_out}" if left_out else "")
    known = [b for b in boundaries if set(b.modules) <= set(labels)]
    return SurveyPlan(
        labels=labels,
        candidates=tuple(known),
        limit_bytes=limit_bytes,
        margin=margin_of(prepared.workload),
        followed_steps=followed_steps_of(prepared.workload, launch_steps),
        full=bool(full),
        captured=captured,
        warmup_only=tuple(sorted(free & set(labels))),
    )


def labels_passed_over(prepared: Prepared) -> dict[str, str]:
    """Labels whose checkpoints all lie inside captured scopes that run without them, each with the rule's own words."""
    checker = Checker.of(prepared.workload, prepared.architecture)
    found = {}
    for label in sorted({label for c in launchable(prepared.candidates) for label in c.boundary.modules}):
        notes = checker.check(Boundary.selective([label])).findings
        reasons = [note.message for note in notes if note.rule == "inert_after_capture"]
        if reasons:
            found[label] = reasons[0]
    return found


def lowers_a_peak(candidates: Sequence[Candidate], label: str) -> bool:
    """Whether a set of labels has, or may have, a lower peak with a label than without it: in the eager steps before capture.

    By more than a survey's own error; of labels that save less it could not tell.
    """
    predicted = {c.boundary: c.prediction for c in launchable(candidates)}
    for boundary, having in predicted.items():
        if label in boundary.modules:
            lacking = predicted.get(_without(boundary, [label]))
            if having is None or lacking is None:
                return True
            least = PEAK_ERROR * lacking.peak_bytes
            if max(lacking.peak_bytes - having.peak_bytes, lacking.peak_p95_bytes - having.peak_p95_bytes) > least:
                return True
    return False


def without_labels(candidates: Sequence[Candidate], captured: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The candidates, those with labels that do nothing after capture as the same as the set without them."""
    known = {c.boundary for c in launchable(candidates)}
    after = []
    for candidate in candidates:
        plain = _without(candidate.boundary, captured)
        if plain == candidate.boundary or candidate.boundary not in known or plain not in known:
            after.append(candidate)
            continue
        reason = "; ".join(captured[label] for label in candidate.boundary.modules if label in captured)
        after.append(replace(candidate, status="same_as", same_as=plain, reason=f"as {plain.key}: {reason}"))
    return tuple(after)


def labels_valid_together(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """All labels of the space; where they are refused together, those of the widest set that is not."""
    union = tuple(sorted({label for c in launchable(candidates) for label in c.boundary.modules}))
    if any(c.status == "invalid" and set(c.boundary.modules) == set(union) for c in candidates):
        widest = widest_selective(candidates)
        return widest.modules if widest is not None else ()
    return union


def _without(boundary: Boundary, labels: Iterable[str]) -> Boundary:
    if boundary.granularity != "selective":
        return boundary
    return Boundary.selective(label for label in boundary.modules if label not in set(labels))


def findings_of(report: SurveyReport, launch: TrialRecord, *, to_the_bit: bool) -> SurveyFindings:
    """Findings of a survey launch: every predicted setting, and the settings it switched to.

    Args:
        report: ``survey.json`` of the launch.
        launch: The launch's own record; switched records are numbered after it but are no launches.
        to_the_bit: Whether the backend's launches repeat each other, in bytes too.
    """
    return SurveyFindings(
        base=report.base,
        settings=tuple(_setting(setting) for setting in report.predicted),
        switched=tuple(switched_records(report, launch, launch.number)),
        peak_error=EXACT_PEAK_ERROR if to_the_bit else PEAK_ERROR,
        saving_error=EXACT_SAVING_ERROR if to_the_bit else SAVING_ERROR,
        inert_labels=report.inert_labels,
        base_step_ms=report.base_step_ms,
        base_peak_bytes=max((max(phases.values()) for phases in report.base_measured.values()), default=None),
    )


def _setting(setting: PredictedSetting) -> SurveyedSetting:
    phases: dict[str, int] = {}
    for of_rank in setting.ranks.values():
        for phase, size in of_rank.items():
            phases[phase] = max(phases.get(phase, 0), size)
    return SurveyedSetting(
        boundary=setting.boundary,
        peak_bytes=setting.peak_bytes,
        frozen_peak_bytes=setting.frozen_peak_bytes,
        phases=phases,
        replay_ms=setting.price.replay_ms,
        replay_error_ms=setting.price.standard_error_ms,
    )
