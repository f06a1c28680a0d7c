"""The survival rule: which saved storages a recompute setting holds at each moment of a surveyed step.

A storage is held while some entry or some checkpoint input holds it, unless a discarded output vanishes it:

- an entry counts unless a checkpoint around it has finished its forward pass and is not yet restored;
- the inputs of an outermost checkpoint count from its forward pass until its gradient is complete;
- the outputs of a ``CheckpointWithoutOutput`` vanish, whoever saved them, from the discard to the restore.

Beside these, three terms hang on the setting: recomputed outputs that nobody saves and the checkpoint keeps
(tensor_parallel/random.py:CheckpointFunction.backward holds ``outputs``, CheckpointWithoutOutputFunction.backward
``ctx.outputs``), and the inputs of a checkpoint whose recomputed graph a module keeps beyond the step (``retained.py``).
Nothing is added label by label: storages shared between regions are counted once, in whatever combination.

The same walk fits the floors of a recorded base (``normalise.py``) and predicts another setting (``phase_peaks.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.index import Group, Index
from autotune.trial.survey.timeline import (
    BACKWARD_END,
    BACKWARD_OUT,
    BACKWARD_START,
    DISCARD,
    FORWARD_IN,
    FORWARD_OUT,
    MODEL_OUT,
    RESTORE,
    SUMMED,
    UNIT_IN,
)

Peak = Callable[[str, int], None]


@dataclass(slots=True)
class _Pass:
    """A checkpoint's forward pass that is under way, and what to take back when it is over."""

    group: Group
    entry_bytes: int
    undo: list[tuple[Callable[[int], None], int]] = field(default_factory=list)


