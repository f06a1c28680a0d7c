"""The predict backend: the ledger's word on one boundary, in the form of a record. Never a measurement."""

from __future__ import annotations

from collections.abc import Callable

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import Prediction
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.record import Kind, RankRecord, TrialRecord


class PredictBackend:
    """Asks the ledger.

    Args:
        predict: The prediction of a boundary (``Ledger.predict``).
    """

    name = "predict"
    kind: Kind = "predicted"
    to_the_bit = True
    free = True

    def __init__(self, predict: Callable[[Boundary], Prediction]) -> None:
        self._predict = predict

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        """A second prediction says nothing new."""
        return None if run_index == 0 else "a prediction repeated is the same prediction"

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        """Predict one boundary: one entry a pipeline stage, under the stage's first rank."""
        reason = self.lacks(request.boundary, request.run_index)
        if reason is not None:
            raise LookupError(reason)
        prediction = self._predict(request.boundary)
        ranks = {}
        for stage in prediction.stages:
            phases: dict[str, int] = {}
            for point in stage.phases:
                phases[point.phase] = max(phases.get(point.phase, 0), point.peak_bytes)
            ranks[stage.rank] = RankRecord(rank=stage.rank, allocated_peak_bytes=stage.peak_bytes, phases=phases)
        return TrialRecord(
            number=request.number,
            kind=self.kind,
            boundary=request.boundary,
            workload_digest=request.workload_digest,
            world_size=request.world_size,
            completed=True,
            ranks=ranks,
            repeat_reason=request.repeat_reason,
            details={
                "peak_p05_bytes": prediction.peak_p05_bytes,
                "peak_p95_bytes": prediction.peak_p95_bytes,
                "replay_ms": prediction.replay_ms,
                "phase": prediction.phase,
                "notes": list(prediction.notes),
            },
        )

    def close(self) -> None:
        """Nothing is held."""
