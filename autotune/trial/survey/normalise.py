"""From a trace, recorded under whatever base the process had, to the canonical timeline that serves every setting.

Three things separate the two. Under a base that really checkpoints a region, its gradient-mode forward runs in backward:
its events are moved to where the forward pass was, with levels shifted by the difference of entry levels. The first pass
and the replay make two copies of an output: they become one storage. And levels become floors, by walking the survival
rule under the base itself and taking off what the base holds.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from autotune.trial.survey.index import Index
from autotune.trial.survey.survival import Survival
from autotune.trial.survey.timeline import (
    BACKWARD_END,
    BACKWARD_OUT,
    BACKWARD_START,
    FORWARD_END,
    FORWARD_IN,
    FORWARD_OUT,
    RESTORE,
    SUMMED,
    Entry,
    Moment,
    Region,
    Timeline,
)
from autotune.trial.survey.trace import REPLAY_IN, REPLAY_OUT, Event, Trace


def normalise(trace: Trace) -> Timeline:
    """The canonical timeline of a trace; ``phase_peaks.predict`` under the trace's own base gives the trace back."""
    moments, position = _Reorder(trace).run()
    storages = _Storages(trace)
    first_passes = _first_pass_bytes(trace)
    chunk_of = dict(enumerate(trace.unit_chunks))
    places: dict[int, int] = defaultdict(int)
    regions = []
    for number, traced in enumerate(trace.regions):
        chunk = chunk_of.get(traced.unit, 0)
        regions.append(
            Region(
                label=traced.label,
                kind=traced.kind,
                parent=traced.parent,
                unit=traced.unit,
                ordinal=places[traced.unit] * (1 + max(chunk_of.values(), default=0)) + chunk,
                inputs=storages.known(traced.inputs),
                outputs=storages.known(traced.outputs),
                gradient_input_bytes=sum(trace.storage_bytes[s] for s in set(traced.gradient_inputs)),
                gradients=traced.gradients,
                retains=traced.retains,
                forward_ms=traced.forward_ms,
                first_pass_bytes=first_passes.get(number),
            )
        )
        places[traced.unit] += 1
    pruned = set(trace.pruned)
    entries = tuple(
        Entry(storage, saved.region, position[saved.event], saved.unit)
        for number, saved in enumerate(trace.saved)
        if number not in pruned and saved.event in position
        for storage in storages.known((saved.storage,))
    )
    timeline = Timeline(
        rank=trace.rank,
        storage_bytes=trace.storage_bytes,
        regions=tuple(regions),
        entries=entries,
        moments=tuple(moments),
        batch_storages=storages.batch(trace, entries),
        restore_shares_storage=trace.restore_shares_storage,
        surplus_bytes=trace.surplus_bytes,
    )
    return _with_floors(timeline, trace)


def _with_floors(timeline: Timeline, trace: Trace) -> Timeline:
    level_floor = [moment.level_bytes for moment in timeline.moments]
    peak_floor = [moment.peak_bytes for moment in timeline.moments]
    walk = Survival(Index(timeline), trace.base, level_floor, peak_floor)
    for number in range(len(timeline.moments)):
        walk.before(number)
        peak_floor[number] -= walk.total_bytes
        walk.after(number)
        level_floor[number] -= walk.total_bytes
    moments = tuple(
        moment._replace(level_bytes=level, peak_bytes=peak)
        for moment, level, peak in zip(timeline.moments, level_floor, peak_floor, strict=True)
    )
    return replace(timeline, moments=moments)


def _first_pass_bytes(trace: Trace) -> dict[int, int]:
    """Peak above entry of the pass without gradients, of each region that the base really checkpointed."""
    entry: dict[int, int] = {}
    found: dict[int, int] = {}
    for event in trace.events:
        if event.region >= 0 and trace.regions[event.region].real:
            if event.kind == FORWARD_IN:
                entry[event.region] = event.level_bytes
            elif event.kind == FORWARD_OUT:
                found[event.region] = event.peak_bytes - entry[event.region]
    return found


def _inner_sums_first(trace: Trace) -> list[Event]:
    """A region's input may be that of one around it, and both hooks hang on one tensor: the inner sum comes first.

    The two names change places, not the levels.
    """
    events = list(trace.events)
    for number in range(1, len(events)):
        place = number
        while place > 0 and events[place].kind == SUMMED and events[place - 1].kind == BACKWARD_END:
            inner, outer = events[place], events[place - 1]
            parent = trace.regions[inner.region].parent
            while parent >= 0 and parent != outer.region:
                parent = trace.regions[parent].parent
            if parent != outer.region:
                break
            events[place - 1] = outer._replace(kind=inner.kind, region=inner.region)
            events[place] = inner._replace(kind=outer.kind, region=outer.region)
            place -= 1
    return events


