from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import RequestError
from autotune.workload.architecture import LayerKind, classify
from autotune.workload.catalog import load
from autotune.workload.workload import Workload


@pytest.mark.parametrize(
    ("alias", "class_", "title"),
    [
        ("nemotron3nano", "hybrid", "attention + Mamba + MoE, 52 layers: 23 Mamba, 6 attention, 23 MoE"),
        ("nemotron3super", "hybrid", "attention + Mamba + MoE, 88 layers: 40 Mamba, 8 attention, 40 MoE"),
        ("moonlight16b", "mla", "MLA + MoE, 1 dense layer of 27"),
        ("deepseek_v3", "mla", "MLA + MoE, 3 dense layers of 61"),
        ("kimi_k2", "mla", "MLA + MoE, 1 dense layer of 61"),
        ("llama3_8b", "dense", "attention + dense FFN"),
        ("llama3_70b_sft", "dense", "attention + dense FFN"),
        ("qwen3_30b_a3b", "moe", "attention + MoE"),
        ("gpt_oss_120b", "moe", "attention + MoE"),
        ("qwen3_next_80b_a3b", "gdn", "attention + GDN + MoE, 36 GDN layers of 48"),
    ],
)
def test_catalog_recipe(alias: str, class_: str, title: str) -> None:
    architecture = classify(load(alias))
    assert architecture.class_ == class_
    assert architecture.title == title
    assert len(architecture.layers) == load(alias).model.num_layers


def test_layers_of_the_mixtures() -> None:
    moonlight = classify(load("moonlight16b"))
    assert moonlight.layers[0] == LayerKind("mla", "dense")
    assert set(moonlight.layers[1:]) == {LayerKind("mla", "moe")}
    qwen = classify(load("qwen3_next_80b_a3b"))
    assert [kind.mixer for kind in qwen.layers[:4]] == ["gdn", "gdn", "gdn", "attention"]
    nano = classify(load("nemotron3nano"))
    assert nano.count(mixer="mamba") == nano.count(mlp="moe") == 23
    assert nano.count(mixer="attention", mlp="none") == 6


@pytest.mark.parametrize(
    ("impl", "backend", "class_"),
    [
        ("local", "auto", "standard"),
        ("transformer_engine", "unfused", "standard"),
        ("transformer_engine", "local", "standard"),
        ("transformer_engine", "auto", "dense"),
        ("transformer_engine", "flash", "dense"),
    ],
)
def test_standard_is_dense_with_scores_in_memory(impl: str, backend: str, class_: str) -> None:
    workload = load("llama3_8b")
    features = replace(workload.features, transformer_impl=impl, attention_backend=backend)
    assert classify(replace(workload, features=features)).class_ == class_


def _model(workload: Workload, **changes: object) -> Workload:
    return replace(workload, model=replace(workload.model, **changes))  # type: ignore[arg-type]


def test_intervals_of_megatron() -> None:
    # moe_layer_freq N: layers 0, N, 2N; linear_attention_freq N: softmax attention ends every group of N.
    every_other = classify(_model(load("qwen3_30b_a3b"), moe_layer_freq=2, num_layers=5))
    assert [kind.mlp for kind in every_other.layers] == ["moe", "dense", "moe", "dense", "moe"]
    gdn = classify(_model(load("qwen3_next_80b_a3b"), linear_attention_freq=3, num_layers=6))
    assert [kind.mixer for kind in gdn.layers] == ["gdn", "gdn", "attention"] * 2


@pytest.mark.parametrize(
    ("alias", "changes", "message"),
    [
        ("moonlight16b", {"moe_layer_freq": (0, 1)}, "model.moe_layer_freq: has 2 entries for 27 layers, each to be 0 or 1"),
        ("qwen3_next_80b_a3b", {"linear_attention_freq": None}, "model.linear_attention_freq: gated_delta_net needs it"),
        ("nemotron3nano", {"hybrid_layer_pattern": "MEM", "num_layers": 4}, "describes 3 layers but model.num_layers is 4"),
        ("nemotron3nano", {"hybrid_layer_pattern": "MX", "num_layers": 2}, "'X' is no layer symbol"),
    ],
)
def test_impossible_pattern(alias: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        classify(_model(load(alias), **changes))
    assert message in str(caught.value)
