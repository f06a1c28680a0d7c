"""What replaying costs in time: for each label and layer the larger of GPU roofline and host time.

The efficiencies and host constants are measured orders of magnitude, not fits: a large BF16 GEMM reaches about 45 % of the
data-sheet rate inside a training step, an elementwise kernel about 78 % of the HBM rate; on the host a checkpoint costs
0.25 ms (RNG state get and set, tracker copy, contexts, a nested backward), a Transformer Engine module 0.12 ms, a small
operation 0.012 ms (two H100 recipes, docs/decisions/031). Where records give times, calibration replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.ledger.ops import Layer, Op

_GEMM_EFFICIENCY = 0.455
_HBM_EFFICIENCY = 0.78
_A2A_SHARE_OF_NVLINK = 0.45
_TP_SHARE_OF_NVLINK = 0.67
_CHECKPOINT_MS = 0.25
_MODULE_MS = 0.12
_SMALL_OP_MS = 0.012


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one GPU in units per millisecond."""

    flop: float
    hbm_bytes: float
    a2a_bytes: float
    tp_bytes: float

    @classmethod
    def of(cls, *, flop_per_s: float, hbm_bytes_per_s: float, nvlink_bytes_per_s: float) -> Rates:
        """From data-sheet figures (dense FLOP/s of the compute dtype; NVLink in one direction)."""
        return cls(
            flop=_GEMM_EFFICIENCY * flop_per_s / 1e3,
            hbm_bytes=_HBM_EFFICIENCY * hbm_bytes_per_s / 1e3,
            a2a_bytes=_A2A_SHARE_OF_NVLINK * nvlink_bytes_per_s / 1e3,
            tp_bytes=_TP_SHARE_OF_NVLINK * nvlink_bytes_per_s / 1e3,
        )


def forward_ms(ops: Iterable[Op], rates: Rates, *, host: bool, checkpoints: int) -> float:
    """Time to run the operations forward once more."""
    ops = tuple(ops)
    gpu = sum(
        op.work.flop / rates.flop
        + op.work.moved_bytes / rates.hbm_bytes
        + op.work.a2a_bytes / rates.a2a_bytes
        + op.work.tp_bytes / rates.tp_bytes
        for op in ops
    )
    if not host:
        return gpu
    return max(
        gpu, checkpoints * _CHECKPOINT_MS + sum(op.work.modules * _MODULE_MS + op.work.small_ops * _SMALL_OP_MS for op in ops)
    )


def label_ms(layer: Layer, labels: frozenset[str], rates: Rates) -> dict[str, float]:
    """Replay time of one layer by label; a nested label is replayed once more, inside its parent's replay too."""
    out: dict[str, float] = {}
    for label in sorted(labels & layer.labels):
        ops = layer.region_ops(label)
        if ops:
            sites = sum(region.label == label for region in layer.regions)
            out[label] = forward_ms(ops, rates, host=True, checkpoints=sites)
    return out
