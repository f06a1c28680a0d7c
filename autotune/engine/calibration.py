"""From records to a calibrated ledger, and each trial's prediction against its measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.ledger.calibration import CalibratedLedger, Calibration, Observation, phase_peaks
from autotune.ledger.ledger import Ledger
from autotune.trial.gates import peaks_bytes
from autotune.trial.record import TrialRecord
from autotune.units import format_gb
from autotune.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """One trial's peak as it was predicted and as it was measured. ``details.prediction`` of its record.

    Attributes:
        predicted_bytes: By the ledger alone.
        calibrated_bytes: By the ledger and all trials before this one; None for the first.
        error_ratio: Of the better informed of the two, against the measurement.
        phases: Phase -> its predicted (as ``error_ratio``) and measured bytes.
    """

    measured_bytes: int
    predicted_bytes: int
    calibrated_bytes: int | None
    error_ratio: float
    phases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """For the line of a trial."""
        by = "predicted" if self.calibrated_bytes is None else "predicted after the trials before"
        said = self.predicted_bytes if self.calibrated_bytes is None else self.calibrated_bytes
        return f"{by} {format_gb(said)}, measured {format_gb(self.measured_bytes)} ({100 * self.error_ratio:+.2f} %)"


class Calibrator:
    """Learns from records in the order in which they are taken."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._observations: list[Observation] = []
        self._calibrated = CalibratedLedger(ledger)

    @property
    def calibration(self) -> Calibration:
        """What the records taken so far say."""
        return self._calibrated.calibration

    def error(self, record: TrialRecord) -> PredictionError | None:
        """The prediction made before this record against it; None where it has no whole peak or is itself a prediction."""
        seen = observation_of(record, self._ledger.workload)
        if seen is None or seen.peak_bytes is None:
            return None
        predicted = phase_peaks(self._ledger.predict(record.boundary), seen.iterations)
        if not predicted:
            return None
        informed = self.calibration.observations > 0
        known = phase_peaks(self._calibrated.predict(record.boundary), seen.iterations) if informed else predicted
        best = max(known.values())
        return PredictionError(
            measured_bytes=seen.peak_bytes,
            predicted_bytes=max(predicted.values()),
            calibrated_bytes=best if informed else None,
            error_ratio=best / seen.peak_bytes - 1,
            phases={
                phase: {"predicted_bytes": known[phase], "measured_bytes": size}
                for phase, size in seen.phases.items()
                if phase in known
            },
        )

    def take(self, record: TrialRecord) -> None:
        """Learn from a record."""
        seen = observation_of(record, self._ledger.workload)
        if seen is not None:
            self._observations.append(seen)
            self._calibrated = CalibratedLedger(self._ledger, self._observations)


def observation_of(record: TrialRecord, workload: Workload) -> Observation | None:
    """What a record tells the ledger; None where it tells nothing or is no measurement."""
    if record.kind == "predicted" or not record.ranks:
        return None
    peaks = peaks_bytes(record)
    whole = record.completed and record.failure is None and bool(peaks)
    phases: dict[str, int] = {}
    for rank in record.ranks.values():
        for phase, size in rank.phases.items():
            phases[phase] = max(phases.get(phase, 0), size)
    return Observation(
        boundary=record.boundary,
        peak_bytes=max(peaks.values()) if whole else None,
        phases=phases if whole else {},
        iterations=_iterations(record, workload),
        usable_bytes=_usable_bytes(record, workload),
        load_factor=_load_factor(record),
    )


def _iterations(record: TrialRecord, workload: Workload) -> tuple[str, ...]:
    """Which kinds of iteration ran; records that do not count their steps ran more than one."""
    features = workload.features
    if record.steps_run == 1:
        return ("first",)
    captured = features.cuda_graph_impl != "none" and record.steps_run > features.cuda_graph_warmup_steps
    return ("first", "steady", *(("after_capture",) if captured else ()))


def _usable_bytes(record: TrialRecord, workload: Workload) -> int | None:
    """Most that tensors can have: the device less what is used outside the allocator, and less than what did not fit."""
    limits: list[int] = []
    failure = record.failure
    if failure is not None and failure.rank is not None and failure.failure_class.startswith("oom"):
        failed = record.ranks.get(failure.rank)
        limits += [failed.allocated_peak_bytes + (failure.requested_bytes or 0)] if failed is not None else []
    if record.details.get("backend") != "cpu":
        from autotune.workload.gpu import load_gpu

        total = load_gpu(workload.hardware.gpu).device_memory_bytes
        limits += [
            total - max(0, rank.device_used_bytes - rank.reserved_peak_bytes)
            for rank in record.ranks.values()
            if rank.device_used_bytes is not None and rank.reserved_peak_bytes is not None
        ]
    return min(limits, default=None)


def _load_factor(record: TrialRecord) -> float | None:
    """Tokens of the hottest expert rank over the mean; None where not every rank reported them."""
    counts = [sum(rank.tokens_per_expert) for rank in record.ranks.values() if rank.tokens_per_expert]
    if len(counts) < 2 or len(counts) != record.world_size or not sum(counts):
        return None
    return max(counts) * len(counts) / sum(counts)
