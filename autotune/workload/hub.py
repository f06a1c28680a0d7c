"""Model facts of the Hugging Face hub for machines that cannot reach it.

``search_spaces/hub`` holds the configuration facts of the models that recipes of the catalog build from the hub, one
JSON file a model, each with its source. They are served to Bridge as a hub cache, so its own conversion code runs on
them unchanged; what the user's own cache holds goes first.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import search_spaces
from autotune.records import load_json

_FOLDER = Path(search_spaces.__file__).parent / "hub"
_REVISION = "0" * 40
_CONFIG_CLASS = """from transformers import PretrainedConfig


class StandInConfig(PretrainedConfig):
    model_type = "{model_type}"

    def __init__(self, **kwargs):
        # The base class reads this one while it normalises the rotary fields.
        self.max_position_embeddings = kwargs.get("max_position_embeddings")
        super().__init__(**kwargs)
"""
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """Facts of one hub model.

    Attributes:
        model_id: Name on the hub.
        source: Where the facts come from.
        tokenizer_vocab_size: ``len(tokenizer)``: what Megatron's HuggingFaceTokenizer calls its vocabulary size.
        config: The fields of its ``config.json`` that shape the network, or None if only the tokenizer is known.
        own_config_class: Whether the model's configuration class comes with it (remote code); a plain one stands in.
    """

    model_id: str
    source: str
    tokenizer_vocab_size: int | None = None
    config: Mapping[str, Any] | None = None
    own_config_class: bool = False


@cache
def hub_models() -> tuple[HubModel, ...]:
    """All known hub models."""
    return tuple(load_json(path, HubModel) for path in sorted(_FOLDER.glob("*.json")))


def tokenizer_sizes() -> dict[str, int]:
    """Vocabulary size by model name, for tokenizers that are not at hand."""
    return {m.model_id: m.tokenizer_vocab_size for m in hub_models() if m.tokenizer_vocab_size is not None}


def reachable(environment: Mapping[str, str]) -> bool:
    """Whether the hub can be asked: not switched off, and its host accepts a connection."""
    if environment.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return False
    endpoint = urlsplit(environment.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        with socket.create_connection((endpoint.hostname or "", endpoint.port or 443), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False


@contextmanager
def offline_cache(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A temporary hub cache of the user's own models plus the known ones; yields the variables that select it."""
    own = _own_cache(environment)
    with tempfile.TemporaryDirectory(prefix="autotune-hub-") as folder:
        for path in sorted(own.glob("models--*")) if own.is_dir() else ():
            (Path(folder) / path.name).symlink_to(path)
        for model in hub_models():
            root = Path(folder) / f"models--{model.model_id.replace('/', '--')}"
            if model.config is not None and not root.exists():
                _write_model(root, model)
        yield {"HF_HUB_CACHE": folder, "HF_MODULES_CACHE": str(Path(folder) / "modules"), "HF_HUB_OFFLINE": "1"}


def _write_model(root: Path, model: HubModel) -> None:
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(_REVISION)
    snapshot = root / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    config = dict(model.config or {})
    if model.own_config_class:
        config["auto_map"] = {"AutoConfig": "configuration_stand_in.StandInConfig"}
        (snapshot / "configuration_stand_in.py").write_text(_CONFIG_CLASS.format(model_type=config["model_type"]))
    (snapshot / "config.json").write_text(json.dumps(config))


def _own_cache(environment: Mapping[str, str]) -> Path:
    # huggingface_hub/constants.py: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.
    if "HF_HUB_CACHE" in environment:
        return Path(environment["HF_HUB_CACHE"])
    if "HF_HOME" in environment:
        return Path(environment["HF_HOME"]).expanduser() / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"
