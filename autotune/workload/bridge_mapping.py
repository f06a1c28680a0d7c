"""From the finalised values of a Bridge configuration to a Workload, with nothing dropped unnamed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.records import from_builtins
from autotune.workload.bridge_values import converted
from autotune.workload.fields import HOMES, RECOMPUTE_PATHS
from autotune.workload.gpu import load_gpu
from autotune.workload.neutral import NEUTRAL
from autotune.workload.workload import Source, Workload

_SECOND_COPIES = frozenset({"optimizer.params_dtype", "train.num_microbatches"})
_HOST_SECTIONS = frozenset({"dataset", "rng", "tokenizer"})
"""Sections whose fields stay on the host, but for those with a home of their own."""
_GPUS = {"h100": "H100", "h200": "H200", "b200": "B200", "gb200": "GB200", "b300": "B300", "gb300": "GB300"}
_GPU_IN_NAME = re.compile(r"_[1-9][0-9]*gpu_([a-z0-9]+)_")
_QUANTISED_ONLY = frozenset({"moe_router_padding_for_fp8", "fp8_quantizer_factory", "fp4_recipe"})
"""Fields that act under FP8 or FP4 only."""
_SECTIONS = ("model", "parallel", "train", "precision", "optimizer", "features")
_APPLIED = frozenset({"mixed_precision", "comm_overlap"})
"""Sections that Bridge copies onto model, optimizer and ddp when it finalises; those copies are what is read."""


def as_workload(answer: Mapping[str, Any], *, name: str, source: Source, gpu: str | None) -> Workload:
    """Map the loader's answer (``bridge_loader.load``).

    Args:
        answer: Sections with values and defaults by Bridge's own field names, and what surrounds them.
        name: Name of the workload.
        source: Where it came from; notes of this mapping are added.
        gpu: GPU of the request, or None for the one that the recipe's name tells (H100 where it tells none).

    Raises:
        RequestError: A value does not fit its field.
    """
    sections: Mapping[str, Any] = answer["sections"]
    record: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    other: dict[str, Any] = {}
    for section, content in sections.items():
        for field_name, raw in content["values"].items():
            path = f"{section}.{field_name}"
            home = HOMES.get(path)
            if section in _APPLIED:
                continue
            if home is not None:
                value = converted(field_name, raw)
                if value is not None and value != []:
                    _set(record, home, value)
            elif _matters(section, field_name, raw, content["defaults"]):
                other[path] = raw
    if record["precision"].get("fp8") is None and record["precision"].get("fp4") is None:
        other = {path: value for path, value in other.items() if path.rpartition(".")[2] not in _QUANTISED_ONLY}
        record["precision"].pop("keep_mtp_spec_in_bf16", None)
    _derive(record, answer, sections)
    notes = list(source.notes)
    vocabulary = answer["vocabulary"]
    if vocabulary["vocab_size"] is None:
        notes.append("vocabulary size unknown: the tokenizer is not at hand; give model.vocab_size=N")
    if vocabulary["note"]:
        notes.append(vocabulary["note"])
    named = _GPU_IN_NAME.search(answer["function"])
    if gpu is None and named and named[1] not in _GPUS:
        notes.append(f"GPU {named[1]} of the recipe's name is not known: H100 assumed")
    hardware = gpu or gpu_in_name(answer["function"]) or "H100"
    return from_builtins(
        {
            "name": name,
            "source": {
                "kind": source.kind,
                "reference": source.reference,
                "revision": source.revision,
                "overrides": source.overrides,
                "notes": notes,
            },
            **record,
            "hardware": {"gpu": hardware, "gpus_per_node": load_gpu(hardware).gpus_per_node},
            "stack": {
                key: answer["revisions"][key] for key in ("megatron_core", "megatron_bridge", "transformer_engine", "torch")
            },
            "env_vars": dict(sorted(answer["env_vars"].items())),
            "other": dict(sorted(other.items())),
            "recipe_recompute": answer["recompute"],
        },
        Workload,
        setting=source.reference,
    )


def _set(record: dict[str, dict[str, Any]], home: tuple[str, str], value: Any) -> None:
    section, field_name = home
    known = record[section].get(field_name)
    # Two Bridge fields can share a home (ddp and dist, ddp and optimizer): what one of them turns on is on.
    if isinstance(known, bool) and isinstance(value, bool):
        value = known or value
    record[section][field_name] = value


def _matters(section: str, field_name: str, raw: Any, defaults: Mapping[str, Any]) -> bool:
    path = f"{section}.{field_name}"
    if section in _HOST_SECTIONS or path in RECOMPUTE_PATHS or path in _SECOND_COPIES or field_name in NEUTRAL:
        return path == "tokenizer.use_tokenizer_vocab_size" and bool(raw)
    return bool(raw != defaults.get(field_name))


def _derive(record: dict[str, dict[str, Any]], answer: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
    """Fields whose value follows from several of Bridge's."""
    model, ddp = sections["model"]["values"], sections["ddp"]["values"]
    record["model"]["vocab_size"] = answer["vocabulary"]["vocab_size"] or 0
    record["model"]["should_pad_vocab"] = answer["vocabulary"]["should_pad_vocab"]
    record["parallel"]["world_size"] = answer["world_size"]
    layout = answer["layout"]
    record["parallel"]["pipeline_model_parallel_layout"] = layout
    params = record["precision"].get("params_dtype", "fp32")
    record["precision"]["grad_dtype"] = "fp32" if ddp.get("grad_reduce_in_fp32") else params
    record["train"]["create_attention_mask_in_dataloader"] = answer["attention_mask_on_device"]
    if "peft" in sections:
        record["features"]["peft"] = sections["peft"]["type"].lower()
    if not record["optimizer"].get("use_megatron_fsdp"):
        # Only FSDP reads the strategy (distributed/fsdp/mcore_fsdp_adapter.py); recipes set it without using it.
        record["optimizer"]["data_parallel_sharding_strategy"] = "no_shard"
    if model.get("position_embedding_type") == "learned_absolute":
        # models/gpt_provider.py:provide hands the sequence length to GPTModel as max_sequence_length.
        record["model"]["max_position_embeddings"] = record["train"]["seq_length"]
    if model.get("activation_func") is None:
        record["model"]["activation_func"] = "gelu"


def gpu_in_name(recipe: str) -> str | None:
    """GPU that a recipe function's name tells (``..._16gpu_h100_...``), or None."""
    match = _GPU_IN_NAME.search(recipe)
    return _GPUS.get(match[1]) if match else None
