"""Stages, phases and properties that hold for any workload."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_workloads import MOE, PRESETS, small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PHASES, PhasePeak, Prediction
from autotune.workload.workload import Workload

LABELS = ("core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
H = 2 * 128 * 256
boundaries = st.one_of(
    st.sets(st.sampled_from(LABELS)).map(Boundary.selective),
    st.builds(Boundary.full, st.sampled_from(["uniform", "block"]), st.integers(1, 4)),
    st.just(Boundary.off()),
)


def phase(prediction: Prediction, iteration: str, name: str, stage: int = 0) -> PhasePeak:
    return next(p for p in prediction.stages[stage].phases if (p.iteration, p.phase) == (iteration, name))


def piped(layers: int = 8, pp: int = 4, batch: int = 8, **parallel: Any) -> Workload:
    return small(
        model={"num_layers": layers},
        parallel={"world_size": pp, "pipeline_model_parallel_size": pp, **parallel},
        train={"global_batch_size": batch},
    )


def test_first_stage_of_a_pipeline_holds_the_most_micro_batches() -> None:
    prediction = Ledger(piped()).predict(Boundary.selective())
    mlp = [phase(prediction, "steady", "forward", stage).terms["mlp"] for stage in range(4)]
    layer = mlp[3] // 2
    assert mlp == [layer * 2 * in_flight for in_flight in (4, 3, 2, 1)]
    assert [stage.rank for stage in prediction.stages] == [0, 1, 2, 3]


def test_only_the_last_stage_has_a_loss() -> None:
    prediction = Ledger(piped()).predict(Boundary.selective())
    assert [any(p.phase == "loss" for p in stage.phases) for stage in prediction.stages] == [False, False, False, True]


def test_heaviest_stage_is_the_prediction() -> None:
    prediction = Ledger(piped()).predict(Boundary.selective())
    assert prediction.peak_bytes == max(stage.peak_bytes for stage in prediction.stages)
    assert prediction.stage == max(prediction.stages, key=lambda stage: stage.peak_bytes).stage


def test_interleaving_holds_more_than_plain_pipelining() -> None:
    plain = Ledger(piped()).predict(Boundary.selective()).stages[0].peak_bytes
    interleaved = Ledger(piped(virtual_pipeline_model_parallel_size=2)).predict(Boundary.selective()).stages[0].peak_bytes
    assert interleaved > plain


def test_full_uniform_keeps_one_input_for_each_group_and_the_rest_is_clamped() -> None:
    workload = small(model={"num_layers": 5})
    hidden = {
        n: phase(Ledger(workload).predict(Boundary.full("uniform", n)), "steady", "loss").terms["hidden"] for n in (1, 2, 5, 9)
    }
    final_norm_input_and_ids = H + 8 * 128
    assert hidden == {n: groups * H + final_norm_input_and_ids for n, groups in {1: 5, 2: 3, 5: 1, 9: 1}.items()}


def test_full_block_covers_the_first_layers_of_each_chunk() -> None:
    workload = small(model={"num_layers": 5})
    ledger = Ledger(workload)
    kept = [phase(ledger.predict(Boundary.full("block", n)), "steady", "loss").terms.get("mlp", 0) for n in (1, 3, 5, 30)]
    layer = 2 * 128 * 3 * 1024
    assert kept == [4 * layer, 2 * layer, 0, 0]


def test_distributed_saved_activations_share_the_inputs_of_full_recompute() -> None:
    parallel = {"world_size": 2, "tensor_model_parallel_size": 2}
    full = Boundary.full("uniform", 1)
    plain = Ledger(small(parallel=parallel)).predict(full)
    shared = Ledger(small(parallel=parallel, features={"distribute_saved_activations": True})).predict(full)
    assert phase(plain, "steady", "loss").terms["hidden"] - phase(shared, "steady", "loss").terms["hidden"] == 2 * H // 2


MASK = 128 * 128
"""The dense mask of one micro batch, a static input of every captured attention."""


def capture(prediction: Prediction) -> dict[str, int]:
    return dict(phase(prediction, "after_capture", "after_capture").terms)


def test_captured_layers_allocate_nothing_after_capture_but_static_inputs() -> None:
    """Autograd's tensors are free blocks of the pool once the backward is captured (TE graph.py:_make_graphed_callables)."""
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn", "mamba")}
    ledger = Ledger(small("hybrid", features=graphs))
    control, core = ledger.predict(Boundary.selective()), ledger.predict(Boundary.selective(["core_attn"]))
    static = phase(control, "after_capture", "optimizer").terms["graph_pool"]
    kinds = [layer.mixer for layer in ledger._network.layers]
    callables, attention = sum(kind != "none" for kind in kinds), sum(kind == "attention" for kind in kinds)
    assert static == (callables + 2) * H + attention * MASK  # static inputs, one output gradient, one input gradient
    steady, after = phase(control, "steady", "optimizer").peak_bytes, phase(control, "after_capture", "optimizer").peak_bytes
    assert after - steady == static
    for group in ("attention", "mamba"):
        assert phase(control, "steady", "loss").terms[group] > 0
        assert group not in phase(control, "after_capture", "loss").terms
    assert phase(core, "after_capture", "loss").peak_bytes == phase(control, "after_capture", "loss").peak_bytes


