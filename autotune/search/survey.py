"""What a region survey tells the search: a peak and a price for every setting, and settings tried in the same process.

Nothing here is a pass: surveyed peaks are predictions with a narrow error, switched steps evidence of their own kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot
from statistics import median

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import AFTER_CAPTURE, PhasePeak, Prediction, StagePeak
from autotune.ledger.spread import standard_deviation
from autotune.search.candidate import Candidate
from autotune.search.held import ALLOCATOR_GAP_ERROR, held_prediction
from autotune.trial.record import TrialRecord

PEAK_ERROR = 0.002
"""Relative standard error of a surveyed peak (measured: 0.0 to 0.37 % on one rank, up to 0.83 % with free routing)."""
SAVING_ERROR = 0.005
"""Relative standard error of the bytes that a label saves."""
EXACT_PEAK_ERROR = 0.0005
EXACT_SAVING_ERROR = 0.001
"""The same where a launch counts the same bytes each time, as on a CPU: of 302 settings of five recipes none was off by more than
0.04 % in a fresh launch, under expert parallelism too (docs/survey.md)."""
_Z95 = 1.645


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedSetting:
    """One setting as the survey predicts it: the rank with the highest peak, and the price of its replays."""

    boundary: Boundary
    peak_bytes: int
    phases: Mapping[str, int]
    replay_ms: float
    replay_error_ms: float = 0.0
    replay_ms_by_label: Mapping[str, float] = field(default_factory=dict)
    frozen_peak_bytes: int | None = None
    """Peak of the one step that switched steps repeat; None where that is the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyFindings:
    """What one survey launch found.

    Attributes:
        base: The setting the survey ran under.
        settings: Every setting it could predict.
        switched: Records of kind "switched": settings the launch switched to; a failed one is where the launch ended.
        peak_error: Relative standard error of a setting's peak by itself, as it is known before any is compared.
        saving_error: Relative standard error of the bytes that a label saves, in all its settings alike.
        inert_labels: Labels without a region.
        base_step_ms: Steps of the base interleaved with those of the switched settings; empty where nothing was switched to.
        base_peak_bytes: Of the base's own steps, measured. The launch's record has the highest of all settings it ran.
    """

    base: Boundary
    settings: tuple[SurveyedSetting, ...]
    switched: tuple[TrialRecord, ...] = ()
    peak_error: float = PEAK_ERROR
    saving_error: float = SAVING_ERROR
    inert_labels: tuple[str, ...] = ()
    base_step_ms: tuple[float, ...] = ()
    base_peak_bytes: int | None = None

    @property
    def measured_bytes(self) -> dict[Boundary, int]:
        """Peaks that a launch of each setting that was switched to would have, by what its frozen step had."""
        whole = [r for r in self.switched if r.completed and r.ranks]
        peaks = {r.boundary: max(rank.allocated_peak_bytes for rank in r.ranks.values()) for r in whole}
        return {boundary: peak + self.other_steps_bytes(boundary) for boundary, peak in peaks.items()}

    def other_steps_bytes(self, boundary: Boundary) -> int:
        """How much higher a setting's highest step is predicted than the one that switched steps repeat."""
        setting = next((s for s in self.settings if s.boundary == boundary), None)
        return 0 if setting is None or setting.frozen_peak_bytes is None else setting.peak_bytes - setting.frozen_peak_bytes

    @property
    def surprise(self) -> float:
        """How many times farther off the switched peaks are than was claimed, at least 1."""
        measured, base = self.measured_bytes, self._base_bytes()
        misses = []
        for setting in self.settings:
            if setting.boundary in measured:
                off = abs(measured[setting.boundary] - setting.peak_bytes)
                moved = abs(setting.peak_bytes - base)
                misses.append(off / max(self.peak_error * setting.peak_bytes + self.saving_error * moved, 1.0))
        return max(1.0, (sum(miss**2 for miss in misses) / len(misses)) ** 0.5 if misses else 1.0)

    def _base_bytes(self) -> int:
        return next((s.peak_bytes for s in self.settings if s.boundary == self.base), 0)

    @property
    def price_error(self) -> float:
        """Relative standard error of a price (median over the settings), at least 3 %."""
        known = [s.replay_error_ms / s.replay_ms for s in self.settings if s.replay_ms > 0 and s.replay_error_ms > 0]
        return max(0.03, median(known)) if known else 0.1


