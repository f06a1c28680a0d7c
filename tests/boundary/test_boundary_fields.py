from __future__ import annotations

from typing import Any

import pytest
from boundary_cases import DENSE, moe, moonlight, workload
from hypothesis import given
from hypothesis import strategies as st

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import check
from autotune.boundary.layers import checkpoint_groups
from autotune.boundary.legacy import read_settings
from autotune.boundary.submodels import own_settings, submodels
from autotune.errors import RequestError
from autotune.records import from_builtins, to_builtins

LABELS = st.sampled_from(["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"])
BOUNDARIES = st.one_of(
    st.just(Boundary.off()),
    st.builds(Boundary.selective, st.lists(LABELS)),
    st.builds(Boundary.full, st.sampled_from(["uniform", "block"]), st.integers(0, 80)),
)


@given(BOUNDARIES)
def test_fields_and_json_round_trip(boundary: Boundary) -> None:
    assert Boundary.from_fields(boundary.to_fields()) == boundary
    assert from_builtins(to_builtins(boundary), Boundary, setting="boundary") == boundary
    fields = boundary.to_fields()
    assert list(fields) == [f"recompute_{name}" for name in ("granularity", "modules", "method", "num_layers")]
    assert fields["recompute_modules"] is not None


@given(st.lists(LABELS).flatmap(lambda labels: st.tuples(st.just(labels), st.permutations(labels))))
def test_a_list_has_no_order_and_no_doubles(lists: tuple[list[str], list[str]]) -> None:
    written, permuted = lists
    first = Boundary.from_fields({"recompute_granularity": "selective", "recompute_modules": written})
    second = Boundary.from_fields({"recompute_granularity": "selective", "recompute_modules": [*permuted, *written]})
    assert first == second
    assert first.key == second.key


@given(BOUNDARIES, st.sampled_from(["0.16.1", "0.19.2", "2a75ac12", "d98e8a64", None]), st.booleans(), st.booleans())
def test_every_boundary_gets_exactly_one_status(boundary: Boundary, core: str | None, mla: bool, graphs: bool) -> None:
    features = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)} if graphs else {}
    work = moonlight(megatron_core=core, **features) if mla else moe(megatron_core=core, **features)
    found = check(work, boundary, DENSE, chunk_layers=(12, 12))
    assert found.status in ("distinct", "same_as", "no_effect", "invalid", "not_checkable")
    assert (found.same_as is not None) is (found.status in ("same_as", "no_effect"))
    assert (found.deciding is None) is (found.status == "distinct")
    if found.same_as is not None:
        again = check(work, found.same_as, DENSE, chunk_layers=(12, 12))
        assert again.status in ("distinct", "not_checkable"), "an equal boundary is reduced once and for all"


@given(st.integers(1, 100), st.integers(1, 100))
def test_groups_hold_every_layer_once(step: int, layers: int) -> None:
    groups = checkpoint_groups(Boundary.full("uniform", step), layers)
    assert [layer for group in groups for layer in group] == list(range(layers))
    assert all(len(group) == step for group in groups[:-1])
    block = checkpoint_groups(Boundary.full("block", step), layers)
    assert [list(group) for group in block] == [[layer] for layer in range(min(step, layers))]


def test_selective_and_off_have_no_groups() -> None:
    assert checkpoint_groups(Boundary.selective(["mlp"]), 8) == ()
    assert checkpoint_groups(Boundary.off(), 8) == ()


@pytest.mark.parametrize(
    ("boundary", "rule"),
    [
        (Boundary("selective", ("mlp",), None, 4), "selective_with_num_layers"),
        (Boundary("full", (), None, 4), "full_without_method"),
        (Boundary("full", (), "uniform", None), "full_without_num_layers"),
        (Boundary.full("uniform", 0), "full_num_layers_below_one"),
        (Boundary.full("block", -1), "full_num_layers_below_one"),
    ],
)
def test_wrong_fields_are_invalid(boundary: Boundary, rule: str) -> None:
    found = check(workload(), boundary, DENSE, chunk_layers=(24,))
    assert found.status == "invalid"
    assert found.deciding is not None
    assert found.deciding.rule == rule


def test_block_of_no_layers_has_no_effect() -> None:
    found = check(workload(), Boundary.full("block", 0), DENSE, chunk_layers=(24,))
    assert (found.status, found.same_as) == ("no_effect", Boundary.selective())


# Older switches


@pytest.mark.parametrize(
    ("fields", "modules"),
    [
        ({"moe_layer_recompute": True}, ("core_attn", "moe")),
        ({"moe_layer_recompute": True, "recompute_modules": ["moe_act"]}, ("moe", "moe_act")),
        (
            {"moe_layer_recompute": True, "recompute_granularity": "selective", "recompute_modules": ["layernorm"]},
            ("layernorm", "moe"),
        ),
        ({"recompute_activations": True}, ("core_attn",)),
        ({"model.recompute_granularity": "selective", "model.recompute_modules": ["mlp"]}, ("mlp",)),
    ],
)
def test_older_switches_become_a_boundary(fields: dict[str, Any], modules: tuple[str, ...]) -> None:
    assert read_settings(fields).boundary == Boundary.selective(modules)


def test_older_switches_are_told() -> None:
    assert read_settings({"moe_layer_recompute": True, "distribute_saved_activations": True}).notes == (
        "moe_layer_recompute (deprecated) adds moe to recompute_modules",
        "distribute_saved_activations is not one of the four fields: it stays as the workload has it",
    )


def test_switches_that_megatron_refuses() -> None:
    with pytest.raises(RequestError, match="checkpoint_activations=True: is no longer taken by Megatron"):
        read_settings({"checkpoint_activations": True})
    with pytest.raises(RequestError, match="moe_layer_recompute=True: does not go with full recompute"):
        read_settings(
            {
                "moe_layer_recompute": True,
                "recompute_granularity": "full",
                "recompute_method": "uniform",
                "recompute_num_layers": 1,
            }
        )


@pytest.mark.parametrize(
    ("name", "setting", "part", "reached"),
    [
        ("qwen3_vl_30b_a3b_pretrain", "model.vision_config", "vision tower", "full only"),
        ("nemotron_omni_sft", "model.sound_config", "sound encoder", "no"),
        ("gemma3_vl_12b_sft", "model.freeze_vision_model", "vision tower", "unknown"),
    ],
)
def test_submodels_of_a_multimodal_model_are_named(name: str, setting: str, part: str, reached: str) -> None:
    found = submodels(workload(name=name, other={setting: {"depth": 27}}))
    assert [(each.name, each.reached) for each in found] == [("language model", "yes"), (part, reached)]
    assert all(each.why for each in found)


def test_a_language_model_has_no_submodels() -> None:
    assert submodels(workload(other={"model.moe_router_pre_softmax": True, "model.vision_config": None})) == ()


def test_a_submodels_own_setting_is_named() -> None:
    other = {"model.vision_config.recompute_granularity": "full", "model.vision_config.depth": 3, "model.x": None}
    assert own_settings(other) == (
        "model.vision_config.recompute_granularity='full' is a sub-model's own setting; the patch of cfg.model leaves it",
    )
