"""What the linear modules share: parallel facts, weights made under the right random state.

Source: transformer_engine/pytorch/module/base.py:TransformerEngineBaseModule (reset_parameters, set_tensor_parallel_group)
at 2.17.1. Without FP8 its ``_extra_state`` is empty, so none is kept here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class BaseModule(torch.nn.Module):
    """Stands for ``transformer_engine.pytorch.module.base.TransformerEngineBaseModule``."""

    def __init__(
        self,
        tp_group: Any,
        tp_size: int,
        sequence_parallel: bool,
        parallel_mode: str | None,
        get_rng_state_tracker: Callable[[], Any] | None,
        rng_tracker_name: str | None,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = tp_size > 1 and sequence_parallel
        self.get_rng_state_tracker, self.rng_tracker_name = get_rng_state_tracker, rng_tracker_name
        self.fp8_meta: dict[str, Any] = {}

    def refuse(self, **settings: Any) -> None:
        """Name the settings that the stand-in does not do, rather than ignore them."""
        on = sorted(name for name, value in settings.items() if value)
        if on:
            raise NotImplementedError(f"the Transformer Engine stand-in has no {', '.join(on)}")

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Set the group after construction."""
        self.tp_group = tp_group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """Nothing to do without FP8."""

    def make_weight(
        self,
        shape: tuple[int, int],
        dtype: torch.dtype | None,
        device: torch.device | str,
        init_method: Callable[[Tensor], Any] | None,
        partition_dim: int,
    ) -> torch.nn.Parameter:
        """A weight drawn by ``init_method`` under the module's random state, with Megatron's partition attributes."""
        weight = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        tracker = self.get_rng_state_tracker() if self.get_rng_state_tracker is not None else None
        if tracker is None:
            fork: Any = contextlib.nullcontext()
        else:
            fork = tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()
        with fork, torch.no_grad():
            (init_method or torch.nn.init.xavier_normal_)(weight)
        self._mark(weight, partition_dim)
        return weight

    def make_bias(self, size: int, dtype: torch.dtype | None, device: torch.device | str) -> torch.nn.Parameter:
        """A bias of zeros; under row parallelism it is whole on each rank and its gradient follows the sequence."""
        bias = torch.nn.Parameter(torch.zeros(size, dtype=dtype, device=device))
        if self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel
        else:
            self._mark(bias, 0)
        return bias

    def _mark(self, parameter: torch.nn.Parameter, partition_dim: int) -> None:
        parameter.tensor_model_parallel = True
        parameter.partition_dim = partition_dim
        parameter.partition_stride = 1
