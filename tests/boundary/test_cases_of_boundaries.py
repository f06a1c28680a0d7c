"""The published right answers on boundaries: hidden defaults, graphs, FP8, shared experts, uniform groups, MTP."""

from __future__ import annotations

from typing import Any

import pytest
from boundary_cases import DENSE, MOE, MOONLIGHT, NEMOTRON, moe, moonlight, nemotron, workload

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import ArchitectureLike, check
from autotune.boundary.findings import Findings
from autotune.boundary.layers import checkpoint_groups
from autotune.errors import RequestError
from autotune.workload.workload import Workload

FULL_1 = Boundary.full("uniform", 1)


def status(
    work: Workload, boundary: Boundary, architecture: ArchitectureLike = DENSE, chunks: tuple[int, ...] = (24,)
) -> Findings:
    return check(work, boundary, architecture, chunk_layers=chunks)


# Hidden default


def test_modules_none_under_selective_is_core_attn() -> None:
    assert Boundary.from_fields({"recompute_granularity": "selective", "recompute_modules": None}).modules == ("core_attn",)


def test_no_recompute_writes_all_four_fields() -> None:
    assert Boundary.off().to_fields() == {
        "recompute_granularity": None,
        "recompute_modules": [],
        "recompute_method": None,
        "recompute_num_layers": None,
    }


def test_empty_selective_list_is_the_control() -> None:
    control = Boundary.from_fields({"recompute_granularity": "selective", "recompute_modules": []})
    assert control.is_control
    assert status(workload(), control).status == "distinct"
    assert status(workload(), Boundary.off()).same_as == control


def test_granularity_megatron_does_not_have_is_refused() -> None:
    with pytest.raises(RequestError, match=r"recompute_granularity='medium': is None, selective or full; choose one of these"):
        Boundary.from_fields({"recompute_granularity": "medium"})
    with pytest.raises(RequestError, match="recompute_modules='core_attn': is a list of labels"):
        Boundary.from_fields({"recompute_granularity": "selective", "recompute_modules": "core_attn"})


# Full recompute with CUDA graphs


@pytest.mark.parametrize(
    ("graphs", "accepted"),
    [
        ({"cuda_graph_impl": "none"}, True),
        ({"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}, False),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("attn",)}, False),
        ({"cuda_graph_impl": "full_iteration"}, True),
        # releases up to 0.18 name the whole iteration as a module of the local implementation
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ("full_iteration",)}, True),
    ],
)
def test_full_needs_the_full_iteration_graph(graphs: dict[str, Any], accepted: bool) -> None:
    found = status(workload(**graphs), FULL_1)
    assert (found.status == "distinct") is accepted
    if not accepted:
        assert found.deciding is not None
        assert found.deciding.rule == "full_needs_full_iteration_graph"


# Whole MoE and the captured scope


@pytest.mark.parametrize(("scopes", "accepted"), [(("attn", "mamba"), True), (("attn", "moe_router"), False), (None, True)])
def test_moe_lies_inside_or_outside_of_the_graph(scopes: tuple[str, ...] | None, accepted: bool) -> None:
    graphs = {"cuda_graph_impl": "none", "cuda_graph_modules": ()}
    if scopes is not None:
        graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": scopes}
    found = status(nemotron(**graphs), Boundary.selective(["moe", "layernorm"]), NEMOTRON, (52,))
    assert found.status == ("distinct" if accepted else "invalid")
    if not accepted:
        assert "straddles the captured moe_router" in found.reason


# FP8


