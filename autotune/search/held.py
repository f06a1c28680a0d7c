"""What is held against the limit: allocated bytes, or with ``mem_metric`` reserved those plus what the allocator keeps.

The ledger counts allocated bytes. Reserved ones are more by cached blocks, which no formula gives, and by
the pools of CUDA graphs.
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot

from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak

ALLOCATOR_GAP = 0.052
"""Reserved over allocated peak, minus 1, before a launch told it: the mean of 19 public rows that report both (2.8 to 9.3 %)."""
ALLOCATOR_GAP_ERROR = 0.019
"""Standard deviation of those."""
_Z95 = 1.645


def held_prediction(
    prediction: Prediction, metric: str, *, gap: float = ALLOCATOR_GAP, error: float = ALLOCATOR_GAP_ERROR
) -> Prediction:
    """A prediction of allocated bytes as one of the bytes that are held against the limit.

    Args:
        prediction: Of allocated bytes.
        metric: ``allocated`` (nothing changes) or ``reserved``.
        gap: Share of the allocated peak that the allocator keeps beside it.
        error: Standard error of that share.
    """
    if metric != "reserved":
        return prediction
    pool = prediction.graph_pool_bytes
    stages = tuple(_held_stage(stage, gap, error, pool) for stage in prediction.stages)
    peak = round(prediction.peak_bytes * (1 + gap)) + pool
    below, above = (
        round(hypot((edge - prediction.peak_bytes) * (1 + gap), _Z95 * error * prediction.peak_bytes))
        for edge in (prediction.peak_p05_bytes, prediction.peak_p95_bytes)
    )
    return replace(prediction, peak_bytes=peak, peak_p05_bytes=peak - below, peak_p95_bytes=peak + above, stages=stages)


def _held_stage(stage: StagePeak, gap: float, error: float, pool: int) -> StagePeak:
    def held(peak_bytes: int) -> int:
        return round(peak_bytes * (1 + gap)) + pool

    def edge(edge_bytes: int | None, sign: int) -> int | None:
        if edge_bytes is None:
            return None
        width = hypot((edge_bytes - stage.peak_bytes) * (1 + gap), _Z95 * error * stage.peak_bytes)
        return held(stage.peak_bytes) + sign * round(width)

    phases = tuple(
        PhasePeak(
            iteration=p.iteration, phase=p.phase, peak_bytes=held(p.peak_bytes),
            terms={**p.terms, "allocator_gap": round(gap * p.peak_bytes), **({"graph_pools": pool} if pool else {})},
        )
        for p in stage.phases
    )  # fmt: skip
    return replace(
        stage, peak_bytes=held(stage.peak_bytes), phases=phases,
        peak_p05_bytes=edge(stage.peak_p05_bytes, -1), peak_p95_bytes=edge(stage.peak_p95_bytes, 1),
    )  # fmt: skip


def held_bytes(allocated_bytes: int, pool_bytes: int, metric: str) -> int:
    """The same of one peak: what a switched setting, of which only allocated bytes are known, would be taken for."""
    return allocated_bytes if metric != "reserved" else round(allocated_bytes * (1 + ALLOCATOR_GAP)) + pool_bytes
