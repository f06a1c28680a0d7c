"""What the recorder writes down while a step runs, in program order, under the base setting the process really has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.timeline import Kind

REPLAY_IN, REPLAY_OUT = "rep_in", "rep_out"


class Event(NamedTuple):
    """One event. ``level_bytes`` is what is allocated now, ``peak_bytes`` the highest since the previous event."""

    kind: str
    region: int
    unit: int
    phase: str
    level_bytes: int
    peak_bytes: int


class SavedTensor(NamedTuple):
    """A tensor packed by autograd; ``event`` is the index of the next event."""

    storage: int
    region: int
    event: int
    unit: int


@dataclass(slots=True, kw_only=True)
class TracedRegion:
    """One pass through a call site; ``real`` where the base really checkpoints it."""

    label: str
    kind: Kind
    real: bool
    parent: int
    unit: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    replayed_outputs: tuple[int, ...] = ()
    gradient_inputs: tuple[int, ...] = ()
    gradients: int = 0
    """How many input tensors need a gradient; several may share a storage."""
    retains: bool = False
    forward_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All of one surveyed step on one rank."""

    rank: int
    base: Boundary
    events: tuple[Event, ...]
    saved: tuple[SavedTensor, ...]
    regions: tuple[TracedRegion, ...]
    storage_bytes: tuple[int, ...]
    persistent: tuple[int, ...] = ()
    """Storages still alive after the backward pass of their unit: parameters, caches, tensors kept by modules."""
    pruned: tuple[int, ...] = ()
    """Indices into ``saved`` of entries whose graph was dropped before backward."""
    unit_chunks: tuple[int, ...] = ()
    """Model chunk of each unit; empty where there is one chunk."""
    batch: tuple[int, ...] = ()
    """Storages that came with the batch: held by the caller until the model returns."""
    restore_shares_storage: bool = True
    surplus_bytes: Mapping[str, int] = field(default_factory=dict)
