from __future__ import annotations

import pytest
from boundary_cases import DENSE, MOE, MOONLIGHT, NEMOTRON, Architecture, layers, moe, moonlight, nemotron, workload
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.boundary.accepted import Accepted
from autotune.boundary.boundary import Boundary
from autotune.boundary.labels import LABELS
from autotune.search.candidate import Candidate
from autotune.search.space import build_candidates, explain
from autotune.search.space_file import SpaceFile, space_of_class


def by_key(candidates: tuple[Candidate, ...]) -> dict[str, Candidate]:
    found = {candidate.boundary.key: candidate for candidate in candidates}
    assert len(found) == len(candidates), "a boundary is listed once"
    return found


def keys(candidates: tuple[Candidate, ...], status: str = "distinct") -> list[str]:
    return [candidate.boundary.key for candidate in candidates if candidate.status == status]


def test_control_comes_first_and_off_is_the_same() -> None:
    candidates = build_candidates(workload(), DENSE, chunk_layers=(24,))
    assert [candidate.order for candidate in candidates] == list(range(len(candidates)))
    assert (candidates[0].boundary, candidates[0].status) == (Boundary.selective(), "distinct")
    assert (candidates[1].boundary, candidates[1].same_as) == (Boundary.off(), Boundary.selective())


def test_moonlight_starts_from_the_up_projection_and_the_activation() -> None:
    candidates = build_candidates(moonlight(), MOONLIGHT, chunk_layers=(27,))
    assert keys(candidates)[:6] == ["[]", "mla_up_proj", "moe_act", "layernorm", "shared_experts", "core_attn"]
    selective = [key for key in keys(candidates) if not key.startswith("full")]
    assert len(selective) == 2**7
    assert by_key(candidates)["gdn_norm_out"].status == "invalid"


def test_nemotron_offers_narrow_sets_before_the_whole_moe() -> None:
    candidates = build_candidates(nemotron(), NEMOTRON, chunk_layers=(52,))
    order = keys(candidates)
    assert order[:5] == ["[]", "moe_act", "layernorm", "shared_experts", "core_attn"]
    assert order.index("layernorm+moe_act+shared_experts") < order.index("moe")
    found = by_key(candidates)
    assert found["mlp"].status == "no_effect"
    assert found["core_attn"].status == "distinct", "captured attention still replays before the capture"
    assert "before graph capture" in found["core_attn"].reason
    assert [found[key].status for key in ("full/block/1", "full/uniform/1")] == ["invalid", "invalid"]
    assert "full/uniform/2" not in found, "one row a method tells why full cannot run"


def test_nested_labels_stay_distinct() -> None:
    found = by_key(build_candidates(moonlight(), MOONLIGHT, chunk_layers=(27,)))
    for key in ("moe", "moe+moe_act", "moe+shared_experts", "moe+moe_act+shared_experts"):
        assert found[key].status == "distinct"


def test_dense_model_with_fused_norms_has_two_labels() -> None:
    candidates = build_candidates(workload(), DENSE, chunk_layers=(24,))
    assert [key for key in keys(candidates) if not key.startswith("full")] == ["[]", "core_attn", "mlp", "core_attn+mlp"]
    assert set(keys(candidates, "no_effect")) == {"layernorm", "moe", "shared_experts"}


def test_recipes_own_setting_is_listed_with_what_it_amounts_to() -> None:
    own = {"recompute_granularity": "selective", "recompute_modules": ["core_attn", "layernorm"]}
    found = by_key(build_candidates(workload(recipe_recompute=own), DENSE, chunk_layers=(24,)))["core_attn+layernorm"]
    assert (found.status, found.same_as) == ("same_as", Boundary.selective(["core_attn"]))
    assert "every norm is fused" in found.reason


def test_unfused_attention_puts_the_core_first() -> None:
    local = build_candidates(moe(transformer_impl="local"), MOE, chunk_layers=(24,))
    assert keys(local)[1] == "core_attn"
    fused = build_candidates(moe(), MOE, chunk_layers=(24,))
    assert keys(fused)[1] == "moe_act"
    assert space_of_class("standard").labels[0].label == "core_attn"


def test_block_depths_count_layers_of_a_chunk() -> None:
    # 61 layers on 16 stages of 2 virtual chunks: one or two layers a chunk
    chunks = (2,) * 29 + (1,) * 3
    full = [c for c in build_candidates(workload(num_layers=61), DENSE, chunk_layers=chunks) if c.boundary.granularity == "full"]
    assert [(c.boundary.key, c.status) for c in full] == [
        ("full/block/1", "distinct"),
        ("full/block/2", "same_as"),
        ("full/uniform/1", "distinct"),
        ("full/uniform/2", "distinct"),
    ]


def test_long_chunks_get_a_useful_number_of_depths() -> None:
    tall = Architecture("dense", layers((126, "attention", "dense")))
    full = [
        c.boundary
        for c in build_candidates(workload(num_layers=126), tall, chunk_layers=(126,))
        if c.boundary.granularity == "full"
    ]
    depths = [b.num_layers for b in full if b.method == "block"]
    assert (depths[0], depths[-1], len(depths)) == (1, 126, 16)
    assert [b.num_layers for b in full if b.method == "uniform"] == [1, 2, 4, 8, 16, 32, 64]


