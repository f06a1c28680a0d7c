"""Settings that act like a boundary under other names, read into one or named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError

_PREFIXES = ("model.", "cfg.model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The boundary that settings amount to, and one line for each that was translated."""

    boundary: Boundary
    notes: tuple[str, ...] = ()


def read_settings(fields: Mapping[str, Any]) -> Settings:
    """Read Megatron's four fields and the older switches that set them.

    ``moe_layer_recompute`` adds ``moe`` under selective (transformer_config.py:1892-1903 at 2a75ac12);
    ``recompute_activations`` is selective (megatron/training/arguments.py:589-591). A key may carry the prefix
    ``model.``.

    Raises:
        RequestError: A switch that Megatron no longer takes, or a combination that it refuses.
    """
    given = {_plain(key): value for key, value in fields.items()}
    notes: list[str] = []
    if given.get("checkpoint_activations"):
        raise RequestError(
            "checkpoint_activations",
            given["checkpoint_activations"],
            "is no longer taken by Megatron",
            "set recompute_granularity",
        )
    if given.get("recompute_activations"):
        given["recompute_granularity"] = "selective"
        notes.append("recompute_activations means recompute_granularity selective")
    boundary = Boundary.from_fields(given)
    if given.get("moe_layer_recompute"):
        if boundary.granularity == "full":
            raise RequestError(
                "moe_layer_recompute", True, "does not go with full recompute", "unset it, or use selective with moe"
            )
        # Megatron fills an unset list with core_attn before it appends moe
        inherited = boundary.modules if boundary.granularity else given.get("recompute_modules") or ("core_attn",)
        boundary = Boundary.selective([*inherited, "moe"])
        notes.append("moe_layer_recompute (deprecated) adds moe to recompute_modules")
    if given.get("distribute_saved_activations"):
        notes.append("distribute_saved_activations is not one of the four fields: it stays as the workload has it")
    return Settings(boundary=boundary, notes=tuple(notes))


def _plain(key: str) -> str:
    for prefix in _PREFIXES:
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return key
