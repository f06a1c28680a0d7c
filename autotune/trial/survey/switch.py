"""Checkpoint call sites that can be real or transparent, by choice, at run time.

The model is built with every jointly valid label on. Each call site of Megatron Core then asks here whether its label is
in the setting of the moment: if so Megatron's own checkpoint runs, else the function runs directly. Full recompute is
read by the transformer block at each forward (transformer_block.py:TransformerBlock.forward,
hybrid_block.py:HybridStack.forward), so it is switched on the configuration.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.call_sites import LAYER, MTP_LAYER, CallSites
from autotune.trial.survey.freeze import Freezer
from autotune.trial.survey.recorder import Recorder

_REGION = "_autotune_region"


class Switch:
    """Owns the patches of one process.

    Attributes:
        unknown: Call sites that ran and whose label is not known, by name; they stay real under every setting.
    """

    def __init__(self, freezer: Freezer) -> None:
        import megatron.core

        self._freezer = freezer

        self._sites = CallSites(Path(next(iter(megatron.core.__path__))))
        self._labels: dict[CodeType, str | None] = {}
        self._active: frozenset[str] = frozenset()
        self._recorder: Recorder | None = None
        self._blocks: list[Any] = []
        self.boundary = Boundary.selective()
        self.unknown: set[str] = set()

    @property
    def shares_storage(self) -> bool:
        """Whether a restored output shares the recomputed storage here, or is copied (before Megatron Core 0.17)."""
        from megatron.core.tensor_parallel import random

        return hasattr(random, "_get_share_storage")

    def install(self, chunks: Iterable[Any]) -> None:
        """Patch the call sites and find the blocks of the model; the setting is then that of ``set``."""
        from megatron.core import tensor_parallel
        from megatron.core.pipeline_parallel import schedules
        from megatron.core.tensor_parallel import random

        checkpoint = self._checkpoint(random.checkpoint)
        tensor_parallel.checkpoint = random.checkpoint = checkpoint
        without_output = random.CheckpointWithoutOutput
        without_output.checkpoint = self._checkpoint_without_output(without_output.checkpoint)
        without_output.discard_output_and_register_recompute = self._discard(without_output.discard_output_and_register_recompute)
        schedules.forward_step = self._forward_step(schedules.forward_step)
        schedules.backward_step = self._backward_step(schedules.backward_step)
        self._chunks = list(chunks)
        for block in blocks_of(self._chunks):
            self._blocks.append(block)
            for layer in block.layers:
                layer.forward = self._layer_forward(layer, layer.forward)

    def set(self, boundary: Boundary) -> None:
        """Make a setting real from the next step on."""
        self.boundary = boundary
        full = boundary.granularity == "full"
        self._active = frozenset({LAYER, MTP_LAYER}) if full else frozenset(boundary.modules)
        for block in self._blocks:
            config = block.config
            config.recompute_granularity = "full" if full else "selective"
            config.recompute_method = boundary.method
            config.recompute_num_layers = boundary.num_layers

    def record(self, recorder: Recorder | None) -> None:
        """Let a recorder see the next step, or none."""
        self._recorder = recorder

    def _label(self, code: CodeType) -> str | None:
        if code not in self._labels:
            self._labels[code] = self._sites.label_of(code)
            if self._labels[code] is None:
                self.unknown.add(f"{Path(code.co_filename).name}:{code.co_qualname}")
        return self._labels[code]

    def _checkpoint(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def checkpoint(function: Callable[..., Any], distribute_saved_activations: bool, *arguments: Any) -> Any:
            label = self._label(sys._getframe(1).f_code)
            recorder = self._recorder
            if label is None or label in self._active:
                if label is None or recorder is None or not recorder.recording:
                    return real(function, distribute_saved_activations, *arguments)
                return recorder.call_real(
                    label, "C", lambda run, views: real(run, distribute_saved_activations, *views), function, arguments
                )
            if recorder is None or not recorder.recording:
                return function(*arguments)
            return recorder.call(label, "C", function, arguments)

        return checkpoint

    def _checkpoint_without_output(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def checkpoint(this: Any, function: Callable[..., Any], *arguments: Any) -> Any:
            label = self._label(sys._getframe(1).f_code)
            recorder = self._recorder
            active = label is None or label in self._active
            region: int | None = None
            if label is None or recorder is None or not recorder.recording:
                result = real(this, function, *arguments) if active else function(*arguments)
            elif active:
                result = recorder.call_real(label, "W", lambda run, views: real(this, run, *views), function, arguments)
                region = recorder.last_region
            else:
                result = recorder.call(label, "W", function, arguments)
                region = recorder.last_region
            setattr(this, _REGION, (active, region))
            return result

        return checkpoint

    def _discard(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def discard_output_and_register_recompute(this: Any, hook_tensor: Any) -> None:
            active, region = getattr(this, _REGION, (True, None))

            def discard() -> None:
                if active:
                    real(this, hook_tensor)

            if region is None or self._recorder is None:
                discard()
            else:
                self._recorder.discarded(region, hook_tensor, discard)

        return discard_output_and_register_recompute

    def _layer_forward(self, module: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*arguments: Any, **keywords: Any) -> Any:
            if self._recorder is None:
                return forward(*arguments, **keywords)
            return self._recorder.layer(module, forward, arguments, keywords)

        return run

    def _forward_step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def forward_step(step_function: Callable[..., Any], data: Any, model: Any, *arguments: Any, **keywords: Any) -> Any:
            recorder, data = self._recorder, self._freezer.batches(data)
            if recorder is None:
                return real(step_function, data, model, *arguments, **keywords)

            def with_end(*inner: Any, **named: Any) -> Any:
                result = step_function(*inner, **named)
                recorder.model_out()
                return result

            chunk = self._chunks.index(model) if model in self._chunks else 0
            with recorder.forward_unit(chunk) as done:
                result = real(with_end, data, model, *arguments, **keywords)
                done(result[0])
            return result

        return forward_step

    def _backward_step(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def backward_step(input_tensor: Any, output_tensor: Any, *arguments: Any, **keywords: Any) -> Any:
            if self._recorder is None:
                return real(input_tensor, output_tensor, *arguments, **keywords)
            with self._recorder.backward_unit(output_tensor):
                return real(input_tensor, output_tensor, *arguments, **keywords)

        return backward_step


def blocks_of(chunks: Iterable[Any]) -> Iterator[Any]:
    """The modules that full recompute acts on: TransformerBlock, HybridStack, and whatever else is built like them."""
    for chunk in chunks:
        for module in chunk.modules():
            if hasattr(module, "num_layers_per_pipeline_rank") and hasattr(module, "layers"):
                yield module
