"""Rows that name a Bridge model instead of its arguments: the catalog's recipe with the row's own facts laid over it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import RequestError
from autotune.workload.megatron_arg_names import DIRECT, canonical
from autotune.workload.megatron_values import read_value
from autotune.workload.workload import Workload

_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"fp8": None, "fp8_param": False},
    "fp8_cs": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8 current scaling": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
}


def workload_of_model(args: Mapping[str, Any], *, world_size: int | None, gpu: str) -> Workload:
    """The workload of a row whose ``model`` names a recipe of the catalog (``Qwen3-30B-A3B`` -> ``qwen3_30b_a3b``).

    Raises:
        RequestError: No such recipe, or a fact that cannot be laid over it.
    """
    return lay_over(load_recipe(_alias(str(args.get("model", "")))), args, world_size=world_size, gpu=gpu)


def _alias(model: str) -> str:
    """The catalog's alias of a model's name, letters and digits compared only; a longer or shorter name if it is the only one."""
    from autotune.workload.catalog import recipes

    def squashed(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    wanted = squashed(model)
    aliases = {squashed(entry.alias): entry.alias for entry in recipes()}
    near = [alias for name, alias in aliases.items() if wanted and (name.startswith(wanted) or wanted.startswith(name))]
    return aliases.get(wanted) or (near[0] if len(near) == 1 else model)


def load_recipe(alias: str) -> Workload:
    """A recipe of the catalog.

    Raises:
        RequestError: There is none of that name.
    """
    from autotune.workload.catalog import load

    return load(alias)


def lay_over(workload: Workload, args: Mapping[str, Any], *, world_size: int | None, gpu: str) -> Workload:
    """Replace what a row says of itself.

    Raises:
        RequestError: A value of the row cannot be read.
    """
    changes: dict[str, dict[str, Any]] = {}
    for spelled, value in args.items():
        name, negated = canonical(spelled)
        if name in DIRECT:
            section, _, field = DIRECT[name].home.partition(".")
            read = read_value(spelled, value, DIRECT[name].kind)
            changes.setdefault(section, {})[field] = (not read) if negated else read
    if "vpp" in args:
        changes.setdefault("parallel", {})["virtual_pipeline_model_parallel_size"] = int(args["vpp"])
    if world_size is not None:
        changes.setdefault("parallel", {})["world_size"] = world_size
    if "num_query_groups" in args:
        changes.setdefault("model", {})["num_query_groups"] = int(args["num_query_groups"])
    if "ffn_hidden_size" in args:
        changes.setdefault("model", {})["ffn_hidden_size"] = int(args["ffn_hidden_size"])
    vocabulary = re.fullmatch(r"(\d+) padded", str(args.get("vocab", "")))
    if vocabulary:
        changes.setdefault("model", {}).update(vocab_size=int(vocabulary[1]), should_pad_vocab=False)
    precision = str(args.get("precision", "bf16")).lower()
    if precision not in _PRECISIONS:
        raise RequestError("precision", precision, "is not known", f"write one of {', '.join(_PRECISIONS)}")
    changes.setdefault("precision", {}).update(_PRECISIONS[precision])
    sections = {section: replace(getattr(workload, section), **fields) for section, fields in changes.items()}
    return replace(workload, hardware=replace(workload.hardware, gpu=gpu), recipe_recompute={}, **sections)