def candidates_after_survey(
    candidates: Sequence[Candidate], findings: SurveyFindings, *, metric: str = "allocated"
) -> tuple[Candidate, ...]:
    """The candidates with the survey's predictions instead of the ledger's.

    A setting that the survey cannot tell from one with fewer labels has the same effect. One that it does not know keeps its
    status and loses its prediction: errors of two kinds are not mixed. What comes after a survey's steps stays the ledger's:
    the capture of graphs with the steps after it, each with the ledger's terms and so its errors, and what their pools reserve.
    """
    known = {s.boundary: s for s in findings.settings}
    labels = _prices_by_label(findings.settings)
    first: dict[tuple[object, ...], Boundary] = {}
    for candidate in sorted(candidates, key=lambda c: (len(c.boundary.modules), c.order)):
        surveyed = known.get(candidate.boundary)
        if surveyed is not None and candidate.status in ("distinct", "not_checkable"):
            first.setdefault(_effect(surveyed), candidate.boundary)
    after = []
    for candidate in candidates:
        surveyed = known.get(candidate.boundary)
        if surveyed is None or candidate.status not in ("distinct", "not_checkable"):
            after.append(replace(candidate, prediction=None) if candidate.prediction is not None else candidate)
            continue
        pool = candidate.prediction.graph_pool_bytes if candidate.prediction is not None else 0
        allocated = replace(_prediction(surveyed, findings.peak_error, labels), graph_pool_bytes=pool)
        prediction, same = held_prediction(allocated, metric), first[_effect(surveyed)]
        if candidate.prediction is not None:
            prediction = _with_after_capture(prediction, candidate.prediction, metric)
        if same == candidate.boundary:
            after.append(replace(candidate, prediction=prediction))
        else:
            reason = f"same peaks and replays as {same.key} in the survey"
            after.append(replace(candidate, prediction=prediction, status="same_as", same_as=same, reason=reason))
    return tuple(after)


def _effect(setting: SurveyedSetting) -> tuple[object, ...]:
    return (setting.peak_bytes, *sorted(setting.phases.items()), round(setting.replay_ms, 6))


def _prediction(setting: SurveyedSetting, error: float, labels: Mapping[str, float]) -> Prediction:
    peak = setting.peak_bytes
    phases = tuple(
        PhasePeak(iteration="steady", phase=name, peak_bytes=size, terms={"surveyed": size})
        for name, size in setting.phases.items()
    ) or (PhasePeak(iteration="steady", phase="backward", peak_bytes=peak, terms={"surveyed": peak}),)
    heavy = max(phases, key=lambda p: p.peak_bytes)
    own = dict(setting.replay_ms_by_label) or {label: labels[label] for label in setting.boundary.modules if label in labels}
    width = round(_Z95 * error * peak)
    return Prediction(
        peak_bytes=peak,
        peak_p05_bytes=peak - width,
        peak_p95_bytes=peak + width,
        phase=heavy.phase,
        stage=0,
        rank=0,
        stages=(StagePeak(stage=0, rank=0, peak_bytes=peak, phase=heavy.phase, phases=phases),),
        replay_ms=setting.replay_ms,
        replay_ms_by_label=own,
        notes=("surveyed",),
    )


def _with_after_capture(surveyed: Prediction, ledgers: Prediction, metric: str) -> Prediction:
    """A surveyed prediction, and the ledger's of the phases after capture; both of the bytes that are held."""
    after: dict[str, PhasePeak] = {}
    for point in (point for stage in ledgers.stages for point in stage.phases if point.iteration == AFTER_CAPTURE):
        if point.phase not in after or point.peak_bytes > after[point.phase].peak_bytes:
            after[point.phase] = point
    if not after:
        return surveyed
    gap = ALLOCATOR_GAP_ERROR if metric == "reserved" else 0.0
    widths = {p: _Z95 * hypot(standard_deviation(after[p].terms, balanced=False), gap * after[p].peak_bytes) for p in after}
    (stage,) = surveyed.stages
    phases = (*stage.phases, *after.values())
    heavy = max(phases, key=lambda p: p.peak_bytes)
    return replace(
        surveyed,
        peak_bytes=heavy.peak_bytes,
        peak_p05_bytes=max(surveyed.peak_p05_bytes, *(round(after[p].peak_bytes - width) for p, width in widths.items())),
        peak_p95_bytes=max(surveyed.peak_p95_bytes, *(round(after[p].peak_bytes + width) for p, width in widths.items())),
        phase=heavy.phase,
        stages=(replace(stage, peak_bytes=heavy.peak_bytes, phase=heavy.phase, phases=phases),),
        notes=(*surveyed.notes, "after capture: predicted by the ledger"),
    )


def _prices_by_label(settings: Sequence[SurveyedSetting]) -> dict[str, float]:
    """Price of each label alone: replays of a set add up, so these are what the sets' prices have in common."""
    return {s.boundary.modules[0]: s.replay_ms for s in settings if len(s.boundary.modules) == 1}
