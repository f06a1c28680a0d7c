"""The sub-models of a multimodal workload, and which of them the patch of ``cfg.model`` reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SubModel:
    """A part of a multimodal model with a configuration of its own, and what a patch of ``cfg.model`` does to it."""

    name: str
    reached: str
    """``yes``, ``full only``, ``no`` or ``unknown``."""
    why: str


_BRIDGE_SUBMODELS = (
    # (prefix of the setting, name, reached, why); read in Megatron Bridge 600d069b
    (
        "model.vision_transformer_config",
        "vision tower",
        "full only",
        "copies granularity, method and num_layers from the language model, and not modules "
        "(models/qwen_vl/modelling_qwen3_vl/transformer_config.py:78-80)",
    ),
    ("model.vision_cfg", "vision tower", "no", "sets its own to None (models/nemotron_omni/nemotron_omni_provider.py:106-108)"),
    (
        "model.vision_proj_cfg",
        "vision projector",
        "no",
        "sets its own to None (models/nemotron_omni/nemotron_omni_provider.py:136-138)",
    ),
    (
        "model.sound_proj_cfg",
        "sound projector",
        "no",
        "sets its own to None (models/nemotron_omni/nemotron_omni_provider.py:254-256)",
    ),
    ("model.vision", "vision tower", "unknown", "has a configuration of its own that was not studied"),
    ("model.audio", "audio encoder", "unknown", "has a configuration of its own that was not studied"),
    ("model.sound", "sound encoder", "unknown", "has a configuration of its own that was not studied"),
    ("model.thinker", "thinker", "unknown", "has a configuration of its own that was not studied"),
    ("model.talker", "talker", "unknown", "has a configuration of its own that was not studied"),
)


def submodels(other: Mapping[str, Any]) -> tuple[SubModel, ...]:
    """The sub-models a workload names in its other settings, and whether the boundary's patch reaches them.

    Empty for a language model alone. The language model itself is listed first, and always reached.
    """
    found: dict[str, SubModel] = {}
    for prefix, name, reached, why in _BRIDGE_SUBMODELS:
        if name not in found and any(key.startswith(prefix) for key in other):
            found[name] = SubModel(name=name, reached=reached, why=why)
    if not found:
        return ()
    return (SubModel(name="language model", reached="yes", why="cfg.model is its configuration"), *found.values())


def own_settings(other: Mapping[str, Any]) -> tuple[str, ...]:
    """Recompute settings of sub-models (``model.vision_config.recompute_granularity``), which no patch touches."""
    return tuple(
        f"{key}={value!r} is a sub-model's own setting; the patch of cfg.model leaves it"
        for key, value in sorted(other.items())
        if "recompute" in key and key.count(".") > 1 and value
    )
