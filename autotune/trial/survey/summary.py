"""A survey by label and kind of layer: what each region keeps, drops, needs while it replays, and costs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.index import Index
from autotune.trial.survey.prices import PriceList
from autotune.trial.survey.survival import Survival
from autotune.trial.survey.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSummary:
    """One label on one kind of layer, of one rank; bytes and times are of one layer in one micro batch."""

    label: str
    layer_kind: str
    """The labels inside such a layer, joined by ``+``."""
    layers: int
    kept_bytes: int
    """Inputs that the checkpoint holds."""
    dropped_bytes: int
    """Fewer bytes at the end of forward, under this label alone; negative where it keeps more than it drops."""
    replay_transient_bytes: int
    """Rise of the level while its forward runs with gradients, above where it began."""
    forward_ms: float
    inert: bool
    """Drops nothing: the level at the end of forward is the control's, or higher."""


def summarise(timeline: Timeline, prices: PriceList) -> tuple[RegionSummary, ...]:
    """All labels of a timeline; whole layers have the label ``layer``."""
    index = Index(timeline)
    control = _levels(timeline, index, Boundary.selective())
    inside: dict[int, set[str]] = defaultdict(set)
    for region in timeline.regions:
        parent = region.parent
        while parent >= 0:
            inside[parent].add(region.label)
            parent = timeline.regions[parent].parent
    members: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, region in enumerate(timeline.regions):
        if region.unit == 0:
            top = number
            while timeline.regions[top].parent >= 0:
                top = timeline.regions[top].parent
            members[region.label, "+".join(sorted(inside[top]))].append(number)
    dropped = {label: _dropped(timeline, index, control, label) for label in {label for label, _ in members}}
    found = []
    for (label, kind), regions in sorted(members.items()):
        first = timeline.regions[regions[0]]
        gone = sum(dropped[label].get(region, 0) for region in regions) // len(regions)
        rises = []
        for number in regions:
            start, end = index.forward_in[number], index.forward_out[number]
            rises.append(max(control[moment][1] for moment in range(start + 1, end + 1)) - control[start][0])
        found.append(
            RegionSummary(
                label=label,
                layer_kind=kind,
                layers=len(regions),
                kept_bytes=sum(timeline.storage_bytes[storage] for storage in first.inputs),
                dropped_bytes=gone,
                replay_transient_bytes=max(rises),
                forward_ms=prices.forward_ms(regions[0]),
                inert=gone <= 0,
            )
        )
    return tuple(found)


def _levels(timeline: Timeline, index: Index, boundary: Boundary) -> list[tuple[int, int]]:
    """Level after, and peak before, each moment under a setting."""
    level_floor = [moment.level_bytes for moment in timeline.moments]
    peak_floor = [moment.peak_bytes for moment in timeline.moments]
    walk = Survival(index, boundary, level_floor, peak_floor)
    levels = []
    for number in range(len(timeline.moments)):
        walk.before(number)
        peak = peak_floor[number] + walk.total_bytes
        walk.after(number)
        levels.append((level_floor[number] + walk.total_bytes, peak))
    return levels


def _dropped(timeline: Timeline, index: Index, control: list[tuple[int, int]], label: str) -> dict[int, int]:
    """How far each layer's forward leaves fewer bytes under a label than under the control, by region of the label."""
    boundary = Boundary.full("uniform", 1) if label == "layer" else Boundary.selective([label])
    under = _levels(timeline, index, boundary)
    saved = [before[0] - after[0] for before, after in zip(control, under, strict=True)]
    found: dict[int, int] = {}
    for number, region in enumerate(timeline.regions):
        if region.label != label or region.unit != 0:
            continue
        top = number
        while timeline.regions[top].parent >= 0:
            top = timeline.regions[top].parent
        found[number] = saved[index.forward_out[top]] - saved[index.forward_in[top]]
    return found
