"""The recipes that start Megatron-LM's functional tests: how many ranks, which program, which argument files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from benchmarks.golden_git import History

FOLDER = "tests/test_utils/recipes"
_PROGRAMS = {
    "pretrain_gpt.py": "gpt",
    "pretrain_mamba.py": "hybrid",
    "pretrain_hybrid.py": "hybrid",
    "pretrain_t5.py": "t5",
    "pretrain_bert.py": "bert",
    "pretrain_vlm.py": "multimodal",
    "train_rl.py": "reinforcement learning",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How one test is started."""

    world_size: int
    platforms: tuple[str, ...]
    kind: str
    """The model its program trains, or the program."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """``model_config`` and ``runtime_config`` where a test has no argument file of its own."""


class Recipes:
    """The recipes of every commit."""

    def __init__(self, history: History) -> None:
        self._history = history

    def of(self, commit: str, test: str, gpu: str | None) -> Recipe | None:
        """The recipe of a test (``moe/gpt3_...``) on a GPU (None: whichever it asks for), or None."""
        case = test.rsplit("/", 1)[-1]
        known = [found for path in self._paths(commit) for found in self._recipes(self._history.text(f"{commit}:{path}") or "")]
        fitting = [recipe for name, recipe in known if name == case]
        own = [recipe for recipe in fitting if gpu and any(gpu.lower() in platform for platform in recipe.platforms)]
        return next(iter([*own, *(fitting if gpu != "GB200" else ())]), None)

    def _paths(self, commit: str) -> tuple[str, ...]:
        return tuple(path for path in self._history.paths(commit, FOLDER) if path.endswith((".yaml", ".yml")))

    @lru_cache(maxsize=4096)  # noqa: B019 - one instance lives as long as its program
    def _recipes(self, text: str) -> tuple[tuple[str, Recipe], ...]:
        return tuple(_read(text))


def _read(text: str) -> Iterator[tuple[str, Recipe]]:
    """Test case and recipe of every product of a file."""
    import yaml

    try:
        whole = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return
    if not isinstance(whole, Mapping) or not isinstance(whole.get("spec"), Mapping):
        return
    for outer in whole.get("products") or ():
        inner: Mapping[str, Any]
        for inner in outer.get("products") or ({},):
            spec = {**whole["spec"], **{key: value for key, value in outer.items() if key != "products"}, **inner}
            for case in _listed(spec.get("test_case")):
                yield case, _recipe(spec)


def _recipe(spec: Mapping[str, Any]) -> Recipe:
    nodes, gpus = (int((_listed(spec.get(name)) or ["0"])[0] or 0) for name in ("nodes", "gpus"))
    script = str(spec.get("script", ""))
    for name in re.findall(r"TRAINING_SCRIPT_PATH=\{(\w+)\}", script):
        script = script.replace(f"{{{name}}}", (_listed(spec.get(name)) or [""])[0])
    program = re.search(r"TRAINING_SCRIPT_PATH=\"?([^\"\s]+)", script)
    name = program[1].rsplit("/", 1)[-1] if program else "unknown"
    parts = {key: _listed(spec[key])[0] for key in ("model_config", "runtime_config") if spec.get(key)}
    platforms = tuple(_listed(spec.get("platforms")))
    return Recipe(world_size=nodes * gpus, platforms=platforms, kind=_PROGRAMS.get(name, name), parts=parts)


def _listed(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else [] if value is None else [str(value)]
