"""Any model, any layout, any boundary: bytes are conserved, grow with what grows, and tables say what single predictions say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ledger_workloads import PRESETS, small

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.ledger.coverage import coverage
from autotune.ledger.ledger import Ledger
from autotune.workload.architecture import classify
from autotune.workload.validate import validate
from autotune.workload.workload import Workload

LABELS = ("core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """A preset in a layout that Megatron takes."""
    preset = draw(st.sampled_from([name for name in sorted(PRESETS) if name != "hybrid"]))
    tp, pp = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4, 16]))
    vpp = draw(st.sampled_from([None, 2])) if pp > 1 else None
    experts = "num_moe_experts" in PRESETS[preset]
    ep = draw(st.sampled_from([1, 2])) if experts else 1
    dp = draw(st.sampled_from([2, 4]))
    micro_batches = pp * draw(st.integers(1, 3))
    parallel: dict[str, Any] = {
        "world_size": tp * pp * dp,
        "tensor_model_parallel_size": tp,
        "sequence_parallel": tp > 1,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vpp,
        "expert_model_parallel_size": ep,
        "expert_tensor_parallel_size": 1 if experts else None,
    }
    model = {"num_layers": pp * (vpp or 1) * draw(st.integers(1, 2))}
    if isinstance(PRESETS[preset].get("moe_layer_freq"), tuple):
        model["moe_layer_freq"] = 1
    batch = draw(st.sampled_from([1, 2]))
    train = {"micro_batch_size": batch, "global_batch_size": batch * dp * micro_batches}
    sharded = draw(st.sampled_from([{}, {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"}]))
    workload = small(preset, model=model, parallel=parallel, train=train, optimizer=sharded if pp == 1 else {})
    try:
        validate(workload)
    except RequestError:
        assume(False)
    return workload


boundaries = st.one_of(
    st.sets(st.sampled_from(LABELS)).map(Boundary.selective),
    st.builds(Boundary.full, st.sampled_from(["uniform", "block"]), st.integers(1, 3)),
)


def parameters(workload: Workload) -> int:
    """All parameters of the model, copies of one kind counted once: over pipeline stages, and over tensor and expert ranks."""
    parallel = workload.parallel
    tp, ep = parallel.tensor_model_parallel_size, parallel.expert_model_parallel_size
    total = 0
    for stage in Ledger(workload)._network.stages:
        for chunk in stage.chunks:
            for built in chunk:
                for param in built.params:
                    whole = param.name.endswith(("norm", "router", "kv_down", "q_down"))
                    times = ep if param.expert else 1 if whole or "norm" in param.name else tp
                    total += param.numel * times
    return total


@settings(max_examples=40, deadline=None)
@given(workloads())
def test_parameters_are_conserved_over_every_layout(workload: Workload) -> None:
    model = replace(workload.model, make_vocab_size_divisible_by=1)
    one = replace(
        workload,
        model=model,
        parallel=replace(
            workload.parallel,
            world_size=1,
            tensor_model_parallel_size=1,
            sequence_parallel=False,
            pipeline_model_parallel_size=1,
            virtual_pipeline_model_parallel_size=None,
            expert_model_parallel_size=1,
        ),
        train=replace(workload.train, global_batch_size=workload.train.micro_batch_size),
    )
    assert parameters(replace(workload, model=model)) == parameters(one)


@settings(max_examples=40, deadline=None)
@given(workloads(), boundaries)
def test_no_peak_is_below_the_states_and_phases_are_their_terms(workload: Workload, boundary: Boundary) -> None:
    assert coverage(workload).covered
    assert classify(workload).layers
    ledger = Ledger(workload)
    prediction = ledger.predict(boundary)
    assert prediction.peak_bytes >= ledger.states_bytes()
    for stage in prediction.stages:
        for peak in stage.phases:
            assert peak.peak_bytes == sum(peak.terms.values())
            assert min(peak.terms.values()) > 0


@settings(max_examples=30, deadline=None)
@given(workloads(), boundaries)
def test_longer_sequences_and_wider_layers_take_more(workload: Workload, boundary: Boundary) -> None:
    peak = Ledger(workload).predict(boundary).peak_bytes
    longer = replace(workload, train=replace(workload.train, seq_length=2 * workload.train.seq_length))
    assert Ledger(longer).predict(boundary).peak_bytes > peak
    wider = replace(workload, model=replace(workload.model, ffn_hidden_size=2 * workload.model.ffn_hidden_size))
    assert Ledger(wider).predict(boundary).peak_bytes >= peak


@settings(max_examples=40, deadline=None)
@given(workloads(), st.lists(boundaries, min_size=1, max_size=3))
def test_tables_leave_out_only_what_sets_nothing(workload: Workload, wanted: list[Boundary]) -> None:
    """Stages that another stage outdoes are not looked at for bounds; the bounds of the whole are the same."""
    ledger = Ledger(workload)
    for light, boundary in zip(Ledger(workload).predict_all(wanted), wanted, strict=True):
        whole = ledger.predict(boundary)
        assert (light.peak_bytes, light.phase, light.stage) == (whole.peak_bytes, whole.phase, whole.stage)
        assert (light.peak_p05_bytes, light.peak_p95_bytes) == (whole.peak_p05_bytes, whole.peak_p95_bytes)
        assert [stage.peak_bytes for stage in light.stages] == [stage.peak_bytes for stage in whole.stages]
