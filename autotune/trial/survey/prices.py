"""What a setting's replays cost, from the forward times of the regions it would replay."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.call_sites import MTP_LAYER
from autotune.trial.survey.timeline import Kind, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Extra time of one step on one rank, with its standard error."""

    replay_ms: float
    standard_error_ms: float


class PriceList:
    """Prices of one rank.

    Regions that are the same code on the same kind of layer are pooled: their median is far less noisy than one timing.

    Args:
        timeline: Of the surveyed step.
        samples_ms: Forward times by region, one list a timed step.
        units_total: Forward passes of a step, of which the timeline may hold only the first.
        own_ms: What a checkpoint call costs beside its replay, by kind (``own_work.py``).
    """

    def __init__(
        self,
        timeline: Timeline,
        samples_ms: Sequence[Sequence[float | None]],
        units_total: int,
        own_ms: Mapping[Kind, float] | None = None,
    ) -> None:
        self._timeline = timeline
        self._own_ms = own_ms or {}
        recorded = len({region.unit for region in timeline.regions}) or 1
        self._scale = units_total / recorded
        kinds = _kinds(timeline)
        pools: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for times in samples_ms:
            for kind, time_ms in zip(kinds, times, strict=True):
                if time_ms is not None:
                    pools[kind].append(time_ms)
        self._kinds = kinds
        self._median = {kind: statistics.median(pool) for kind, pool in pools.items()}
        self._error = {kind: _median_error(pool) for kind, pool in pools.items()}

    def forward_ms(self, region: int) -> float:
        """Median forward time of a region's kind; 0 where it was not timed."""
        return self._median.get(self._kinds[region], 0.0)

    def price(self, boundary: Boundary) -> Price:
        """Sum over the checkpoints a setting makes, nested ones included: an inner one is replayed once more."""
        counts: dict[tuple[str, ...], int] = defaultdict(int)
        for region in _replayed(self._timeline, boundary):
            counts[self._kinds[region]] += 1
        total = sum(count * self._median.get(kind, 0.0) for kind, count in counts.items())
        total += sum(count * self._own_ms.get(kind, 0.0) for kind, count in _calls(self._timeline, boundary).items())
        error = math.sqrt(sum((count * self._error.get(kind, 0.0)) ** 2 for kind, count in counts.items()))
        return Price(replay_ms=self._scale * total, standard_error_ms=self._scale * error)


def _calls(timeline: Timeline, boundary: Boundary) -> Counter[Kind]:
    """Checkpoint calls of a setting by kind; a chunk of layers is one."""
    replayed = _replayed(timeline, boundary)
    if boundary.method != "uniform":
        return Counter(timeline.regions[region].kind for region in replayed)
    size = boundary.num_layers or 1
    chunks = sum(-(-len(timeline.layers_of_unit(unit)) // size) for unit in {region.unit for region in timeline.regions})
    return Counter({"C": chunks + sum(timeline.regions[region].label == MTP_LAYER for region in replayed)})


def _replayed(timeline: Timeline, boundary: Boundary) -> list[int]:
    if boundary.granularity != "full":
        return [number for number, region in enumerate(timeline.regions) if region.label in boundary.modules]
    found: list[int] = []
    for unit in sorted({region.unit for region in timeline.regions}):
        layers = timeline.layers_of_unit(unit)
        found += layers[: boundary.num_layers] if boundary.method == "block" else layers
        if boundary.method == "uniform":
            found += [n for n, r in enumerate(timeline.regions) if r.unit == unit and r.label == MTP_LAYER]
    return found


def _kinds(timeline: Timeline) -> list[tuple[str, ...]]:
    """A region's label with the labels around it and inside it: the same for the same code on the same kind of layer."""
    inside: dict[int, set[str]] = defaultdict(set)
    for region in timeline.regions:
        parent = region.parent
        while parent >= 0:
            inside[parent].add(region.label)
            parent = timeline.regions[parent].parent
    layer_signature: dict[int, tuple[str, ...]] = {}
    for number in range(len(timeline.regions)):
        top = number
        while timeline.regions[top].parent >= 0:
            top = timeline.regions[top].parent
        layer_signature[number] = tuple(sorted(inside[top]))
    return [(region.label, *sorted(inside[n]), "in", *layer_signature[n]) for n, region in enumerate(timeline.regions)]


def _median_error(pool: Sequence[float]) -> float:
    """Standard error of a median: 1.2533 sigma / sqrt(n), sigma from the median absolute deviation."""
    if len(pool) < 2:
        return pool[0] if pool else 0.0
    middle = statistics.median(pool)
    sigma = 1.4826 * statistics.median(abs(value - middle) for value in pool)
    return 1.2533 * sigma / math.sqrt(len(pool))
