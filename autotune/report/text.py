"""How figures are spelled, everywhere: each with its unit, an unknown one as a dash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.units import format_gb, format_gb_and_gib

UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The unit of a memory axis."""

    unit: str
    factor: float

    @classmethod
    def of(cls, size_bytes: float) -> Scale:
        """GB from one GB on, MB below."""
        return cls(unit="GB", factor=1e9) if size_bytes >= 1e9 else cls(unit="MB", factor=1e6)


def size(size_bytes: float | None) -> str:
    """``65.325 GB``."""
    return UNKNOWN if size_bytes is None else format_gb(size_bytes)


def signed_size(size_bytes: float) -> str:
    """A difference: ``+1.234 GB``, ``-0.120 MB``."""
    return f"{'+' if size_bytes >= 0 else ''}{format_gb(size_bytes)}"


def limit(size_bytes: float | None) -> str:
    """``75.000 GB (69.849 GiB)``: both units where a limit is at stake."""
    return UNKNOWN if size_bytes is None else format_gb_and_gib(size_bytes)


def milliseconds(value: float | None, *, signed: bool = False) -> str:
    """``657.4 ms``, or ``+31.2 ms`` for a difference."""
    return UNKNOWN if value is None else f"{value:{'+' if signed else ''}.1f} ms"


def percent(share: float | None, *, signed: bool = False) -> str:
    """A share as ``14.3 %``, or ``+14.3 %`` for a difference."""
    return UNKNOWN if share is None else f"{share * 100:{'+' if signed else ''}.1f} %"


def off(seen_bytes: int, predicted_bytes: int | None) -> str:
    """``+0.10 %``: how far a trial is from a prediction, as a share of the prediction."""
    return UNKNOWN if predicted_bytes is None else f"{100 * (seen_bytes / predicted_bytes - 1):+.2f} %"


def probability(value: float | None) -> str:
    """A probability as a whole percentage that never claims certainty: ``< 1 %``, ``37 %``, ``> 99 %``."""
    if value is None:
        return UNKNOWN
    if value < 0.01:
        return "< 1 %"
    return "> 99 %" if value > 0.99 else f"{value * 100:.0f} %"


def boundary_of(fields: Mapping[str, Any]) -> Boundary:
    """The boundary behind four fields as JSON holds them."""
    return Boundary.from_fields(fields)


def boundary_name(boundary: Boundary) -> str:
    """For people: ``no recompute``, ``[] (control)``, ``layernorm + moe_act``, ``full, uniform, 1 layer``."""
    if boundary.granularity is None:
        return "no recompute"
    if boundary.granularity == "full":
        layers = "layer" if boundary.num_layers == 1 else "layers"
        return f"full, {boundary.method}, {boundary.num_layers} {layers}"
    return " + ".join(boundary.modules) or "[] (control)"


def setting_name(fields: Mapping[str, Any]) -> str:
    """A setting as JSON holds it, by the name that people see."""
    return boundary_name(boundary_of(fields))


def python_fields(boundary: Boundary) -> tuple[tuple[str, str], ...]:
    """The four fields as Python literals, in Megatron's order; all four also where nothing is recomputed."""
    return tuple((name, repr(value).replace("'", '"')) for name, value in boundary.to_fields().items())


def hydra_fields(boundary: Boundary) -> tuple[str, ...]:
    """The four fields as Hydra overrides of a Bridge config: ``model.recompute_modules=[moe]``."""

    def literal(value: Any) -> str:
        if value is None:
            return "null"
        return f"[{','.join(value)}]" if isinstance(value, list) else str(value)

    return tuple(f"model.{name}={literal(value)}" for name, value in boundary.to_fields().items())