@pytest.mark.parametrize("label", ["moe_act", "layernorm"])
@pytest.mark.parametrize(
    ("fp8", "recipe", "te", "expected"),
    [
        (None, "delayed", "2.9.0", "distinct"),
        ("hybrid", "delayed", "2.9.0", "invalid"),
        ("hybrid", "tensorwise", "2.6.0", "distinct"),
        ("hybrid", "tensorwise", "2.6.0.dev0+4329ff84", "distinct"),
        ("hybrid", "tensorwise", "2.5.0", "invalid"),
        ("hybrid", "tensorwise", None, "not_checkable"),
    ],
)
def test_fp8_rules_ask_first_whether_fp8_is_set(label: str, fp8: str | None, recipe: str, te: str | None, expected: str) -> None:
    work = moe(fp8=fp8, fp8_recipe=recipe, transformer_engine=te)
    assert status(work, Boundary.selective([label]), MOE).status == expected


def test_mla_up_projection_is_no_matter_of_delayed_scaling() -> None:
    work = moonlight(fp8="hybrid", fp8_recipe="delayed")
    assert status(work, Boundary.selective(["mla_up_proj"]), MOONLIGHT, (27,)).status == "distinct"


# Shared experts


@pytest.mark.parametrize(
    ("size", "overlap", "expected"), [(None, True, "no_effect"), (2048, True, "invalid"), (2048, False, "distinct")]
)
def test_shared_experts_and_their_overlap(size: int | None, overlap: bool, expected: str) -> None:
    work = moe(moe_shared_expert_intermediate_size=size, moe_shared_expert_overlap=overlap)
    found = status(work, Boundary.selective(["shared_experts"]), MOE)
    assert found.status == expected
    assert ("no effect" in found.reason) is (expected == "no_effect")


# Uniform groups and block windows


def test_uniform_groups_are_clamped_since_the_fix() -> None:
    boundary = Boundary.full("uniform", 7)
    assert [len(group) for group in checkpoint_groups(boundary, 24)] == [7, 7, 7, 3]
    found = status(workload(), boundary)
    assert found.status == "distinct"
    assert "clamped to 3 layers" in found.reason


@pytest.mark.parametrize("revision", ["8f7fbe78609de242630ca4808686bd309694dcab", "8f7fbe7860", "0.16.1", "core_v0.16.1"])
def test_uniform_groups_have_to_divide_before_the_fix(revision: str) -> None:
    found = status(workload(megatron_core=revision), Boundary.full("uniform", 7))
    assert found.status == "invalid"
    assert "9054192b" in found.reason
    assert status(workload(megatron_core=revision), Boundary.full("uniform", 6)).status == "distinct"


def test_block_beyond_the_stage_takes_every_layer() -> None:
    boundary = Boundary.full("block", 30)
    assert [list(group) for group in checkpoint_groups(boundary, 24)] == [[layer] for layer in range(24)]
    found = status(workload(), boundary)
    assert (found.status, found.same_as) == ("same_as", FULL_1)


def test_depth_counts_within_a_virtual_chunk() -> None:
    # 24 layers on 2 stages of 2 virtual chunks: 6 layers a chunk
    found = status(workload(), Boundary.full("block", 6), chunks=(6, 6, 6, 6))
    assert found.same_as == FULL_1
    assert status(workload(), Boundary.full("block", 5), chunks=(6, 6, 6, 6)).status == "distinct"


# Multi-token prediction


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [(FULL_1, "distinct"), (Boundary.full("uniform", 2), "invalid"), (Boundary.full("block", 4), "distinct")],
)
def test_mtp_with_full_recompute(boundary: Boundary, expected: str) -> None:
    found = status(workload(mtp_num_layers=1), boundary)
    assert found.status == expected
    assert ("MTP layer not covered" in found.reason) is (boundary.method == "block")
    whole = status(workload(mtp_num_layers=1), Boundary.full("block", 24))
    assert whole.status == "distinct", "block of every layer still leaves the MTP layer out"


def test_block_of_every_layer_under_fp8_is_uniform_unless_layers_are_frozen() -> None:
    fp8 = {"fp8": "e4m3", "fp8_recipe": "tensorwise"}
    assert status(workload(**fp8), Boundary.full("block", 24)).same_as == FULL_1
    assert status(workload(peft="lora", **fp8), Boundary.full("block", 24)).status == "distinct"
