"""Checks of a survey on itself, on one rank: what the recorder saw has to explain what the allocator counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.trial.survey.report import Guard, GuardName
from autotune.trial.survey.timeline import FORWARD_END, FORWARD_IN, FORWARD_OUT, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The layer whose forward allocated most that no saved tensor, input or output explains."""

    label: str
    unexplained_bytes: int
    saved_bytes: int

    @property
    def fraction(self) -> float:
        """Unexplained over saved."""
        return abs(self.unexplained_bytes) / max(self.saved_bytes, 1)


def closing_balance(timeline: Timeline) -> Balance:
    """Allocator growth over each region's forward minus the saved storages: tensors kept outside autograd's hooks show here.

    (``ctx.x = tensor`` in a custom function is invisible to saved-tensor hooks.)
    """
    sizes = timeline.storage_bytes
    first_saved: dict[int, int] = {}
    saved_in: dict[int, set[int]] = defaultdict(set)
    for entry in timeline.entries:
        first_saved[entry.storage] = min(entry.moment, first_saved.get(entry.storage, entry.moment))
        region = entry.region
        while region >= 0:
            saved_in[region].add(entry.storage)
            region = timeline.regions[region].parent
    began: dict[int, int] = {}
    ended: dict[int, tuple[int, int]] = {}
    for number, moment in enumerate(timeline.moments):
        if moment.kind == FORWARD_IN:
            began[moment.region] = moment.level_bytes
        elif moment.kind in (FORWARD_END, FORWARD_OUT) and moment.region not in ended:
            ended[moment.region] = (number, moment.level_bytes)
    worst = Balance(label="", unexplained_bytes=0, saved_bytes=0)
    for region, (number, level) in ended.items():
        entry_ = timeline.regions[region]
        pending = sum(sizes[s] for s in entry_.outputs if first_saved.get(s, number + 1) > number)
        released = 0
        if timeline.moments[number].kind == FORWARD_OUT:  # The walk has let go of the inputs there.
            released = sum(sizes[s] for s in entry_.inputs if s not in first_saved)
        balance = Balance(
            label=entry_.label,
            unexplained_bytes=level - began[region] - pending - released,
            saved_bytes=sum(sizes[s] for s in saved_in[region]),
        )
        if entry_.label == "layer" and abs(balance.unexplained_bytes) > abs(worst.unexplained_bytes):
            worst = balance
    return worst


def largest_difference(first: Mapping[str, int], second: Mapping[str, int]) -> tuple[str, int]:
    """The phase in which two sets of peaks differ most, and by how many bytes."""
    phases = set(first) & set(second)
    if not phases:
        return "", 0
    worst = max(sorted(phases), key=lambda phase: abs(first[phase] - second[phase]))
    return worst, first[worst] - second[worst]


def balance_guard(ranks: Sequence[tuple[int, float]]) -> Guard:
    """From each rank's worst unexplained bytes of a layer and their share of what it saved."""
    unexplained, fraction = max(ranks, key=lambda pair: pair[1])
    return Guard(
        name="closing_balance",
        passed=fraction <= 0.01,
        detail=f"{unexplained} B of a layer's forward ({fraction:.2%}) not explained",
    )


def phases_guard(name: GuardName, ranks: Sequence[tuple[Mapping[str, int], Mapping[str, int]]], tolerance: float) -> Guard:
    """Whether two sets of phase peaks, by rank, have the same highest peak, to a relative tolerance."""
    worst = (0.0, "", 0, 0)
    for rank, (first, second) in enumerate(ranks):
        peaks = max(first.values(), default=0), max(second.values(), default=0)
        phase, difference = largest_difference(first, second)
        worst = max(worst, (abs(peaks[0] - peaks[1]) / max(peaks[1], 1), phase, difference, rank), key=lambda item: item[0:1])
        if not worst[1]:
            worst = (worst[0], phase, difference, rank)
    return Guard(
        name=name,
        passed=worst[0] <= tolerance,
        detail=f"peak differs by {worst[0]:.3%} on rank {worst[3]}; most in {worst[1]}, {worst[2]:+} B",
    )
