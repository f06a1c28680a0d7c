"""What a checkpoint call costs beside the replay itself: random states, detached inputs, a backward pass of its own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from autotune.trial.survey.timeline import Kind

_CALLS = 60
_ELEMENTS = 4


def checkpoint_own_ms() -> dict[Kind, float]:
    """Thread time of one of Megatron's checkpoint calls around next to nothing, over that of a plain call, by kind.

    Call it before the call sites are patched. It draws no random number and leaves no memory. Only where a step's price is
    the host's own time: on a GPU the host runs ahead of the device, or the region's events already wait for it.
    """
    import torch
    from megatron.core import tensor_parallel
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput

    source = torch.zeros(_ELEMENTS, device=torch.cuda.current_device()).requires_grad_()

    def twice(x: Any) -> Any:
        return x * 2

    def plain() -> Any:
        return twice(source) * 2

    def checkpointed() -> Any:
        return tensor_parallel.checkpoint(twice, False, source) * 2

    def without_output() -> Any:
        call = CheckpointWithoutOutput()
        result = call.checkpoint(twice, source) * 2
        call.discard_output_and_register_recompute(result)
        return result

    bare = _ms(plain, source)
    found: dict[Kind, float] = {"C": max(0.0, _ms(checkpointed, source) - bare)}
    with contextlib.suppress(Exception):  # Where its extension could not be compiled, the labels that need it fail by name.
        found["W"] = max(0.0, _ms(without_output, source) - bare)
    return found


def _ms(forward: Callable[[], Any], source: Any) -> float:
    times = []
    for _ in range(_CALLS):
        began = time.thread_time()
        forward().sum().backward()
        source.grad = None
        times.append(time.thread_time() - began)
    return median(times) * 1e3
