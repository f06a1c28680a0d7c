"""Static bytes by hand, and what the optimizer's settings really do."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import FFN, HIDDEN, small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak
from autotune.ledger.static import precision_aware_takes_effect
from autotune.workload.workload import Workload

LAYER = 256 + 3 * 256 * 256 + 256 * 256 + 256 + 2 * 1024 * 256 + 256 * 1024
PARAMETERS = 2 * LAYER + 2 * 1024 * 256 + 256  # untied embedding and output layer, final norm


def peak(workload: Workload, iteration: str, phase: str, boundary: Boundary | None = None, stage: int = 0) -> PhasePeak:
    """One phase of a prediction."""
    prediction = Ledger(workload, variant="stand_in").predict(boundary or Boundary.selective())
    return next(p for p in prediction.stages[stage].phases if (p.iteration, p.phase) == (iteration, phase))


def test_weights_gradients_and_adam_state() -> None:
    terms = peak(small(), "steady", "optimizer").terms
    assert terms["weights"] == 2 * PARAMETERS
    assert terms["gradients"] == 4 * PARAMETERS
    assert terms["optimizer_state"] == pytest.approx(12 * PARAMETERS, rel=1e-3)  # blocks of 512 bytes
    assert Ledger(small(), variant="stand_in").states_bytes() == pytest.approx(18 * PARAMETERS, rel=1e-3)


def test_moments_do_not_exist_in_the_first_forward() -> None:
    assert peak(small(), "first", "forward").terms["optimizer_state"] == pytest.approx(4 * PARAMETERS, rel=1e-3)
    assert peak(small(), "first", "optimizer").terms["optimizer_state"] == pytest.approx(12 * PARAMETERS, rel=1e-3)


def test_distributed_optimizer_shards_over_data_and_context_parallel_ranks() -> None:
    whole = peak(small(), "steady", "optimizer").terms["optimizer_state"]
    for parallel in ({"world_size": 4}, {"world_size": 4, "context_parallel_size": 2}):
        sharded = small(parallel=parallel, train={"global_batch_size": 4})
        assert peak(sharded, "steady", "optimizer").terms["optimizer_state"] == pytest.approx(whole / 4, rel=1e-3)
    two = small(parallel={"world_size": 4, "num_distributed_optimizer_instances": 2}, train={"global_batch_size": 4})
    assert peak(two, "steady", "optimizer").terms["optimizer_state"] == pytest.approx(whole / 2, rel=1e-3)
    replicated = small(parallel={"world_size": 4}, train={"global_batch_size": 4}, optimizer={"use_distributed_optimizer": False})
    assert peak(replicated, "steady", "optimizer").terms["optimizer_state"] == whole


def test_experts_shard_over_the_expert_data_parallel_ranks_only() -> None:
    workload = small("moe", parallel={"world_size": 4, "expert_model_parallel_size": 4}, train={"global_batch_size": 4})
    experts = 2 * (2 * 512 * 256 + 256 * 512)  # one expert a layer on each rank
    total = Ledger(workload)._timeline.stages[0].static.parameters
    state = peak(workload, "steady", "optimizer").terms["optimizer_state"]
    assert state == pytest.approx(12 * (experts + (total - experts) / 4), rel=1e-3)


def test_low_precision_gradients_are_copied_while_the_optimizer_steps() -> None:
    workload = small(precision={"grad_dtype": "bf16"})
    assert peak(workload, "steady", "optimizer").terms["main_gradients"] == pytest.approx(4 * PARAMETERS, rel=1e-3)
    assert "main_gradients" not in peak(workload, "steady", "backward").terms
    assert "main_gradients" not in peak(small(), "steady", "optimizer").terms


AWARE: dict[str, Any] = {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}


@pytest.mark.parametrize(
    ("fields", "effective"),
    [
        ({}, True),
        ({"fp8_recipe": "delayed"}, True),
        ({"fp8_recipe": "tensorwise"}, False),  # Bridge copies its default onto BF16 runs
        ({"fp8_recipe": "tensorwise", "main_params_dtype": "fp16"}, True),
        ({"use_precision_aware_optimizer": False}, False),
    ],
)
def test_precision_aware_optimizer_takes_effect_only_by_its_rule(fields: dict[str, Any], effective: bool) -> None:
    assert precision_aware_takes_effect(small(optimizer={**AWARE, **fields})) is effective


def test_precision_aware_path_saves_two_bytes_of_master_and_the_gradient_copies() -> None:
    bf16 = {"grad_dtype": "bf16"}
    on = peak(small(optimizer=AWARE, precision=bf16), "steady", "optimizer")
    off = peak(small(optimizer={**AWARE, "fp8_recipe": "tensorwise"}, precision=bf16), "steady", "optimizer")
    assert on.terms["optimizer_state"] == pytest.approx((2 + 2 + 2) * PARAMETERS, rel=1e-3)
    assert off.terms["optimizer_state"] == pytest.approx((4 + 2 + 2) * PARAMETERS, rel=1e-3)
    assert off.peak_bytes - on.peak_bytes == pytest.approx(6 * PARAMETERS, rel=1e-3)


def test_muon_without_a_parameter_layout_deals_out_whole_parameters() -> None:
    """layer_wise_optimizer.py:_shard_params_ping_pong: sorted by size, ranks back and forth; the rank that ends up with most.

    Two ranks hold [p0, p3, p4, p7, ...] and [p1, p2, p5, p6, ...] of the sorted list.
    """
    fields = {"optimizer": "muon", "use_distributed_optimizer": True, "use_layer_wise_param_layout": False}
    two = {"parallel": {"world_size": 2}, "train": {"global_batch_size": 2}, "model": {"vocab_size": 4096}}
    matrices = [HIDDEN * HIDDEN, 3 * HIDDEN * HIDDEN, HIDDEN * FFN, 2 * HIDDEN * FFN]
    others = [HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN, 4096 * HIDDEN, 4096 * HIDDEN]
    ranked = sorted([(size, 8) for size in 2 * matrices] + [(size, 12) for size in others])
    hands = [[one for index, one in enumerate(ranked) if index % 4 in places] for places in ((0, 3), (1, 2))]
    fullest = max(hands, key=lambda hand: sum(size for size, _ in hand))
    state = peak(small(optimizer=fields, **two), "steady", "optimizer").terms["optimizer_state"]
    assert state == pytest.approx(sum(size * width for size, width in fullest), rel=1e-4)
    laid_out = small(optimizer={**fields, "use_layer_wise_param_layout": True}, **two)
    even = peak(laid_out, "steady", "optimizer").terms["optimizer_state"]
    assert even == pytest.approx(sum(size * width for size, width in ranked) / 2, rel=1e-4)


def test_muon_keeps_one_momentum_for_matrices_of_layers() -> None:
    matrices = 2 * (LAYER - 512)
    muon = peak(small(optimizer={"optimizer": "muon"}), "steady", "optimizer").terms["optimizer_state"]
    assert muon == pytest.approx(12 * PARAMETERS - 4 * matrices, rel=1e-3)


def test_tied_embedding_counts_once_on_one_stage_and_twice_on_two() -> None:
    tied = small(model={"share_embeddings_and_output_weights": True})
    assert Ledger(tied)._timeline.stages[0].static.parameters == PARAMETERS - 1024 * 256
    split = small(
        model={"share_embeddings_and_output_weights": True},
        parallel={"world_size": 2, "pipeline_model_parallel_size": 2},
        train={"global_batch_size": 4},
    )
    assert sum(stage.static.parameters for stage in Ledger(split)._timeline.stages) == PARAMETERS


def test_learned_positions_are_parameters_of_the_first_stage() -> None:
    learned = small(model={"position_embedding_type": "learned_absolute", "max_position_embeddings": 128})
    assert Ledger(learned)._timeline.stages[0].static.parameters == PARAMETERS + 128 * 256


def test_dummy_weight_gradients_are_one_buffer_for_each_weight_shape() -> None:
    def workspaces(workload: Workload) -> int:
        prediction = Ledger(workload).predict(Boundary.selective())
        return next(p for p in prediction.stages[0].phases if (p.iteration, p.phase) == ("steady", "backward")).terms[
            "workspaces"
        ]

    fused, plain = small(), small(features={"gradient_accumulation_fusion": False})
    shapes = [(768, 256), (256, 256), (2048, 256), (256, 1024), (1024, 256)]
    assert workspaces(fused) - workspaces(plain) == sum(2 * a * b for a, b in shapes)
