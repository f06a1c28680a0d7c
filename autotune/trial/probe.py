"""The probe of a rank: peak memory of each phase and iteration, step time, loss, gradient norm, tokens per expert.

The same seams on a CPU and a GPU: wrappers around ``schedules.forward_step`` and ``backward_step`` (module globals that
all of Megatron Core's schedules look up at each call), ``config.finalize_model_grads_func``, ``optimizer.step`` and
``optimizer.zero_grad``, and a hook on the output layer. A mark reads the allocator's peak, books it under the phase that
ends, and resets it; on a GPU these are host counters in program order, so no mark waits for the device.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any

from autotune.trial.lines import LineWriter

_ALL_MARKS_UNTIL_STEP = 2
"""Later steps write only the first entry into each phase: steady steps are timed."""


class Probe:
    """Books peaks by phase and writes the rank's lines.

    Attributes:
        phase: The phase the rank is in.
        step: The iteration, from 1; 0 before training.
        reserved: Whether the allocator has a reserved count of its own (a GPU's caching allocator).
    """

    def __init__(self, lines: LineWriter, *, reserved: bool) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._lines = lines
        self.reserved = reserved
        self.phase, self.step, self.microbatch = "build", 0, 0
        self.peaks_bytes: dict[str, int] = {}
        self.reserved_bytes: dict[str, int] = {}
        self._written: set[str] = set()
        self._tokens: list[int] = []
        self._started: Any = None
        self.on_step_start: list[Callable[[int], None]] = []
        """Called with the step before its first phase (the survey's switch)."""
        self.on_book: list[Callable[[str, int], None]] = []
        """Called with (phase, peak bytes) whenever a peak has been read and the allocator's is about to be reset."""
        self.last_iteration: dict[str, Any] = {}
        """What the last iteration's line says."""

    # Phases

    def mark(self, phase: str) -> None:
        """End the current phase and enter another."""
        self._book()
        self.phase = phase
        if self.step <= _ALL_MARKS_UNTIL_STEP or phase not in self._written:
            self._written.add(phase)
            self._lines.write(
                "phase", phase=phase, step=self.step, microbatch=self.microbatch, allocated_bytes=self._cuda.memory_allocated()
            )

    def _book(self) -> None:
        peak = self._cuda.max_memory_allocated()
        self.peaks_bytes[self.phase] = max(peak, self.peaks_bytes.get(self.phase, 0))
        if self.reserved:
            held = self._cuda.max_memory_reserved()
            self.reserved_bytes[self.phase] = max(held, self.reserved_bytes.get(self.phase, 0))
        for call in self.on_book:
            call(self.phase, peak)
        self._cuda.reset_peak_memory_stats()

    def note_peak(self, peak_bytes: int, reserved_bytes: int) -> None:
        """Keep the peaks of the current phase that someone else has read and reset."""
        self.peaks_bytes[self.phase] = max(peak_bytes, self.peaks_bytes.get(self.phase, 0))
        if self.reserved:
            self.reserved_bytes[self.phase] = max(reserved_bytes, self.reserved_bytes.get(self.phase, 0))

    def take_peaks(self) -> tuple[dict[str, int], dict[str, int]]:
        """Peaks booked since the last take, allocated and reserved by phase."""
        self._book()
        peaks, held = self.peaks_bytes, self.reserved_bytes
        self.peaks_bytes, self.reserved_bytes = {}, {}
        return peaks, held

    # Life of a trial

    def built(self) -> None:
        """Model and optimizer are built."""
        peaks, held = self.take_peaks()
        self._lines.write("built", phases=peaks, reserved=held, allocated_bytes=self._cuda.memory_allocated())
        self.phase = "data"

    def start_step(self, step: int) -> None:
        """An iteration begins."""
        self.step, self.microbatch = step, 0
        for call in self.on_step_start:
            call(step)
        if self.phase == "after_capture":
            self._book()  # Kept: it goes into this iteration.
        else:
            self.take_peaks()  # Between steps: no phase of training.
        # What the last optimizer step left (fp32 copies of gradients) is there until zero_grad, where the forward begins.
        self.phase = "optimizer" if step > 1 else "forward"
        self._written.clear()
        self._tokens = []
        self._started = (self._cuda.Event(enable_timing=True), time.perf_counter())
        self._started[0].record()

    def end_step(
        self, *, loss: float | None, grad_norm: float | None, skipped: bool, details: dict[str, Any] | None = None
    ) -> None:
        """An iteration has ended, optimizer and scheduler included."""
        ended = self._cuda.Event(enable_timing=True)
        ended.record()
        self._cuda.synchronize()
        peaks, held = self.take_peaks()
        stats = self._cuda.memory_stats()
        self.last_iteration = dict(
            step=self.step,
            step_ms=self._started[0].elapsed_time(ended),
            host_ms=(time.perf_counter() - self._started[1]) * 1e3,
            loss=loss,
            grad_norm=grad_norm,
            skipped=skipped,
            nan=any(value is not None and math.isnan(value) for value in (loss, grad_norm)),
            phases=peaks,
            reserved=held,
            allocated_bytes=self._cuda.memory_allocated(),
            allocator_retries=stats.get("num_alloc_retries"),
            device_used_bytes=self._device_used_bytes() if self.reserved else None,
            tokens_per_expert=self._tokens,
            **(details or {}),
        )
        self._lines.write("iteration", **self.last_iteration)
        self.phase = "between_steps"

    def _device_used_bytes(self) -> int:
        """In use on the device by anyone: NCCL, the CUDA context and other processes are in no count of the allocator's."""
        free, total = self._cuda.mem_get_info()
        return int(total - free)

    # Seams

    def wrap_schedules(self) -> None:
        """Mark forward and backward of every micro batch, whichever schedule runs them."""
        from megatron.core.pipeline_parallel import schedules

        forward, backward = schedules.forward_step, schedules.backward_step

        @functools.wraps(forward)
        def forward_step(*arguments: Any, **keywords: Any) -> Any:
            self.microbatch += 1
            if self.phase != "forward":
                self.mark("forward")
            return forward(*arguments, **keywords)

        @functools.wraps(backward)
        def backward_step(*arguments: Any, **keywords: Any) -> Any:
            if self.phase != "backward":
                self.mark("backward")
            return backward(*arguments, **keywords)

        schedules.forward_step, schedules.backward_step = forward_step, backward_step

    def wrap_model(self, chunks: Iterable[Any]) -> None:
        """Mark where the loss begins (the output layer) and count the tokens that reach each local expert."""
        from megatron.core.utils import unwrap_model

        for chunk in chunks:
            model = unwrap_model(chunk)
            output_layer = getattr(model, "output_layer", None)
            if output_layer is not None and getattr(model, "post_process", False):
                output_layer.register_forward_pre_hook(self._loss_begins)
            for module in model.modules():
                if type(module).__name__.endswith("GroupedMLP") or type(module).__name__ == "SequentialMLP":
                    module.register_forward_pre_hook(self._tokens_arrive)

    def _loss_begins(self, *_: Any) -> None:
        if self.phase == "forward":
            self.mark("loss")

    def _tokens_arrive(self, module: Any, arguments: tuple[Any, ...]) -> None:
        """``experts(tokens, tokens_per_expert, probs)``; a replay in backward brings the same tokens again."""
        if self.phase not in ("forward", "loss") or len(arguments) < 2:
            return
        counts = arguments[1]
        if getattr(counts, "is_cuda", False):  # Reading it would wait for the device: the sum is known on the host.
            counts = [arguments[0].shape[0]]
        values = [int(count) for count in counts]
        self._tokens = [a + b for a, b in zip(self._tokens or [0] * len(values), values, strict=True)]

    def wrap_config(self, config: Any) -> None:
        """Mark the gradient synchronisation. ``config.finalize_model_grads_func`` has to be set already."""
        finalize = config.finalize_model_grads_func

        @functools.wraps(finalize)
        def finalize_model_grads(*arguments: Any, **keywords: Any) -> Any:
            self.mark("grad_sync")
            return finalize(*arguments, **keywords)

        config.finalize_model_grads_func = finalize_model_grads

    def wrap_optimizer(self, optimizer: Any) -> None:
        """Mark the optimizer step, which lasts until the next step has zeroed the gradients, and the forward from there on."""
        step, zero_grad = optimizer.step, optimizer.zero_grad

        @functools.wraps(step)
        def marked(*arguments: Any, **keywords: Any) -> Any:
            self.mark("optimizer")
            return step(*arguments, **keywords)

        @functools.wraps(zero_grad)
        def zeroed(*arguments: Any, **keywords: Any) -> Any:
            result = zero_grad(*arguments, **keywords)
            if self.phase != "after_capture":  # cuda_graphs.py:_reset_after_capture zeroes, too.
                self.mark("forward")
            return result

        optimizer.step, optimizer.zero_grad = marked, zeroed

    def wrap_capture(self) -> None:
        """Mark the capture of CUDA graphs, whose pools stay (``after_capture``)."""
        try:
            from megatron.core.transformer.cuda_graphs import TECudaGraphHelper
        except ImportError:
            return  # A Megatron Core without it captures by itself, inside the forward of a step.
        create = TECudaGraphHelper.create_cudagraphs

        @functools.wraps(create)
        def create_cudagraphs(*arguments: Any, **keywords: Any) -> Any:
            self.mark("after_capture")
            return create(*arguments, **keywords)

        TECudaGraphHelper.create_cudagraphs = create_cudagraphs
