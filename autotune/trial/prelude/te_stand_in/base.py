"""What the linear modules share: their arguments, parallel facts, weights made under the right random state.

Source: transformer_engine/pytorch/module/base.py:TransformerEngineBaseModule (reset_parameters, set_tensor_parallel_group)
at 2.17.1. Without FP8 its ``_extra_state`` is empty, so none is kept here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_REFUSED = ("ub_overlap", "single_grouped")
"""Beginnings of arguments that change what a module does: user buffers, one weight for all experts."""


class BaseModule(torch.nn.Module):
    """Stands for ``transformer_engine.pytorch.module.base.TransformerEngineBaseModule``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: torch.device | str = "cuda",
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        **other: Any,
    ) -> None:
        super().__init__()
        self.refuse(delay_wgrad_compute=delay_wgrad_compute, **{k: v for k, v in other.items() if k.startswith(_REFUSED)})
        self.tp_group, self.tp_size, self.parallel_mode = tp_group, tp_size, parallel_mode
        self.sequence_parallel = tp_size > 1 and sequence_parallel
        self.get_rng_state_tracker, self.rng_tracker_name = get_rng_state_tracker, rng_tracker_name
        column, row = parallel_mode == "column", parallel_mode == "row"
        self.in_features, self.out_features = in_features // (tp_size if row else 1), out_features // (tp_size if column else 1)
        self.use_bias, self.return_bias, self.apply_bias = bias, return_bias, bias and not return_bias
        self.fuse_wgrad_accumulation, self.save_original_input = fuse_wgrad_accumulation, save_original_input
        self.params_dtype, self.init_device, self.init_method = params_dtype, device, init_method
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

    def make_weight(self) -> torch.nn.Parameter:
        """A weight ``[out, in]`` drawn under the module's random state, with Megatron's partition attributes."""
        weight = torch.nn.Parameter(self._empty(self.out_features, self.in_features))
        tracker = self.get_rng_state_tracker() if self.get_rng_state_tracker is not None else None
        if tracker is None:
            fork: Any = contextlib.nullcontext()
        else:
            fork = tracker.fork(self.rng_tracker_name) if self.rng_tracker_name else tracker.fork()
        with fork, torch.no_grad():
            (self.init_method or torch.nn.init.xavier_normal_)(weight)
        self._mark(weight, 1 if self.parallel_mode == "row" else 0)
        return weight

    def make_bias(self) -> torch.nn.Parameter | None:
        """A bias of zeros, if any; under row parallelism it is whole on each rank and its gradient follows the sequence."""
        if not self.use_bias:
            return None
        bias = torch.nn.Parameter(self._empty(self.out_features).zero_())
        if self.parallel_mode == "row":
            bias.sequence_parallel = self.sequence_parallel
        else:
            self._mark(bias, 0)
        return bias

    def _empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.params_dtype, device=self.init_device)

    def _mark(self, parameter: torch.nn.Parameter, partition_dim: int) -> None:
        parameter.tensor_model_parallel = True
        parameter.partition_dim = partition_dim
        parameter.partition_stride = 1
