"""Calibration of the ledger by what trials measured: one offset for each phase, one for the phases not seen, and the limits
that only a device shows.

One control takes the bytes that no formula knows (allocator, contexts, objects awaiting collection) out of all settings of a
workload; a second observation that binds in another phase gives that phase its own. More is not identifiable from a few
runs, so nothing is fitted for a label. Pure: trials come in as ``Observation``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak

TERM = "calibration"
"""The term group that carries an offset in a calibrated prediction; it may be negative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one trial showed of one boundary.

    Attributes:
        peak_bytes: Highest peak of any rank; None where the trial ended before its peak was known.
        phases: Highest peak of each phase over all ranks, where phases were reported.
        iterations: Which kinds of iteration it ran: ``first``, ``steady``, ``after_capture``.
        usable_bytes: Most that tensors can have on its device.
        load_factor: Tokens of the hottest expert rank over the mean of all.
    """

    boundary: Boundary
    peak_bytes: int | None = None
    phases: Mapping[str, int] = field(default_factory=dict)
    iterations: tuple[str, ...] = ("first", "steady")
    usable_bytes: int | None = None
    load_factor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the observations say. ``phase_offsets_bytes`` holds phases that were seen; ``offset_bytes`` is for all others."""

    offset_bytes: int = 0
    phase_offsets_bytes: Mapping[str, int] = field(default_factory=dict)
    usable_bytes: int | None = None
    load_factor: float | None = None
    observations: int = 0

    def offset(self, phase: str) -> int:
        """Bytes to add to a predicted phase."""
        return self.phase_offsets_bytes.get(phase, self.offset_bytes)

    def apply(self, prediction: Prediction) -> Prediction:
        """The prediction with every phase moved by its offset. Bounds move with the peak; their width is the ledger's."""
        if not self.observations:
            return prediction
        stages = tuple(self._stage(stage) for stage in prediction.stages)
        worst = max(stages, key=lambda stage: stage.peak_bytes)
        moved = worst.peak_bytes - prediction.peak_bytes
        return replace(
            prediction,
            peak_bytes=worst.peak_bytes,
            peak_p05_bytes=prediction.peak_p05_bytes + moved,
            peak_p95_bytes=prediction.peak_p95_bytes + moved,
            phase=worst.phase,
            stage=worst.stage,
            rank=worst.rank,
            stages=stages,
        )

    def _stage(self, stage: StagePeak) -> StagePeak:
        phases = tuple(self._phase(peak) for peak in stage.phases)
        top = max(phases, key=lambda peak: peak.peak_bytes, default=None)
        peak_bytes = top.peak_bytes if top is not None else stage.peak_bytes + self.offset(stage.phase)
        moved = peak_bytes - stage.peak_bytes
        return replace(
            stage,
            phases=phases,
            peak_bytes=peak_bytes,
            phase=top.phase if top is not None else stage.phase,
            peak_p05_bytes=None if stage.peak_p05_bytes is None else stage.peak_p05_bytes + moved,
            peak_p95_bytes=None if stage.peak_p95_bytes is None else stage.peak_p95_bytes + moved,
        )

    def _phase(self, peak: PhasePeak) -> PhasePeak:
        offset = self.offset(peak.phase)
        return replace(peak, peak_bytes=peak.peak_bytes + offset, terms={**peak.terms, TERM: offset})


def phase_peaks(prediction: Prediction, iterations: Sequence[str]) -> dict[str, int]:
    """Highest peak of each phase over all stages, in the given kinds of iteration."""
    found: dict[str, int] = {}
    for stage in prediction.stages:
        for peak in stage.phases:
            if peak.iteration in iterations:
                found[peak.phase] = max(found.get(peak.phase, 0), peak.peak_bytes)
    return found


class CalibratedLedger:
    """A ledger that observations correct; predicts as ``Ledger`` does.

    Args:
        ledger: The ledger; where observations tell how uneven routing is, another load factor takes its place.
        observations: What trials showed so far.

    Example:
        >>> control = Observation(boundary=Boundary.selective(), peak_bytes=36_618_000_000)
        >>> CalibratedLedger(ledger, [control]).predict(Boundary.selective(["moe_act"]))  # doctest: +SKIP
    """

    def __init__(self, ledger: Ledger, observations: Iterable[Observation] = ()) -> None:
        seen = tuple(observations)
        loads = [one.load_factor for one in seen if one.load_factor is not None]
        load = max(loads, default=None)
        if load is not None and load != ledger.load_factor:
            variant = "stand_in" if ledger.context.stand_in else "te"
            ledger = Ledger(ledger.workload, load_factor=load, variant=variant)  # type: ignore[arg-type]
        self.ledger = ledger
        offsets = _residuals(ledger, seen)
        medians = {phase: round(median(found)) for phase, found in offsets.items()}
        limits = [one.usable_bytes for one in seen if one.usable_bytes is not None]
        self.calibration = Calibration(
            offset_bytes=round(median(medians.values())) if medians else 0,
            phase_offsets_bytes=medians,
            usable_bytes=min(limits, default=None),
            load_factor=load,
            observations=sum(one.peak_bytes is not None for one in seen),
        )

    def predict(self, boundary: Boundary) -> Prediction:
        """The calibrated prediction."""
        return self.calibration.apply(self.ledger.predict(boundary))


def _residuals(ledger: Ledger, observations: Iterable[Observation]) -> dict[str, list[int]]:
    """Measured minus predicted bytes by phase. A trial without phases speaks of the phase that should have set its peak."""
    out: dict[str, list[int]] = {}
    for seen in observations:
        if seen.peak_bytes is None:
            continue
        predicted = phase_peaks(ledger.predict(seen.boundary), seen.iterations)
        if not predicted:
            continue
        measured = {phase: size for phase, size in seen.phases.items() if phase in predicted}
        if not measured:
            measured = {max(predicted, key=lambda phase: predicted[phase]): seen.peak_bytes}
        for phase, size in measured.items():
            out.setdefault(phase, []).append(size - predicted[phase])
    return out