def test_capture_itself_holds_what_the_captured_layers_keep() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}
    prediction = Ledger(small("moe", features=graphs)).predict(Boundary.selective())
    before, after = phase(prediction, "steady", "loss").terms, phase(prediction, "after_capture", "loss").terms
    assert "attention" not in after
    assert after["moe"] == before["moe"]
    assert after["graph_pool"] == 2 * (H + MASK) + 2 * H
    # attention with its norm output and statistics, and the output of the graph, for both layers; then one layer's backward
    kept = before["attention"] + 2 * (H + 4 * 128) + 2 * H
    assert kept < capture(prediction)["graph_pool"] - after["graph_pool"] < 2 * kept
    assert prediction.graph_pool_bytes == capture(prediction)["graph_pool"] - after["graph_pool"]
    assert any("graph pools reserve" in note for note in prediction.notes)
    assert "transient" not in capture(prediction)


def test_a_captured_router_leaves_the_experts_eager() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("moe_router", "moe_preprocess")}
    prediction = Ledger(small("moe", features=graphs)).predict(Boundary.selective(["moe_act"]))
    before, after = phase(prediction, "steady", "loss").terms, phase(prediction, "after_capture", "loss").terms
    assert after["attention"] == before["attention"]
    assert 0 < after["moe"] < before["moe"]  # router state
    assert "shared_experts" not in after and before["shared_experts"] > 0
    # gone: residual (the static input), norm output, and the input of the next layer stays
    assert before["hidden"] - after["hidden"] == 2 * H
    assert prediction.inert_labels == ()


def test_every_micro_batch_in_flight_has_its_graph() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}
    parallel = {"world_size": 2, "pipeline_model_parallel_size": 2}
    train = {"micro_batch_size": 1, "global_batch_size": 8}
    found = Ledger(small("moe", parallel=parallel, train=train, features=graphs)).predict(Boundary.selective())
    # one layer a stage: two micro batches in flight on the first, one on the last
    for stage, count in ((0, 2), (1, 1)):
        terms = next(
            peak.terms for peak in found.stages[stage].phases if (peak.iteration, peak.phase) == ("after_capture", "optimizer")
        )
        assert terms["graph_pool"] == count * (H + MASK) + 2 * H


def test_before_transformer_engine_2_7_graphs_keep_their_outputs() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)}

    def kept(version: str) -> int:
        workload = small("moe", features=graphs, stack={"transformer_engine": version})
        return phase(Ledger(workload).predict(Boundary.selective()), "after_capture", "optimizer").terms["graph_pool"]

    assert kept("2.6.0") - kept("2.7.0") == 2 * 3 * H


def test_discarded_outputs_leave_the_pool_too() -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn", "moe")}
    ledger = Ledger(small("moe", features=graphs))
    pools = {
        key: ledger.graphs(Boundary.selective(key.split("+") if key else []))[0].pool_bytes for key in ("", "layernorm", "moe")
    }
    assert pools["moe"] == pools[""]
    # norm output and its statistics of the layer that waits; in the one that is captured the output is back
    assert H + 4 * 128 <= pools[""] - pools["layernorm"] <= 2 * (H + 4 * 128)


def test_nested_labels_move_the_backward_peak_and_are_not_dominated() -> None:
    ledger = Ledger(small("moe", train={"micro_batch_size": 16, "global_batch_size": 16}), variant="stand_in")
    alone = ledger.predict(Boundary.selective(["moe"]))
    nested = ledger.predict(Boundary.selective(["moe", "shared_experts"]))
    assert phase(nested, "steady", "loss").peak_bytes == phase(alone, "steady", "loss").peak_bytes
    assert phase(nested, "steady", "backward").peak_bytes <= phase(alone, "steady", "backward").peak_bytes
    assert nested.replay_ms > alone.replay_ms


def test_load_factor_scales_what_experts_keep() -> None:
    boundary = Boundary.selective()
    balanced = phase(Ledger(small("moe"), load_factor=1.0).predict(boundary), "steady", "loss").terms["moe"]
    hot = phase(Ledger(small("moe"), load_factor=1.5).predict(boundary), "steady", "loss").terms["moe"]
    routed = 2 * (2 * 256 * 256 + 2 * 256 * 1024 + 2 * 256 * 512 + 2 * 256)
    assert hot - balanced == routed // 2


