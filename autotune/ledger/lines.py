"""The ledger line by line: every tensor of a layer with its bytes, what drops it, and where the formula was read."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.ledger.layers import BuiltLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One tensor of one layer kind."""

    name: str
    category: str
    layer_kind: str
    bytes_per_layer: int
    held: bool
    dropped_by: tuple[str, ...]
    """Labels that drop it when set alone."""
    formula: str
    source: str


def layer_lines(built: BuiltLayer, labels: frozenset[str], boundary: Boundary) -> list[LedgerLine]:
    """Lines of one layer kind: tensors that are held without recompute or under the labels."""
    layer = built.layer
    out: list[LedgerLine] = []
    for tensor in layer.tensors.values():
        if not tensor.nbytes or not (layer.is_held(tensor.name, frozenset()) or layer.is_held(tensor.name, labels)):
            continue
        full = boundary.granularity == "full" and built.kind is not None and not tensor.name.endswith(".x")
        out.append(
            LedgerLine(
                name=tensor.name,
                category=tensor.group,
                layer_kind=layer.name,
                bytes_per_layer=tensor.nbytes,
                held=not full and layer.is_held(tensor.name, labels),
                dropped_by=tuple(label for label in sorted(layer.labels) if not layer.is_held(tensor.name, frozenset({label}))),
                formula=tensor.formula,
                source=tensor.source,
            )
        )
    return out
