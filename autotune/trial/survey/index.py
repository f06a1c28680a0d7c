"""What a walk over a timeline looks up: the checkpoint calls of a setting, and who saves and sums what."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.call_sites import LAYER
from autotune.trial.survey.timeline import FORWARD_IN, FORWARD_OUT, Kind, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What one checkpoint call of a setting covers: a region, or the layers ``first`` to ``last`` of a uniform chunk."""

    first: int
    last: int
    kind: Kind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kept_outputs: tuple[int, ...]
    """Recomputed outputs that nothing inside saves: the checkpoint keeps them alive while its gradient is computed."""
    kept_gradient_bytes: int
    """Gradients of a layer's outputs, which its checkpoint's backward keeps to its end; without one they are summed into."""
    retained_key: int | None
    retained_bytes: int
    """Inputs of a recomputed graph that a module keeps beyond the step; their gradients are kept beside, as large again."""


class Index:
    """What the walk looks up of a timeline, built once for all settings."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.entries_at: dict[int, list[int]] = defaultdict(list)
        self.unit_storages: dict[int, set[int]] = defaultdict(set)
        saved_within: dict[int, set[int]] = defaultdict(set)
        for entry in timeline.entries:
            self.entries_at[entry.moment].append(entry.storage)
            self.unit_storages[entry.unit].add(entry.storage)
            region = entry.region
            while region >= 0:
                saved_within[region].add(entry.storage)
                region = timeline.regions[region].parent
        for region_ in timeline.regions:
            self.unit_storages[region_.unit].update(region_.inputs, region_.outputs)
        self._kept_outputs = [
            tuple(dict.fromkeys(storage for storage in region.outputs if storage not in saved_within[number]))
            for number, region in enumerate(timeline.regions)
        ]
        self._saved_in: dict[int, set[int]] = defaultdict(set)
        for entry in timeline.entries:
            self._saved_in[entry.storage].add(entry.region)
        made = {storage for region in timeline.regions if region.label != LAYER for storage in region.outputs}
        self.sums = {
            number
            for number, region in enumerate(timeline.regions)
            if region.gradients == 1
            and region.parent >= 0
            and timeline.regions[region.parent].label == LAYER
            and not made.intersection(region.inputs)
        }
        """Regions after whose backward the gradients of a residual connection are summed: one input, of the layer's stream."""
        self.following: dict[int, int] = {}
        """The next layer of the same unit."""
        for unit in {region.unit for region in timeline.regions}:
            layers = timeline.layers_of_unit(unit)
            self.following.update(itertools.pairwise(layers))
        self.batch_of_unit: dict[int, list[int]] = defaultdict(list)
        for storage, unit in timeline.batch_storages:
            self.batch_of_unit[unit].append(storage)
            self.unit_storages[unit].add(storage)
        self.forward_in: dict[int, int] = {}
        self.forward_out: dict[int, int] = {}
        for number, moment in enumerate(timeline.moments):
            if moment.kind == FORWARD_IN:
                self.forward_in[moment.region] = number
            elif moment.kind == FORWARD_OUT:
                self.forward_out[moment.region] = number

    def consumed(self, inner: int, outer: int) -> tuple[int, ...]:
        """Inputs that an inner region shares with one around it and that nothing outside saves.

        When the inner one's backward is over they are free, but for the outer one's checkpoint.
        """
        regions = self.timeline.regions
        shared = set(regions[inner].inputs).intersection(regions[outer].inputs)
        return tuple(s for s in shared if self._saved_in[s] and all(self.is_inside(r, outer) for r in self._saved_in[s]))

    def is_inside(self, region: int, outer: int) -> bool:
        """Whether a region is another one or within it."""
        while region >= 0 and region != outer:
            region = self.timeline.regions[region].parent
        return region == outer

    def groups(self, boundary: Boundary) -> list[Group]:
        """The checkpoint calls that a setting makes in this step, in no particular order."""
        regions = self.timeline.regions
        if boundary.granularity != "full":
            return [self._group(i, i, (i,)) for i, region in enumerate(regions) if region.label in boundary.modules]
        size = boundary.num_layers or 1
        groups = []
        for unit in sorted({region.unit for region in regions}):
            layers = self.timeline.layers_of_unit(unit)
            if boundary.method == "uniform":
                chunks = [layers[start : start + size] for start in range(0, len(layers), size)]
                chunks += [(i,) for i, region in enumerate(regions) if region.unit == unit and region.label == "mtp_layer"]
            else:
                chunks = [(layer,) for layer in layers[:size]]
            groups += [self._group(chunk[0], chunk[-1], chunk) for chunk in chunks]
        return groups

    def _group(self, first: int, last: int, members: tuple[int, ...]) -> Group:
        regions = self.timeline.regions
        retains = regions[first].kind == "C" and any(regions[i].retains for i in members)
        whole_layer = regions[last].label == LAYER and regions[last].outputs
        return Group(
            first=first,
            last=last,
            kind=regions[first].kind,
            inputs=regions[first].inputs,
            outputs=regions[last].outputs,
            kept_outputs=self._kept_outputs[last],
            kept_gradient_bytes=self.timeline.storage_bytes[regions[last].outputs[0]] if whole_layer else 0,
            retained_key=regions[first].ordinal if retains else None,
            retained_bytes=regions[first].gradient_input_bytes if retains else 0,
        )