def test_free_routing_widens_the_interval_and_a_load_factor_closes_it() -> None:
    workload = small("moe", train={"micro_batch_size": 32, "global_batch_size": 32})
    free, given_ = Ledger(workload).predict(Boundary.selective()), Ledger(workload, load_factor=1.0).predict(Boundary.selective())
    assert free.peak_bytes == given_.peak_bytes
    assert free.peak_p95_bytes > given_.peak_p95_bytes


def test_capacity_with_padding_fixes_the_tokens() -> None:
    padded = small("moe", model={**MOE, "moe_expert_capacity_factor": 2.0, "moe_pad_expert_input_to_capacity": True})
    assert Ledger(padded).context.sizes.routed_tokens == 4 * (128 * 2 // 4 * 2)


def test_unknown_label_is_said_to_be_unknown() -> None:
    prediction = Ledger(small()).predict(Boundary.selective(["gdp_qkv"]))
    assert prediction.inert_labels == ("gdp_qkv",)
    assert any("gdp_qkv is not known" in note for note in prediction.notes)


def test_table_and_single_predictions_agree() -> None:
    ledger = Ledger(piped())
    wanted = [Boundary.selective(), Boundary.selective(["mlp"]), Boundary.full("uniform", 1)]
    for light, boundary in zip(Ledger(piped()).predict_all(wanted), wanted, strict=True):
        whole = ledger.predict(boundary)
        assert (light.peak_bytes, light.phase, light.stage) == (whole.peak_bytes, whole.phase, whole.stage)
        assert (light.peak_p05_bytes, light.peak_p95_bytes) == (whole.peak_p05_bytes, whole.peak_p95_bytes)
        assert (light.replay_ms, light.inert_labels) == (whole.replay_ms, whole.inert_labels)
        assert [stage.peak_bytes for stage in light.stages] == [stage.peak_bytes for stage in whole.stages]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PRESETS)), boundaries)
def test_phases_are_sums_of_their_terms_and_bounds_enclose_them(preset: str, boundary: Boundary) -> None:
    prediction = Ledger(small(preset)).predict(boundary)
    for stage in prediction.stages:
        for peak in stage.phases:
            assert peak.phase in PHASES
            assert peak.peak_bytes == sum(peak.terms.values())
            assert min(peak.terms.values()) > 0
        assert stage.peak_bytes == max(peak.peak_bytes for peak in stage.phases)
    assert prediction.peak_p05_bytes <= prediction.peak_bytes <= prediction.peak_p95_bytes
    assert set(prediction.replay_ms_by_label) <= {*boundary.modules, "full"}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PRESETS)), st.sets(st.sampled_from(LABELS)), st.sampled_from(LABELS))
def test_one_more_label_never_holds_more_at_the_loss_but_for_core_attn(preset: str, labels: set[str], label: str) -> None:
    """``core_attn`` pins mixed_qkv, an input that nobody keeps without it."""
    ledger = Ledger(small(preset))
    without = phase(ledger.predict(Boundary.selective(labels)), "first", "loss").peak_bytes
    with_it = phase(ledger.predict(Boundary.selective(labels | {label})), "first", "loss").peak_bytes
    if label != "core_attn":
        assert with_it <= without


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["dense", "gqa", "gqa_qk_norm", "mla", "moe", "gdn"]), st.sets(st.sampled_from(LABELS)))
def test_two_samples_hold_twice_as_much(preset: str, labels: set[str]) -> None:
    def activations(batch: int) -> int:
        workload = small(preset, train={"micro_batch_size": batch, "global_batch_size": batch})
        prediction = Ledger(workload, variant="stand_in").predict(Boundary.selective(labels))
        terms = phase(prediction, "first", "loss").terms
        return sum(terms.get(group, 0) for group in ("hidden", "norm", "mlp", "shared_experts", "logits"))

    assert activations(2) == 2 * activations(1)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["dense", "mla"]), st.sampled_from([2, 4, 8]))
def test_tensor_parallelism_divides_what_lies_inside_it(preset: str, tp: int) -> None:
    def line(workload: Workload, name: str) -> int:
        return next(x.bytes_per_layer for x in Ledger(workload).lines(Boundary.selective()) if x.name == name)

    split = small(preset, parallel={"world_size": tp, "tensor_model_parallel_size": tp, "sequence_parallel": True})
    for name in ("mlp.fc1_out", "mlp.act_out", "mlp.x", "head.x"):
        assert line(split, name) * tp == line(small(preset), name)


def test_stages_hold_every_parameter_once() -> None:
    whole = Ledger(small(model={"num_layers": 8}))._timeline.stages[0].static.parameters
    parts = Ledger(piped())._timeline.stages
    assert sum(stage.static.parameters for stage in parts) == whole


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_checkpoint_never_replays_for_nothing(preset: str) -> None:
    ledger = Ledger(small(preset))
    for label in LABELS:
        prediction = ledger.predict(Boundary.selective([label]))
        assert (prediction.replay_ms > 0) == (label not in prediction.inert_labels)
