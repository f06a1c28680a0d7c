"""Records one step of one rank: saved tensors, regions and memory levels in program order, or only the regions' times.

Nothing here allocates device memory: inputs are passed on as views, saved tensors as detached aliases. The region stack
is a plain attribute, since on a GPU backward (and with it every replay) runs in autograd's own threads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from autotune.boundary.boundary import Boundary
from autotune.trial.survey import timeline as t
from autotune.trial.survey.call_sites import LAYER
from autotune.trial.survey.retained import INPUT_MARK, OUTPUT_MARK, kept_graphs, retaining_regions
from autotune.trial.survey.storages import Storages, map_tensors, tensors_in
from autotune.trial.survey.timeline import Kind
from autotune.trial.survey.trace import REPLAY_IN, REPLAY_OUT, Event, SavedTensor, Trace, TracedRegion

Mode = Literal["bytes", "times"]


class Counters:
    """The allocator's counters, asked without torch.cuda's wrappers: there is an event for every tensor of every region.

    Args:
        counter: The counting allocator on a CPU, else None.
    """

    def __init__(self, counter: Any) -> None:
        self.read: Callable[[], tuple[int, int, int]]
        """Allocated now, highest allocated and highest reserved since the last reset, in bytes."""
        self.reset: Callable[[], Any]
        if counter is not None:
            current, peak = counter.current_bytes, counter.peak_bytes
            self.read, self.reset = lambda: (current(), peak(), 0), counter.reset_peak
            return
        device, raw = torch.cuda.current_device(), torch._C._cuda_memoryStats

        def read() -> tuple[int, int, int]:
            stats = raw(device)
            allocated = stats["allocated_bytes"]["all"]
            return allocated["current"], allocated["peak"], stats["reserved_bytes"]["all"]["peak"]

        self.read, self.reset = read, torch.cuda.reset_peak_memory_stats


class Recorder:
    """One surveyed step.

    Args:
        probe: The rank's probe; it keeps its own peaks through the survey.
        base: The setting that the process really has.
        mode: ``bytes`` records everything, ``times`` only how long each region's forward takes.
        counter: The counting allocator on a CPU, else None.
        unit_limit: Forward passes to record; the later ones run plainly.
        shares_storage: As ``Timeline.restore_shares_storage``.
    """

    def __init__(self, probe: Any, base: Boundary, mode: Mode, *, counter: Any, unit_limit: int, shares_storage: bool) -> None:
        self._probe, self._base, self._mode = probe, base, mode
        self._bytes = mode == "bytes"
        self._counters = Counters(counter)
        self._storages = Storages(lambda storage: _on_device(storage, counter))
        self._unit_limit = unit_limit
        self._shares_storage = shares_storage
        self._events: list[Event] = []
        self._saved: list[SavedTensor] = []
        self._pruned: list[int] = []
        self._alive: dict[int, set[int]] = {}  # By unit: storages that outlived its backward pass.
        self._persistent: set[int] = set()
        self.regions: list[TracedRegion] = []
        self._stack: list[int] = []
        self._unit = -1
        self._units: list[int] = []
        self._unit_of_output: dict[int, int] = {}
        self._ignore_saved = False
        self._high = 0
        self._layer_modules: dict[int, list[Any]] = {}
        self._retaining: dict[int, set[int]] = {}
        self._peaks: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._timers: list[tuple[int, Any, Any]] = []

    # Events

    def start(self) -> None:
        """The step begins."""
        if self._bytes:
            self._probe.on_book.append(self._booked)
            self._high, _, _ = self._counters.read()

    def stop(self) -> None:
        """The step is over; what takes long and needs no moment of it is looked for now."""
        if self._bytes:
            self._probe.on_book.remove(self._booked)
            self._look_at_what_is_kept()

    def _booked(self, phase: str, peak_bytes: int) -> None:
        """The probe ends an interval: the phase may change here, so an event splits the interval."""
        self._take(phase, peak_bytes, self._counters.read()[0], t.MARK, -1)

    def _event(self, kind: str, region: int = -1) -> None:
        if not self._bytes:
            return
        level, peak, reserved = self._counters.read()
        self._counters.reset()
        self._probe.note_peak(peak, reserved)
        self._take(self._probe.phase, peak, level, kind, region)

    def _take(self, phase: str, peak: int, level: int, kind: str, region: int) -> None:
        recorded = self._unit < self._unit_limit
        peaks = self._peaks[0 if recorded else 1]
        if peak > peaks.get(phase, 0):
            peaks[phase] = peak
        if recorded:
            unit = self.regions[region].unit if region >= 0 else self._unit
            self._events.append(Event(kind, region, unit, phase, level, max(peak, self._high)))
        self._high = level

    # Units: one forward pass of one model chunk, and its backward

    @property
    def recording(self) -> bool:
        """Whether a region that is entered now is recorded: in a unit, and not in a pass without gradients."""
        return 0 <= self._unit < self._unit_limit and torch.is_grad_enabled()

    @contextlib.contextmanager
    def forward_unit(self, chunk: int) -> Iterator[Callable[[Any], None]]:
        """Around one forward step; the yielded function is told its output tensors."""
        unit = self._unit = len(self._units)
        self._units.append(chunk)
        if unit == self._unit_limit and self._bytes:  # Its graph takes the place of a recorded unit's.
            self._look_at_what_is_kept()
        first = len(self._saved)
        outputs: list[Any] = []
        self._event(t.UNIT_IN)
        with self._hooks():
            yield outputs.append
        for output in tensors_in(outputs):
            self._unit_of_output[id(output)] = unit
        if self._bytes and unit < self._unit_limit:
            self._prune(first)
        self._event(t.UNIT_OUT)
        self._unit = -1

    @contextlib.contextmanager
    def backward_unit(self, outputs: Any) -> Iterator[None]:
        """Around one backward step, of the unit that made ``outputs``."""
        known = [self._unit_of_output.pop(id(output), None) for output in tensors_in(outputs)]
        self._unit = next((unit for unit in known if unit is not None), -1)
        unit = self._unit
        self._event(t.BACKWARD_IN)
        with self._hooks():
            yield
        self._event(t.BACKWARD_OUT)
        if self._bytes and 0 <= unit < self._unit_limit:
            self._alive[unit] = self._outlived(unit)
        self._unit = -1

    def model_out(self) -> None:
        """The model has returned to the training loop, which lets go of the batch."""
        self._event(t.MODEL_OUT)

    @contextlib.contextmanager
    def _hooks(self) -> Iterator[None]:
        if not self._bytes or not 0 <= self._unit < self._unit_limit:
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor):
            yield

    def _pack(self, tensor: Any) -> Any:
        if not self._ignore_saved and not issubclass(type(tensor), torch.nn.Parameter):  # isinstance asks a metaclass.
            number = self._storages.number(tensor)
            if number is not None:
                region = self._stack[-1] if self._stack else -1
                self._saved.append(SavedTensor(number, region, len(self._events), self._unit))
        return tensor.detach()  # The tensor itself would hold its own graph: a cycle.

    def _prune(self, first: int) -> None:
        """Entries whose storage is gone before backward belonged to graphs that were dropped (logging of auxiliary losses)."""
        self._pruned += [i for i in range(first, len(self._saved)) if self._storages.expired(self._saved[i].storage)]

    def _look_at_what_is_kept(self) -> None:
        """What outlived its unit's backward pass is persistent, unless a graph that a module keeps has it."""
        for unit, alive in self._alive.items():
            self._mark_retaining(unit)
            kept_by_graph = {s for r in self.regions if r.unit == unit and r.real and r.retains for s in r.gradient_inputs}
            self._persistent |= alive - kept_by_graph
        self._alive = {}

    def _outlived(self, unit: int) -> set[int]:
        seen = {saved.storage for saved in self._saved if saved.unit == unit}
        for region in self.regions:
            if region.unit == unit:
                seen.update(region.inputs, region.outputs, region.replayed_outputs)
        return {s for s in seen if not self._storages.expired(s)}

    def _mark_retaining(self, unit: int) -> None:
        """Mark the regions whose graph a module keeps: looked for once a model chunk.

        It is that of the chunk's last unit: a region's place in its unit tells which one it is in any other.
        """
        chunk = self._units[unit]
        if chunk not in self._retaining:
            own = [modules for region, modules in self._layer_modules.items() if self.regions[region].unit == unit]
            graphs = kept_graphs(dict.fromkeys(module for modules in own for module in modules))
            found = retaining_regions(graphs, lambda region: self.regions[region].label == LAYER)
            self._retaining[chunk] = {self._members(self.regions[region].unit).index(region) for region in found}
        for place, region in enumerate(self._members(unit)):
            self.regions[region].retains = place in self._retaining[chunk]

    def _members(self, unit: int) -> list[int]:
        return [number for number, region in enumerate(self.regions) if region.unit == unit]

    # Regions

    def call(self, label: str, kind: Kind, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Any = None) -> Any:
        """Run a call site's function directly, as a recorded region. Returns its result; ``last_region`` is its number."""
        region, (views, named_views) = self._enter(label, kind, False, (arguments, keywords or {}))
        self._event(t.FORWARD_IN, region)
        self._stack.append(region)
        begun = self._clock()
        result = function(*views, **named_views)
        self._timers.append((region, begun, self._clock()))
        self._stack.pop()
        self._leave(region, result)
        self._event(t.FORWARD_OUT, region)
        self.last_region = region
        return result

    def call_real(
        self,
        label: str,
        kind: Kind,
        checkpoint: Callable[[Callable[..., Any], tuple[Any, ...]], Any],
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
    ) -> Any:
        """Run Megatron's own checkpoint of a function, recording its first pass as one interval and its replay in full."""
        region, views = self._enter(label, kind, True, arguments)
        self._event(t.FORWARD_IN, region)
        self._ignore_saved = True
        try:
            result = checkpoint(self._replayed(region, function), views)
        finally:
            self._ignore_saved = False
        self._leave(region, result)
        self._event(t.FORWARD_OUT, region)
        self.last_region = region
        return result

    def _replayed(self, region: int, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            if not torch.is_grad_enabled():
                return function(*arguments)
            outer_unit, self._unit = self._unit, self.regions[region].unit
            outer_stack, self._stack = self._stack, [region]
            first = len(self._saved)
            self._event(REPLAY_IN, region)
            inner = [self._marked_view(argument, region) for argument in arguments]
            begun = self._clock()
            result = function(*inner)
            self._timers.append((region, begun, self._clock()))
            self._stack, self._unit = outer_stack, outer_unit
            if self._bytes:
                outputs = tensors_in(result)
                self.regions[region].replayed_outputs = self._numbers(outputs)
                self._mark_outputs(region, outputs)
                self._prune(first)
            self._event(REPLAY_OUT, region)
            return result

        return run

    def layer(self, module: Any, forward: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A whole layer's forward. Inside a checkpoint of layers it is part of that region."""
        if not self.recording:
            return forward(*arguments, **keywords)
        if self._stack and self.regions[self._stack[-1]].label == LAYER:
            self._layer_modules.setdefault(self._stack[-1], []).append(module)
            return forward(*arguments, **keywords)
        self._layer_modules[len(self.regions)] = [module]
        return self.call(LAYER, "C", forward, arguments, keywords)

    def discarded(self, region: int, hook_tensor: Any, discard: Callable[[], None]) -> None:
        """A W call site asks for its output to be discarded; ``discard`` does it where the region is real."""
        if hook_tensor.requires_grad and self._bytes:
            hook_tensor.register_hook(lambda _: self._event(t.RESTORE, region))  # Before Megatron's own hook.
        discard()
        self._event(t.DISCARD, region)

    def _enter(self, label: str, kind: Kind, real: bool, arguments: Any) -> tuple[int, Any]:
        region = len(self.regions)
        parent = self._stack[-1] if self._stack else -1
        self.regions.append(TracedRegion(label=label, kind=kind, real=real, parent=parent, unit=self._unit))
        if not self._bytes:
            return region, arguments
        tensors = tensors_in(arguments)
        needing = [tensor for tensor in tensors if tensor.requires_grad]
        entry = self.regions[region]
        entry.inputs, entry.gradients = self._numbers(tensors), len(needing)
        entry.gradient_inputs = entry.inputs if len(needing) == len(tensors) else self._numbers(needing)
        if not needing:
            return region, arguments
        if len(needing) == 1 and parent >= 0 and self.regions[parent].label == LAYER:  # A branch of the residual stream.
            needing[0].register_hook(lambda _: self._event(t.SUMMED, region))
        return region, map_tensors(arguments, lambda tensor: self._hooked_view(tensor, region))

    def _hooked_view(self, tensor: Any, region: int) -> Any:
        """A view whose gradient hook fires when the gradient of this region alone is complete."""
        if not tensor.requires_grad:
            return tensor
        alias = self._marked_view(tensor, region)
        alias.register_hook(lambda _: self._event(t.BACKWARD_END, region))
        return alias

    def _marked_view(self, tensor: Any, region: int) -> Any:
        if not self._bytes or not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
            return tensor
        alias = tensor.view_as(tensor)
        alias.grad_fn.metadata[INPUT_MARK] = region
        return alias

    def _leave(self, region: int, result: Any) -> None:
        if not self._bytes:
            return
        outputs = tensors_in(result)
        self.regions[region].outputs = self._numbers(outputs)
        self._mark_outputs(region, outputs)
        started: list[bool] = []

        def start(_: Any) -> None:
            if not started:
                started.append(True)
                self._event(t.BACKWARD_START, region)

        for tensor in outputs:
            if tensor.grad_fn is not None:
                # After the tensor's own hooks (a restore may hang on it), before the node's backward.
                tensor.grad_fn.register_prehook(start)

    def _mark_outputs(self, region: int, outputs: list[Any]) -> None:
        for tensor in outputs:
            if tensor.grad_fn is not None:
                tensor.grad_fn.metadata.setdefault(OUTPUT_MARK, []).append(region)

    def _numbers(self, tensors: list[Any]) -> tuple[int, ...]:
        numbers = dict.fromkeys(map(self._storages.number, tensors))
        numbers.pop(None, None)
        return tuple(numbers)  # type: ignore[arg-type]  # None is gone

    # Results

    def _clock(self) -> Any:
        if self._bytes:
            return None
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return time.thread_time()

    def times_ms(self) -> list[float | None]:
        """How long each region's forward with gradients took, by region number (after the device has finished)."""
        times: list[float | None] = [None] * len(self.regions)
        for region, begun, ended in self._timers:
            times[region] = (ended - begun) * 1e3 if isinstance(begun, float) else begun.elapsed_time(ended)
        return times

    def trace(self, rank: int) -> Trace:
        """What was recorded."""
        recorded, later = self._peaks
        surplus = {phase: peak - recorded[phase] for phase, peak in later.items() if peak > recorded.get(phase, peak)}
        return Trace(
            rank=rank,
            base=self._base,
            events=tuple(self._events),
            saved=tuple(self._saved),
            regions=tuple(self.regions),
            storage_bytes=tuple(self._storages.sizes_bytes),
            persistent=tuple(sorted(self._persistent)),
            pruned=tuple(self._pruned),
            unit_chunks=tuple(self._units[: self._unit_limit]),
            restore_shares_storage=self._shares_storage,
            surplus_bytes=surplus,
        )

    @property
    def units_total(self) -> int:
        """Forward passes of the step, recorded or not."""
        return len(self._units)


def _on_device(storage: Any, counter: Any) -> bool:
    return bool(counter.is_counted(storage.data_ptr())) if counter is not None else bool(storage.device.type == "cuda")
