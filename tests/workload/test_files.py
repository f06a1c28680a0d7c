from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.errors import RequestError
from autotune.records import dump_json, to_builtins
from autotune.workload.catalog import load
from autotune.workload.hub import hub_models
from autotune.workload.resolve import resolve_workload


def smallest() -> dict[str, Any]:
    return {
        "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "ffn_hidden_size": 128, "vocab_size": 100},
        "parallel": {"world_size": 2, "tensor_model_parallel_size": 2},
        "train": {"seq_length": 32, "global_batch_size": 4},
    }


def test_workload_json_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    workload = resolve_workload("moonlight16b")
    path.write_text(dump_json(workload))
    assert resolve_workload(str(path)) == workload


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_users_own_file_needs_sizes_only(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine.{suffix}"
    path.write_text(json.dumps(smallest()) if suffix == "json" else yaml.safe_dump(smallest()))
    workload = resolve_workload(str(path), overrides=["train.global_batch_size=8", "model.params_dtype=fp16"])
    assert (workload.name, workload.source.kind) == ("mine", "file")
    assert workload.num_microbatches == 8
    assert workload.precision.params_dtype == "fp16"


def change(section: str, field: str, value: object) -> dict[str, Any]:
    content = smallest()
    if value is None:
        del content[section][field]
    else:
        content[section][field] = value
    return content


BAD_FILES = [
    (
        change("model", "num_layers", None),
        ": Object missing required field `num_layers` - at `$.model`; give a valid Workload",
    ),
    (change("model", "num_layers", "two"), ": Expected `int`, got `str` - at `$.model.num_layers`; give a valid Workload"),
    (change("model", "num_layer", 3), "='model.num_layer': no such field in a workload; did you mean model.num_layers?"),
    (
        change("parallel", "world_size", 3),
        "world_size=3: tp 2 x pp 1 x cp 1 = 2 does not divide it; change the layout or the number of GPUs",
    ),
    (
        change("model", "num_attention_heads", 3),
        "model.tensor_model_parallel_size=2: does not divide model.num_attention_heads=3; choose a divisor",
    ),
    (
        change("model", "hidden_size", 0),
        "model.hidden_size=0: has to be positive; give model.hidden_size=N with N of at least 1",
    ),
    (
        change("train", "micro_batch_size", 3),
        "train.global_batch_size=4: is no multiple of micro batch 3 x dp 1 = 3; use 3, or change the layout",
    ),
    (
        change("model", "hybrid_layer_pattern", "MQ"),
        "model.hybrid_layer_pattern='MQ': 'Q' is no layer symbol; use M G * D + - E, | between pipeline chunks and / before MTP",
    ),
    (
        {"a": 1},
        ": is neither a workload (model, parallel, train ...) nor a Hugging Face config (model_type ...); "
        "for Megatron-LM arguments write megatron_args:",
    ),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_file_is_one_line(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(content))
    with pytest.raises(RequestError) as caught:
        resolve_workload(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_files_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        resolve_workload(str(tmp_path / "absent.json"))
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(RequestError, match="is no valid JSON"):
        resolve_workload(str(tmp_path / "broken.json"))
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(RequestError, match="is no valid YAML") as caught:
        resolve_workload(str(tmp_path / "broken.yaml"))
    assert "\n" not in str(caught.value)


# Alias of a snapshot that Bridge made of the same hub model, and the model fields that its recipe (not the model) decides.
RECIPES_OWN = frozenset(
    {
        "should_pad_vocab",
        "moe_router_force_load_balancing",
        "moe_router_fusion",
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend",
        "moe_shared_expert_overlap",
        "moe_router_load_balancing_type",
        "moe_expert_capacity_factor",
        "moe_pad_expert_input_to_capacity",
        "mtp_num_layers",
        "mtp_use_repeated_layer",
        "mtp_hybrid_override_pattern",
        "hybrid_layer_pattern",
        "linear_attention_freq",
        "kv_channels",
    }
)


@pytest.mark.parametrize(
    ("alias", "model_id"),
    [
        ("moonlight16b", "moonshotai/Moonlight-16B-A3B"),
        ("llama3_8b", "meta-llama/Meta-Llama-3-8B"),
        ("llama31_405b", "meta-llama/Meta-Llama-3.1-405B"),
        ("qwen3_235b_a22b", "Qwen/Qwen3-235B-A22B"),
        ("qwen3_next_80b_a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("deepseek_v3", "deepseek-ai/DeepSeek-V3"),
        ("kimi_k2", "moonshotai/Kimi-K2-Instruct"),
        ("gpt_oss_120b", "openai/gpt-oss-120b"),
        ("nemotron3super", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
    ],
)
def test_hugging_face_config_agrees_with_bridge(tmp_path: Path, alias: str, model_id: str) -> None:
    config = next(model.config for model in hub_models() if model.model_id == model_id)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    ours = to_builtins(resolve_workload(str(path), overrides=["world_size=64"]).model)
    bridges = to_builtins(load(alias).model)
    assert {field for field in ours if ours[field] != bridges[field]} <= RECIPES_OWN


def test_hugging_face_config_needs_a_world_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}))
    with pytest.raises(RequestError) as caught:
        resolve_workload(str(path))
    assert str(caught.value) == "world_size: a Hugging Face config names no number of GPUs; add world_size=N"
    path.write_text(json.dumps({"model_type": "rwkv"}))
    with pytest.raises(RequestError, match="no reader for this model_type"):
        resolve_workload(str(path), overrides=["world_size=8"])


def test_layout_of_a_hugging_face_config(tmp_path: Path) -> None:
    config = next(model.config for model in hub_models() if model.model_id == "Qwen/Qwen3-30B-A3B")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    layout = ["world_size=16", "model.tensor_model_parallel_size=2", "model.expert_model_parallel_size=8"]
    workload = resolve_workload(str(path), overrides=layout)
    assert workload.source.kind == "hf_config"
    assert workload.parallel.sequence_parallel
    assert workload.parallel.etp == 1
    assert workload.train.global_batch_size == workload.parallel.data_parallel_size == 8
