"""Hydra-form overrides by Bridge's paths, applied to a workload without Bridge, with what Bridge makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import search_spaces
from autotune.errors import RequestError
from autotune.records import from_builtins, to_builtins
from autotune.workload.bridge_values import converted
from autotune.workload.fields import HOMES, LAUNCHER_PATHS, RECOMPUTE_PATHS
from autotune.workload.gpu import load_gpu
from autotune.workload.hydra_values import Override, parse_override
from autotune.workload.neutral import NEUTRAL
from autotune.workload.workload import Workload
from autotune.workload.yaml_files import read_yaml

Record = dict[str, Any]

_GRAD_PATHS = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")
# Fields that mixed_precision.setup writes over (training/mixed_precision.py:update_config_with_precision_overrides).
_OVERWRITTEN: Mapping[str, str] = {
    **{f"model.{name}": f"mixed_precision.{name}" for name in ("params_dtype", "fp8", "fp8_recipe", "fp8_param", "fp4",
       "first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16", "bf16", "fp16")},
    **{f"optimizer.{name}": f"mixed_precision.{name}" for name in ("params_dtype", "fp8_recipe", "bf16", "fp16")},
    "ddp.grad_reduce_in_fp32": "mixed_precision.grad_reduce_in_fp32",
    "ddp.fp8_param_gather": "mixed_precision.fp8_param_gather",
}  # fmt: skip


def apply(workload: Workload, overrides: Sequence[str]) -> Workload:
    """Apply overrides in order and finalise as Bridge does; each is recorded in ``source.overrides``.

    A recompute override changes ``recipe_recompute`` only. A setting that Bridge knows but a workload has no field for
    goes to ``other`` under its path, unless it is known to move no memory.

    Raises:
        RequestError: No such path (names the nearest), a value that does not fit, or a setting that Bridge would
            silently overwrite.
    """
    if not overrides:
        return workload
    parsed = [parse_override(text) for text in overrides]
    if of_bridge(workload):
        refuse_overwritten(parsed)
    record: Record = to_builtins(workload)
    for override in parsed:
        _apply_one(record, override, bridge=of_bridge(workload))
    _finalise(record, {override.path for override in parsed}, before=workload)
    record["source"]["overrides"] = [*workload.source.overrides, *overrides]
    try:
        return from_builtins(record, Workload, setting="override")
    except RequestError as error:
        raise _misfit(workload, parsed, error) from None


def _misfit(workload: Workload, parsed: Sequence[Override], error: RequestError) -> RequestError:
    """The error of the first override whose value does not fit its field."""
    record: Record = to_builtins(workload)
    for override in parsed:
        _apply_one(record, override, bridge=of_bridge(workload))
        try:
            from_builtins(record, Workload, setting="override")
        except RequestError as own:
            return RequestError(override.path, override.value, own.rule.partition(" - at ")[0], "give a value of that type")
    return error


def of_bridge(workload: Workload) -> bool:
    """Whether Bridge's mixed-precision section owns the precision fields of this workload."""
    return workload.source.kind == "bridge_recipe" or (workload.source.kind == "catalog" and workload.source.revision is not None)


def refuse_overwritten(overrides: Iterable[Override]) -> None:
    """Refuse what ``mixed_precision`` would write over without a word.

    Raises:
        RequestError: Names the path that does take effect.
    """
    for override in overrides:
        if override.path in _OVERWRITTEN:
            instead = _OVERWRITTEN[override.path]
            raise RequestError(
                override.path,
                override.value,
                f"Bridge writes {instead} over it when it finalises the configuration",
                f"write {instead}={override.text.partition('=')[2]}",
            )


def _apply_one(record: Record, override: Override, *, bridge: bool = True) -> None:
    path, value = override.path, override.value
    if path in LAUNCHER_PATHS:
        section, field = LAUNCHER_PATHS[path]
        if path == "hardware.gpu":
            value = load_gpu(str(value)).name
        elif section == "stack":
            value = override.text.partition("=")[2].strip(" '\"")  # a version, not the number 2.9
        record[section][field] = value
    elif path in RECOMPUTE_PATHS:
        record["recipe_recompute"][path.removeprefix("model.")] = value
    elif path in _GRAD_PATHS:
        record["precision"]["grad_dtype"] = "fp32" if value else record["precision"]["params_dtype"]
    elif path == "mixed_precision":
        _set_mixed_precision(record, value)
    elif path == "model.vocab_size":
        _set_vocabulary(record, value, bridge)
    elif path == "tokenizer.vocab_size":
        record["model"]["vocab_size"] = value
    elif path in HOMES:
        section, field = HOMES[path]
        record[section][field] = converted(field, value)
        if path == "mixed_precision.fp8_recipe":
            record["optimizer"]["fp8_recipe"] = value
    elif path in known_paths():
        record["other"].pop(path, None)
        if path.rpartition(".")[2] not in NEUTRAL and value != known_paths()[path]:
            record["other"][path] = value
    else:
        raise _unknown(override)


