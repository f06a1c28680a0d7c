"""Tables in the form of the seed's: which catalog recipe a table ran, and with which batch and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.errors import RequestError
from autotune.workload.workload import Workload
from benchmarks.model_rows import lay_over, load_recipe

_ALIASES = {"moonlight_16b": "moonlight16b", "nemotron_3_nano": "nemotron3nano", "llama3_70b_sft": "llama3_70b_sft"}
_FACTS = ("seq_length", "micro_batch_size", "global_batch_size", "tp", "pp", "vpp", "cp", "ep", "precision")


def seed_rows_workload(table: Mapping[str, Any]) -> Workload:
    """The workload of a table.

    Raises:
        RequestError: The table's name or recipe is not one of the catalog's.
    """
    facts = table.get("workload") or {}
    alias = _ALIASES.get(str(table["name"])) or str(facts.get("recipe") or "")
    if not alias:
        raise RequestError("workload.recipe", None, "is missing in a table", "name a recipe of the catalog")
    gpu = str(facts.get("gpu", "H100")).split()[0]
    workload = lay_over(
        load_recipe(alias),
        {name: facts[name] for name in _FACTS if name in facts},
        world_size=facts.get("gpus"),
        gpu=gpu,
    )
    revisions = table.get("revisions") or {}
    known = {"megatron_core": revisions.get("megatron_core"), "megatron_bridge": revisions.get("bridge")}
    stack = replace(workload.stack, **{name: value for name, value in known.items() if value})
    return replace(workload, stack=stack)
