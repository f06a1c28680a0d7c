"""The canonical timeline of a surveyed step: what a step would do with nothing recomputed, free of the base it ran under.

Everything here is plain data of one rank. Levels are *floors*: measured bytes minus what the survival rule says is held,
so a setting's bytes at a moment are the floor plus what that setting holds (``survival.py``). Floors may be negative:
a saved tensor that backward has already freed stays in the held sum of every setting and cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["C", "W"]
"""C: an ordinary checkpoint, its outputs stay. W: CheckpointWithoutOutput, its outputs are discarded and restored."""

UNIT_IN, FORWARD_IN, FORWARD_END, FORWARD_OUT, DISCARD = "unit_in", "fwd_in", "fwd_end", "fwd_out", "discard"
MODEL_OUT, UNIT_OUT = "model_out", "unit_out"
BACKWARD_IN, BACKWARD_START, RESTORE, BACKWARD_END, BACKWARD_OUT = "bwd_in", "bwd_start", "restore", "bwd_end", "bwd_out"
SUMMED = "summed"
"""The gradient of a region's input is complete, with what came by a residual connection."""
MARK = "mark"


class Moment(NamedTuple):
    """One moment of the step, in canonical program order.

    ``peak_bytes`` is the floor of the highest level since the previous moment, ``level_bytes`` the floor right after it.
    """

    kind: str
    region: int
    """Index into the regions, -1 for none."""
    unit: int
    """Index of the forward pass (micro batch and model chunk), -1 for none."""
    phase: str
    level_bytes: int
    peak_bytes: int


class Entry(NamedTuple):
    """A tensor that autograd saved: its storage, the innermost region it was saved in (-1: none), and from when on."""

    storage: int
    region: int
    moment: int
    """Index of the moment that ends the interval in which it was saved."""
    unit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One pass through a checkpoint call site (or through a whole layer, label ``layer``)."""

    label: str
    kind: Kind
    parent: int = -1
    unit: int = 0
    ordinal: int = 0
    """Same number, same code: its model chunk and its place among the regions of a unit."""
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    gradient_input_bytes: int = 0
    """Bytes of the inputs that need a gradient."""
    gradients: int = 0
    """How many input tensors need a gradient."""
    retains: bool = False
    """A tensor made inside, with its graph, is kept by a module after the step (``retained.py``)."""
    forward_ms: float | None = None
    first_pass_bytes: int | None = None
    """Peak above entry of the pass without gradients, where the base really checkpointed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One rank's surveyed step."""

    rank: int
    storage_bytes: tuple[int, ...]
    regions: tuple[Region, ...]
    entries: tuple[Entry, ...]
    moments: tuple[Moment, ...]
    batch_storages: tuple[tuple[int, int], ...] = ()
    """(storage, unit) of tensors that the caller of the model holds until it returns (attention mask)."""
    restore_shares_storage: bool = True
    """Whether a W restore lets the discarded output share the recomputed one's storage (Megatron Core from 0.17) or copies it."""
    surplus_bytes: Mapping[str, int] = field(default_factory=dict)
    """Per phase: how far the peak over the micro batches that were not recorded lies above that of the recorded ones."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Selective labels that have a region here, sorted; every other label does nothing on this rank."""
        return tuple(sorted({region.label for region in self.regions} - {"layer", "mtp_layer"}))

    def layers_of_unit(self, unit: int) -> tuple[int, ...]:
        """Indices of the layer regions of one forward pass, in forward order."""
        return tuple(i for i, region in enumerate(self.regions) if region.unit == unit and region.label == "layer")