class Survival:
    """Walks the moments of a timeline under one setting and keeps the bytes that the setting holds.

    Args:
        index: Of the timeline.
        boundary: The setting.
        level_floor, peak_floor: Floor after, and highest floor before, each moment; may be filled while the walk goes on.
        peak: Called with (phase, bytes) for every level that the setting reaches.
    """

    def __init__(
        self, index: Index, boundary: Boundary, level_floor: list[int], peak_floor: list[int], peak: Peak | None = None
    ) -> None:
        self._index = index
        self._timeline = index.timeline
        self._level_floor = level_floor
        self._peak_floor = peak_floor
        self._peak = peak
        self._sizes = index.timeline.storage_bytes
        self._holders = [0] * len(self._sizes)
        self._vanished = [0] * len(self._sizes)
        self._held_bytes = 0
        self._kept: dict[int, int] = {}
        self._retained: dict[int, int] = {}
        self._flowing: list[tuple[int, int]] = []
        self._retained_storages: set[int] = set()
        self._passes: list[_Pass] = []
        self._summed: set[int] = set()
        self._consumed: set[int] = set()
        groups = index.groups(boundary)
        self._by_first = {group.first: group for group in groups}
        self._by_last = {group.last: group for group in groups}
        retaining = self._innermost_retaining(groups)
        self._retaining = {group.first for group in retaining}
        for group in retaining:  # Kept since the step before: steady state.
            assert group.retained_key is not None
            self._retained[group.retained_key] = 2 * group.retained_bytes
        self._kept_bytes = 0
        self._retained_total_bytes = sum(self._retained.values())

    def _innermost_retaining(self, groups: list[Group]) -> list[Group]:
        """The graph of an inner checkpoint ends at its own inputs, so an outer one around it keeps nothing more."""
        shadowed: set[int] = set()
        regions = self._timeline.regions
        for group in groups:
            if group.retained_key is None or group.first != group.last:
                continue
            parent = regions[group.first].parent
            while parent >= 0:
                shadowed.add(parent)
                parent = regions[parent].parent
        return [group for group in groups if group.retained_key is not None and group.first not in shadowed]

    @property
    def total_bytes(self) -> int:
        """Everything that hangs on the setting, now."""
        return self._held_bytes + self._kept_bytes + self._retained_total_bytes

    def before(self, number: int) -> None:
        """The interval that ends at a moment: its tensors are saved, its peak is reached."""
        for storage in self._index.entries_at.get(number, ()):
            self._add(storage)
        if self._peak is not None and not self._passes:
            self._peak(self._timeline.moments[number].phase, self._peak_floor[number] + self.total_bytes)

    def after(self, number: int) -> None:
        """What the moment itself changes."""
        kind, region, unit, phase, _, _ = self._timeline.moments[number]
        if kind in (FORWARD_IN, FORWARD_OUT, DISCARD):
            self._forward(number)
        elif kind == BACKWARD_START:
            group = self._by_last.get(region)
            if group is not None and group.kind == "C":
                self._restore(group, number, phase)
                self._keep(group)
            elif group is not None and self._timeline.restore_shares_storage:
                self._keep(group)
        elif kind == RESTORE:
            group = self._by_last.get(region)
            if group is not None:
                self._restore(group, number, phase)
                if not self._timeline.restore_shares_storage:
                    self._keep(group)
        elif kind == BACKWARD_END:
            self._backward_end(region)
        elif kind == SUMMED:
            if region in self._index.sums:
                self._gradients_summed(self._timeline.regions[region].parent)
        elif kind == UNIT_IN:
            for storage in self._index.batch_of_unit.get(unit, ()):
                self._add(storage)
        elif kind == MODEL_OUT:
            for storage in self._index.batch_of_unit.get(unit, ()):
                self._drop(storage)
        elif kind == BACKWARD_OUT:
            for storage in self._index.unit_storages.get(unit, ()):
                self._clear(storage)
            self._retained_storages -= self._index.unit_storages.get(unit, set())
            self._gradients_summed(-1)

    def _keep(self, group: Group) -> None:
        """Outputs that a checkpoint's backward keeps until it ends.

        A restored output (kind W) that is also the input of a kept graph is one and the same and counts there.
        """
        own = self._retained_storages if group.kind == "W" else ()
        self._keep_bytes(group, sum(self._sizes[storage] for storage in group.kept_outputs if storage not in own))

    def _keep_bytes(self, group: Group, size_bytes: int) -> None:
        self._kept[group.first] = self._kept.get(group.first, 0) + size_bytes
        self._kept_bytes += size_bytes

    def _keep_inputs(self, region: int) -> None:
        outer = self._timeline.regions[region].parent
        while outer >= 0:
            group = self._by_first.get(outer)
            if group is not None and group.kind == "C":
                for storage in self._index.consumed(region, outer):
                    if storage not in self._consumed:
                        self._consumed.add(storage)
                        self._keep_bytes(group, self._sizes[storage])
            outer = self._timeline.regions[outer].parent

    def _backward_end(self, region: int) -> None:
        if region in self._index.following:  # A layer without a region of its own to show its sum.
            self._gradients_summed(-1)
        self._keep_inputs(region)
        group = self._by_first.get(region)
        if group is None:
            return
        self._kept_bytes -= self._kept.pop(region, 0)
        for storage in group.inputs:
            self._drop(storage)
        if region in self._retaining and group.retained_key is not None:
            self._retain(group.retained_key, group.retained_bytes)
            self._flowing.append((group.retained_key, group.retained_bytes))
            self._retained_storages.update(group.inputs)

    def _gradients_summed(self, layer: int) -> None:
        """A layer's gradient has been added to that of its branch, into another tensor; who still holds it keeps it now.

        That is the backward of the layer's checkpoint, or a kept graph: the gradient of its input is the tensor that flowed on.
        """
        for key, size in self._flowing:
            self._retain(key, 2 * size)
        self._flowing.clear()
        group = self._by_last.get(layer)
        if group is not None and layer not in self._summed:
            self._summed.add(layer)
            if self._index.following.get(layer, -1) not in self._retaining:
                self._keep_bytes(group, group.kept_gradient_bytes)

    def _retain(self, key: int, size_bytes: int) -> None:
        self._retained_total_bytes += size_bytes - self._retained.get(key, 0)
        self._retained[key] = size_bytes

    def _forward(self, number: int, rise_bytes: int = 0) -> None:
        kind, region, _, phase, _, _ = self._timeline.moments[number]
        if kind == FORWARD_IN:  # The caller holds the inputs while a region runs, whatever the setting.
            for storage in self._timeline.regions[region].inputs:
                self._add(storage)
            group = self._by_first.get(region)
            if group is not None:
                self._passes.append(_Pass(group, rise_bytes + self._level_floor[number] + self.total_bytes))
        elif kind == FORWARD_OUT:
            if region not in self._by_first:  # A checkpoint goes on holding its inputs.
                for storage in self._timeline.regions[region].inputs:
                    self._drop(storage)
            if self._passes and self._passes[-1].group.last == region:
                self._end_pass(region, phase)
        elif kind == DISCARD:
            group = self._by_last.get(region)
            if group is not None and group.kind == "W":
                for storage in group.outputs:
                    self._vanish(storage)

    def _end_pass(self, region: int, phase: str) -> None:
        """What the pass saved is taken back: it ran without gradients."""
        done = self._passes.pop()
        if done.group.retained_key is not None:  # Overwritten somewhere in this pass.
            self._retain(done.group.retained_key, 0)
        outer, self._passes = self._passes, []
        for undo, storage in reversed(done.undo):
            undo(storage)
        self._passes = outer
        first_pass = self._timeline.regions[region].first_pass_bytes
        if self._peak is not None and first_pass is not None and not self._passes and done.group.first == done.group.last:
            self._peak(phase, done.entry_bytes + first_pass)

    def _restore(self, group: Group, number: int, phase: str) -> None:
        """Replay the forward pass of a checkpoint where its gradient is needed, with the checkpoints nested in it."""
        start, end = self._index.forward_in[group.first], self._index.forward_out[group.last]
        level = self._level_floor[number] + self.total_bytes
        rise = level - self._level_floor[start] - self.total_bytes
        for moment in range(start + 1, end + 1):
            for storage in self._index.entries_at.get(moment, ()):
                self._add(storage)
            if self._peak is not None and not self._passes:
                self._peak(phase, rise + self._peak_floor[moment] + self.total_bytes)
            if moment != end:
                self._forward(moment, rise)
        if group.last != group.first:
            for storage in self._timeline.regions[group.last].inputs:
                self._drop(storage)
        if group.kind == "W":
            for storage in group.outputs:
                self._appear(storage)

    def _add(self, storage: int) -> None:
        self._holders[storage] += 1
        if self._holders[storage] == 1 and not self._vanished[storage]:
            self._held_bytes += self._sizes[storage]
        if self._passes:
            self._passes[-1].undo.append((self._drop, storage))

    def _drop(self, storage: int) -> None:
        if self._holders[storage] == 0:
            return
        self._holders[storage] -= 1
        if self._holders[storage] == 0 and not self._vanished[storage]:
            self._held_bytes -= self._sizes[storage]
        if self._passes:
            self._passes[-1].undo.append((self._add, storage))

    def _vanish(self, storage: int) -> None:
        self._vanished[storage] += 1
        if self._vanished[storage] == 1 and self._holders[storage]:
            self._held_bytes -= self._sizes[storage]
        if self._passes:
            self._passes[-1].undo.append((self._appear, storage))

    def _appear(self, storage: int) -> None:
        if self._vanished[storage] == 0:
            return
        self._vanished[storage] -= 1
        if self._vanished[storage] == 0 and self._holders[storage]:
            self._held_bytes += self._sizes[storage]

    def _clear(self, storage: int) -> None:
        if self._holders[storage] and not self._vanished[storage]:
            self._held_bytes -= self._sizes[storage]
        self._holders[storage] = self._vanished[storage] = 0