def _set_mixed_precision(record: Record, name: Any) -> None:
    recipes: Mapping[str, Mapping[str, Any]] = _bridge_fields()["mixed_precision"]
    fields = recipes.get(str(name).replace("-", "_"))
    if fields is None:
        near = get_close_matches(str(name), recipes, n=1, cutoff=0.3)
        way_out = f"did you mean {near[0]}?" if near else f"use one of {', '.join(recipes)}"
        raise RequestError("mixed_precision", name, "no mixed-precision recipe of that name", way_out)
    for field, value in fields.items():
        _apply_one(record, Override("", f"mixed_precision.{field}", value))


def _set_vocabulary(record: Record, value: Any, bridge: bool) -> None:
    # training/setup.py:_validate_and_set_vocab_size: a preset size is taken as it is, unless the tokenizer decides.
    if record["other"].get("tokenizer.use_tokenizer_vocab_size"):
        raise RequestError(
            "model.vocab_size",
            value,
            "Bridge takes the tokenizer's vocabulary in this recipe",
            "put tokenizer.use_tokenizer_vocab_size=false before it",
        )
    record["model"]["vocab_size"] = value
    if bridge:
        record["model"]["should_pad_vocab"] = False


def _unknown(override: Override) -> RequestError:
    known = set(known_paths()) | set(HOMES) | set(LAUNCHER_PATHS) | set(RECOMPUTE_PATHS)
    last = override.path.rpartition(".")[2]
    # The right name in the wrong section first (those with a home before the rest), then what is spelled alike.
    near = sorted((path for path in known if path.rpartition(".")[2] == last), key=lambda path: (path not in HOMES, path))
    near = near or get_close_matches(override.path, known, n=1, cutoff=0.6)
    way_out = f"did you mean {near[0]}?" if near else "paths begin with model, train, optimizer, ddp, mixed_precision ..."
    return RequestError(override.path, override.value, "no configuration field of that name", way_out)


@cache
def known_paths() -> Mapping[str, Any]:
    """Paths of all configuration fields of Bridge at the catalog's revision, with their defaults (``bridge_fields.yaml``)."""
    sections: Mapping[str, Mapping[str, Any]] = _bridge_fields()["sections"]
    return {f"{section}.{name}": default for section, fields in sections.items() for name, default in fields.items()}


@cache
def _bridge_fields() -> Mapping[str, Any]:
    content: Mapping[str, Any] = read_yaml(Path(search_spaces.__file__).parent / "bridge_fields.yaml")
    return content


def _finalise(record: Record, changed: set[str], *, before: Workload) -> None:
    """What Bridge and Megatron Core derive (models/transformer_config.py:finalize, training/comm_overlap.py, 0.6)."""
    parallel, features = record["parallel"], record["features"]
    if parallel["tensor_model_parallel_size"] == 1:
        parallel["sequence_parallel"] = False
    if parallel["expert_tensor_parallel_size"] is None and parallel["expert_model_parallel_size"] != 1 and of_bridge(before):
        parallel["expert_tensor_parallel_size"] = 1
    if not parallel["sequence_parallel"]:
        features["tp_comm_overlap"] = False
    if "model.microbatch_group_size_per_vp_stage" not in changed and "model.pipeline_model_parallel_size" in changed:
        parallel["microbatch_group_size_per_vp_stage"] = parallel["pipeline_model_parallel_size"]
    optimizer = record["optimizer"]
    if optimizer["use_megatron_fsdp"] and not before.optimizer.use_megatron_fsdp:
        optimizer["use_distributed_optimizer"] = True
        if "ddp.data_parallel_sharding_strategy" not in changed:
            optimizer["data_parallel_sharding_strategy"] = "optim_grads_params"  # recipes/common.py:_pretrain_common
    if "hardware.gpu" in changed and "hardware.gpus_per_node" not in changed:
        record["hardware"]["gpus_per_node"] = load_gpu(record["hardware"]["gpu"]).gpus_per_node


def with_note(workload: Workload, note: str) -> Workload:
    """The workload with one more note of its source."""
    return replace(workload, source=replace(workload.source, notes=(*workload.source.notes, note)))