def test_gdn_label_is_offered_where_the_revision_has_it_and_named_missing_where_not() -> None:
    qwen = Architecture("gdn", layers((3, "gdn", "moe"), (1, "attention", "moe")) * 6)
    settings = {"experimental_attention_variant": "gated_delta_net"}
    now = by_key(build_candidates(moe(**settings), qwen, chunk_layers=(24,)))
    assert now["gdn_norm_out"].status == "distinct"
    old = by_key(build_candidates(moe(megatron_core="0.18.2", **settings), qwen, chunk_layers=(24,)))
    assert old["gdn_norm_out"].status == "invalid"
    assert "gdn_norm_out (missing here, first in 0.19.0 or commit ff5264c3)" in old["gdn_norm_out"].reason
    assert not any("gdn_norm_out+" in key for key in old)


def test_label_that_only_the_revision_knows_is_offered_to_try() -> None:
    accepted = Accepted(labels=frozenset({*LABELS, "quantum_norm"}), basis="installed", revision="0.21.0")
    found = by_key(build_candidates(workload(), DENSE, accepted=accepted, chunk_layers=(24,)))["quantum_norm"]
    assert found.status == "not_checkable"
    assert found.reason == "quantum_norm: unknown to autotune, accepted by Megatron Core 0.21.0; it can be tried"
    silent = replace_space(space_of_class("dense"), unknown_labels="skip")
    assert "quantum_norm" not in by_key(build_candidates(workload(), DENSE, space=silent, accepted=accepted, chunk_layers=(24,)))


def replace_space(space: SpaceFile, **changes: object) -> SpaceFile:
    import msgspec

    return msgspec.structs.replace(space, **changes)


def test_cpu_offloading_leaves_only_recompute_off() -> None:
    candidates = build_candidates(workload(cpu_offloading=True, cpu_offloading_num_layers=4), DENSE, chunk_layers=(24,))
    assert keys(candidates) == ["off"]


def test_deprecated_moe_switch_makes_the_control_the_whole_moe() -> None:
    work = moe(other={"model.moe_layer_recompute": True})
    found = by_key(build_candidates(work, MOE, chunk_layers=(24,)))
    assert found["[]"].same_as == Boundary.selective(["moe"])
    assert "moe_layer_recompute (deprecated) adds moe" in found["[]"].reason
    assert found["full/uniform/1"].status == "invalid"


def test_explain_names_what_each_label_does() -> None:
    found = by_key(build_candidates(moonlight(), MOONLIGHT, chunk_layers=(27,)))
    text = explain(found["moe+moe_act"])
    assert text.startswith("moe+moe_act: has an effect of its own; moe drops router tensors")
    assert "inside moe, whose replay it makes lighter or heavier" in text
    assert explain(found["gdn_norm_out"]).startswith("gdn_norm_out: invalid (gdn_norm_out needs")
    assert explain(found["full/block/27"]).startswith("full/block/27: same as full/uniform/1")


@settings(max_examples=24)
@given(st.permutations(["moe", "layernorm", "moe_act", "core_attn"]))
def test_order_does_not_depend_on_how_a_list_is_written(modules: list[str]) -> None:
    own = {"recompute_granularity": "selective", "recompute_modules": modules}
    reference = build_candidates(nemotron(), NEMOTRON, chunk_layers=(52,))
    permuted = build_candidates(nemotron(recipe_recompute=own), NEMOTRON, chunk_layers=(52,))
    assert [c.boundary for c in permuted] == [c.boundary for c in reference]


@settings(max_examples=40)
@given(
    features=st.fixed_dictionaries(
        {
            "cuda_graph_impl": st.sampled_from(["none", "local", "transformer_engine", "full_iteration"]),
            "cuda_graph_modules": st.sets(st.sampled_from(["attn", "mlp", "moe_router", "moe_preprocess"])).map(
                lambda scopes: tuple(sorted(scopes))
            ),
            "overlap_moe_expert_parallel_comm": st.booleans(),
            "moe_shared_expert_overlap": st.booleans(),
            "fp8": st.sampled_from([None, "hybrid"]),
            "fp8_recipe": st.sampled_from(["delayed", "tensorwise"]),
            "transformer_engine": st.sampled_from([None, "2.5.0", "2.9.0"]),
            "mtp_num_layers": st.sampled_from([None, 1]),
            "megatron_core": st.sampled_from(["0.16.1", "0.19.2", "24bad8e6", "d98e8a64", None]),
        }
    )
)
def test_every_candidate_has_one_status_and_a_reason_unless_distinct(features: dict[str, object]) -> None:
    candidates = build_candidates(moonlight(**features), MOONLIGHT, chunk_layers=(14, 13))
    found = by_key(candidates)
    for candidate in candidates:
        if candidate.status == "distinct":
            assert candidate.rule is None
            assert candidate.same_as is None
        else:
            assert candidate.rule
            assert candidate.reason
        if candidate.status in ("same_as", "no_effect"):
            assert candidate.same_as is not None
            target = found[candidate.same_as.key]
            assert target.status in ("distinct", "not_checkable"), "what others equal can be launched itself"
    assert candidates[0].boundary.is_control


def test_a_large_recipe_has_a_bounded_space() -> None:
    big = Architecture("mla", layers((3, "mla", "dense"), (58, "mla", "moe")))
    candidates = build_candidates(moonlight(num_layers=61), big, chunk_layers=(2,) * 29 + (1,) * 3)
    assert 2**7 <= len(candidates) <= 2**7 + 16


@pytest.mark.parametrize("revision", ["24bad8e6", "2a75ac12", "0.19.2"])
def test_same_space_on_the_revisions_of_bridge_06(revision: str) -> None:
    reference = build_candidates(nemotron(), NEMOTRON, chunk_layers=(52,))
    found = build_candidates(nemotron(megatron_core=revision), NEMOTRON, chunk_layers=(52,))
    assert [(c.boundary, c.status) for c in found] == [(c.boundary, c.status) for c in reference]