class _Reorder:
    """Puts the events into canonical order; ``position`` maps each kept event's index to its moment's."""

    def __init__(self, trace: Trace) -> None:
        self._events = _inner_sums_first(trace)
        self._real = {number for number, region in enumerate(trace.regions) if region.real}
        self._replays: dict[int, tuple[int, int]] = {}
        self._last_end: dict[int, int] = {}
        begun: dict[int, int] = {}
        for number, event in enumerate(self._events):
            if event.kind == REPLAY_IN:
                begun[event.region] = number
            elif event.kind == REPLAY_OUT:
                self._replays[event.region] = (begun[event.region], number)
            elif event.kind == BACKWARD_END:
                self._last_end[event.region] = number
        self._unended: dict[int, list[int]] = defaultdict(list)
        for number, region in enumerate(trace.regions):
            if number not in self._last_end:
                self._unended[region.unit].append(number)
        self._moments: list[Moment] = []
        self._position: dict[int, int] = {}

    def run(self) -> tuple[list[Moment], dict[int, int]]:
        self._emit(0, len(self._events), 0)
        return self._moments, self._position

    def _emit(self, start: int, end: int, shift_bytes: int) -> None:
        number = start
        while number < end:
            event = self._events[number]
            if event.kind == REPLAY_IN:  # Its events stand where the first pass was.
                number = self._replays[event.region][1] + 1
                continue
            if event.kind == BACKWARD_END and self._last_end[event.region] != number:
                self._position[number] = len(self._moments)
                self._append(event, shift_bytes, kind="mark")
            elif event.kind in (BACKWARD_START, RESTORE) and event.region in self._real:
                self._append_restore(number, event, shift_bytes)
            elif event.kind == BACKWARD_OUT:
                for region in self._unended.pop(event.unit, []):
                    self._append(event, shift_bytes, kind=BACKWARD_END, region=region)
                self._position[number] = len(self._moments)
                self._append(event, shift_bytes)
            else:
                self._position[number] = len(self._moments)
                self._append(event, shift_bytes)
                if event.kind == FORWARD_IN and event.region in self._replays:
                    self._emit_replay(event, shift_bytes)
                    number = self._first_pass_end(number, end)
                    continue
            number += 1

    def _emit_replay(self, entry: Event, shift_bytes: int) -> None:
        start, stop = self._replays[entry.region]
        inner = shift_bytes + entry.level_bytes - self._events[start].level_bytes
        phase = entry.phase
        first = len(self._moments)
        self._emit(start + 1, stop, inner)
        self._position[stop] = len(self._moments)
        self._append(self._events[stop], inner, kind=FORWARD_END)
        for number in range(first, len(self._moments)):
            self._moments[number] = self._moments[number]._replace(phase=phase)

    def _first_pass_end(self, number: int, end: int) -> int:
        """Index of the forward-out event of the region entered at ``number``; its own interval was the first pass."""
        region = self._events[number].region
        for later in range(number + 1, end):
            if self._events[later].kind == FORWARD_OUT and self._events[later].region == region:
                self._position[later] = len(self._moments)
                before = self._moments[-1]
                self._moments.append(Moment(FORWARD_OUT, region, before.unit, before.phase, 0, before.level_bytes))
                shift = self._moments[self._position[number]].level_bytes - self._events[number].level_bytes
                self._moments[-1] = self._moments[-1]._replace(level_bytes=self._events[later].level_bytes + shift)
                return later + 1
        return end

    def _append_restore(self, number: int, event: Event, shift_bytes: int) -> None:
        """The replay stands in the forward; what is left here is the state after it."""
        level = event.level_bytes
        if event.region in self._replays and self._replays[event.region][0] > number:
            level = self._events[self._replays[event.region][1]].level_bytes
        kind = event.kind
        self._position[number] = len(self._moments)
        self._moments.append(
            Moment(kind, event.region, event.unit, event.phase, level + shift_bytes, event.peak_bytes + shift_bytes)
        )

    def _append(self, event: Event, shift_bytes: int, *, kind: str | None = None, region: int | None = None) -> None:
        self._moments.append(
            Moment(
                kind or event.kind,
                event.region if region is None else region,
                event.unit,
                event.phase,
                event.level_bytes + shift_bytes,
                event.peak_bytes + shift_bytes,
            )
        )


class _Storages:
    """One name for each logical storage; what outlives the step has none."""

    def __init__(self, trace: Trace) -> None:
        self._persistent = set(trace.persistent)
        self._name: dict[int, int] = {}
        for region in trace.regions:
            for first, replayed in zip(region.outputs, region.replayed_outputs, strict=False):
                if first != replayed:
                    self._name[replayed] = first

    def known(self, storages: tuple[int, ...]) -> tuple[int, ...]:
        """The logical names, without what is persistent and without repeats."""
        named = (self._find(storage) for storage in storages)
        return tuple(dict.fromkeys(name for name in named if name not in self._persistent))

    def _find(self, storage: int) -> int:
        while storage in self._name:
            storage = self._name[storage]
        return storage

    def batch(self, trace: Trace, entries: tuple[Entry, ...]) -> tuple[tuple[int, int], ...]:
        """Inputs of layers that no region made and nothing saved: they came with the batch."""
        made = {name for region in trace.regions for name in self.known(region.outputs)}
        saved = {entry.storage for entry in entries}
        unit_of = {name: region.unit for region in trace.regions if region.label == "layer" for name in self.known(region.inputs)}
        return tuple(sorted((name, unit) for name, unit in unit_of.items() if name not in made and name not in saved))
