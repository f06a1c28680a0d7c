"""Which checkpoints still run inside a captured CUDA graph."""

from __future__ import annotations

from autotune.boundary.labels import LABELS
from autotune.boundary.revision import CHECKPOINT_SKIPS_CAPTURE, resolve_revision
from autotune.workload.workload import Workload

THROUGH_TE_WHEN_QUANTIZED = frozenset({"mlp", "moe", "shared_experts"})
"""Labels whose region runs through Transformer Engine's checkpoint under FP8 and FP4 (transformer_layer.py:868-880,
moe_layer.py:516-526 and 701-712 at 2a75ac12). It knows nothing of Megatron's capture and checkpoints there too."""


def checkpoints_in_capture(workload: Workload) -> frozenset[str]:
    """Labels of checkpoint regions that a capture records with their replay, instead of running the plain function.

    ``tensor_parallel.checkpoint`` steps aside during graph warm-up and capture (tensor_parallel/random.py:checkpoint at
    2a75ac12); before ada8dfe6 it did not, and Transformer Engine's checkpoint, which quantized models take, never does.
    """
    if not resolve_revision(workload.stack.megatron_core).has(CHECKPOINT_SKIPS_CAPTURE):
        return frozenset(name for name, label in LABELS.items() if label.mechanism == "checkpoint")
    return THROUGH_TE_WHEN_QUANTIZED if workload.precision.fp8 or workload.precision.fp4 else frozenset()
