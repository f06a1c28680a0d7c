"""The sub-models of a multimodal workload, and which of them the patch of ``cfg.model`` reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.workload.workload import Workload

Reach = Literal["yes", "full only", "no", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubModel:
    """A part of a multimodal model with a configuration of its own, and what a patch of ``cfg.model`` does to it."""

    name: str
    reached: Reach
    why: str


_PARTS = {
    # name: words that a setting of model.* begins with where the part is there (providers of Megatron Bridge 600d069b)
    "vision tower": ("vision_", "freeze_vision_"),
    "audio encoder": ("audio_", "freeze_audio_"),
    "sound encoder": ("sound_", "freeze_sound_", "has_sound"),
    "thinker": ("thinker_",),
    "talker": ("talker_",),
}
_COPIES_FULL = "copies granularity, method and num_layers of the language model, and not its modules"
_FAMILIES: tuple[tuple[tuple[str, ...], Reach, str], ...] = (
    (("qwen3vl",), "full only", f"{_COPIES_FULL} (Bridge models/qwen_vl/modelling_qwen3_vl/transformer_config.py:78-80)"),
    (("ernie45vl",), "full only", f"{_COPIES_FULL} (Bridge models/ernie_vl/.../vision_transformer_config.py:93-97)"),
    (("exaone45",), "full only", f"{_COPIES_FULL} (Bridge models/exaone/.../transformer_config.py:67-69)"),
    (
        ("nemotronomni", "nemotronvl"),
        "no",
        "is built with recompute off (Bridge models/nemotron_omni/..._provider.py:106-138, 254)",
    ),
)
_NOT_STUDIED = "has a configuration of its own that was not studied: check it before counting on the patch"


def submodels(workload: Workload) -> tuple[SubModel, ...]:
    """The sub-models that the workload's settings show, the language model first; empty for a language model alone."""
    named = [
        key.removeprefix("model.") for key, value in workload.other.items() if key.startswith("model.") and value is not None
    ]
    found = [part for part, words in _PARTS.items() if any(name.startswith(words) for name in named)]
    if not found:
        return ()
    reached, why = _of_family(workload)
    language = SubModel(name="language model", reached="yes", why="cfg.model is its configuration")
    return (language, *(SubModel(name=part, reached=reached, why=why) for part in found))


def _of_family(workload: Workload) -> tuple[Reach, str]:
    words = (workload.name, workload.source.reference, str(workload.other.get("model.hf_model_id", "")))
    text = "".join(letter for letter in " ".join(words).lower() if letter.isalnum() or letter == " ")
    for family, reached, why in _FAMILIES:
        if any(word in text for word in family):
            return reached, why
    return "unknown", _NOT_STUDIED


def own_settings(other: Mapping[str, Any]) -> tuple[str, ...]:
    """Recompute settings of sub-models (``model.vision_config.recompute_granularity``), which no patch touches."""
    return tuple(
        f"{key}={value!r} is a sub-model's own setting; the patch of cfg.model leaves it"
        for key, value in sorted(other.items())
        if "recompute" in key and key.count(".") > 1 and value
    )
