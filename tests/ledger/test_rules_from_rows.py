"""Rules that measured rows pointed to, each as a hand-computed case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak
from autotune.ledger.schedule import stage_tensors
from autotune.workload.megatron_args import workload_from_args
from autotune.workload.workload import Stack, Workload

MIB = 2**20
GPT: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 512, "max_position_embeddings": 512,
    "micro_batch_size": 2, "global_batch_size": 64, "bf16": True, "position_embedding_type": "rope", "vocab_size": 1024,
    "no_create_attention_mask_in_dataloader": True,
}  # fmt: skip
TOKENS = 2 * 512
HIDDEN_BYTES = 2 * TOKENS * 256


def small(*, world_size: int = 8, **changes: Any) -> Workload:
    return workload_from_args({**GPT, **changes}, world_size=world_size)


def phase(workload: Workload, iteration: str, name: str, *, stage: int = -1) -> PhasePeak:
    phases = Ledger(workload).predict(Boundary.off()).stages[stage].phases
    return next(peak for peak in phases if (peak.iteration, peak.phase) == (iteration, name))


def held(workload: Workload, suffix: str) -> int:
    """Bytes of one named tensor over the layer kinds that have it."""
    return sum(line.bytes_per_layer for line in Ledger(workload).lines(Boundary.off()) if line.name.endswith(suffix))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ((0, 1, 1, 8, 1), (0, 0, 0, 0)),
        ((0, 4, 1, 8, 1), (1, 0, 1, 0)),  # the gradient received for its output
        ((1, 4, 1, 8, 0), (3, 1, 3, 2)),  # the last input and its gradient, and the received gradient
        ((3, 4, 1, 8, 0), (2, 1, 2, 2)),
        ((3, 4, 1, 1, 0), (0, 0, 2, 2)),  # one micro batch: nothing is left of an earlier one
        ((0, 4, 1, 4, 1), (0, 0, 1, 0)),  # all forwards but one precede the first backward
        ((3, 4, 2, 8, 0), (3, 3, 4, 4)),
        ((0, 4, 2, 8, 1), (3, 3, 2, 2)),
    ],
)
def test_hidden_states_of_neighbours(where: tuple[int, int, int, int, int], expected: tuple[int, int, int, int]) -> None:
    stage, pp, vpp, microbatches, embedding = where
    found = stage_tensors(stage, pp, vpp, microbatches, first_chunks=embedding)
    assert (found.in_forward, found.in_backward, found.in_sync, found.after_step) == expected


def test_last_stage_counts_them_in_each_phase() -> None:
    workload = small(pipeline_model_parallel_size=2)
    assert phase(workload, "steady", "loss").terms["p2p"] == 2 * HIDDEN_BYTES
    assert phase(workload, "steady", "backward").terms["p2p"] == HIDDEN_BYTES
    assert phase(workload, "steady", "optimizer").terms["p2p"] == 2 * HIDDEN_BYTES


def test_unfused_rotary_embedding_keeps_four_tables_a_layer() -> None:
    assert held(small(no_rope_fusion=True), "rope_angles") == 4 * 2 * 512 * 64
    assert held(small(), "rope_angles") == 0


@pytest.mark.parametrize(("megatron_core", "kept"), [("0.13.0", False), ("0.15.0", True), (None, True), ("24bad8e677", True)])
def test_unpermute_keeps_its_source_from_0_15(megatron_core: str | None, kept: bool) -> None:
    workload = small(num_experts=4, deterministic_mode=True, moe_router_topk=1)
    workload = replace(workload, stack=Stack(megatron_core=megatron_core))
    assert (held(workload, "unpermute_source") > 0) is kept


def test_autograds_workspace_comes_with_the_first_backward() -> None:
    workload = small(no_gradient_accumulation_fusion=True, global_batch_size=16)  # one micro batch
    first, steady = (phase(workload, iteration, "loss").terms["workspaces"] for iteration in ("first", "steady"))
    assert steady - first == 32 * MIB


def test_workspace_configuration_follows_deterministic_mode_and_not_the_environment_of_kernels() -> None:
    def workspaces(**changes: Any) -> int:
        workload = workload_from_args(
            {**GPT, **changes}, world_size=8, gpu="A100-80GB", env_vars={"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
        )
        return phase(workload, "steady", "loss").terms["workspaces"]

    assert workspaces(deterministic_mode=True) - workspaces() == 2 * (32 * MIB - 8_519_680)


def test_host_optimizer_state_leaves_the_device() -> None:
    adam = {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True}
    here = phase(small(**adam), "steady", "optimizer").terms
    half = phase(small(**adam, optimizer_cpu_offload=True, optimizer_offload_fraction=0.5), "steady", "optimizer").terms
    away = phase(small(**adam, optimizer_cpu_offload=True), "steady", "optimizer").terms
    assert half["optimizer_state"] == pytest.approx(here["optimizer_state"] / 2, abs=2)
    assert away.get("optimizer_state", 0) == 0
    assert away["gradients"] == here["gradients"]


def test_first_and_last_layers_stay_out_of_fp8() -> None:
    fp8 = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}
    none = phase(small(), "steady", "loss").terms
    every = phase(small(**fp8), "steady", "loss").terms
    inner = phase(small(**fp8, first_last_layers_bf16=True), "steady", "loss").terms
    whole = phase(small(**fp8, first_last_layers_bf16=True, num_layers_at_start_in_bf16=4), "steady", "loss").terms
    assert none["mlp"] == whole["mlp"]
    assert inner["mlp"] == (none["mlp"] + every["mlp"]) // 2
    assert inner["weights"] == (none["weights"] + every["weights"]) // 2


HYBRID: dict[str, Any] = {"num_experts": 4, "moe_grouped_gemm": True, "untie_embeddings_and_output_weights": True}


def test_prediction_depths_of_a_hybrid_have_the_layers_their_pattern_spells() -> None:
    none = phase(small(**HYBRID, hybrid_layer_pattern="M*EM"), "steady", "optimizer").terms["weights"]
    attention = phase(small(**HYBRID, hybrid_layer_pattern="M*EM/*"), "steady", "optimizer").terms["weights"]
    both = phase(small(**HYBRID, hybrid_layer_pattern="M*EM/*E"), "steady", "optimizer").terms["weights"]
    longer = phase(small(**HYBRID, hybrid_layer_pattern="M*EME"), "steady", "optimizer").terms["weights"]
    assert none < attention < both
    assert both - attention == longer - none


def test_a_repeated_prediction_layer_counts_its_parameters_once_and_its_activations_each_time() -> None:
    pattern = {"hybrid_layer_pattern": "M*EM/*E/*E"}
    one, shared, own = (
        phase(small(**HYBRID, **changes), "steady", "loss").terms
        for changes in (
            {"hybrid_layer_pattern": "M*EM/*E"},
            {**pattern, "mtp_use_repeated_layer": True},
            pattern,
        )
    )
    assert one["weights"] == shared["weights"] < own["weights"]
    assert one["attention"] < shared["attention"] == own["attention"]
