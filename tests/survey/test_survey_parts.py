"""Guards, kept graphs, frozen batches, what cannot be surveyed, and what a launch leaves for the search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_machine import Checkpointed, Op, Residual, play

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import dump_json, from_builtins, to_builtins
from autotune.trial.record import Failure, TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.choose import all_settings
from autotune.trial.survey.freeze import FrozenBatches, restored, to_numpy
from autotune.trial.survey.guards import closing_balance, largest_difference
from autotune.trial.survey.launch import predict_later, read_report, run_survey, survey_spec, switched_records
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.phase_peaks import Predictor
from autotune.trial.survey.plan import SurveyPlan, base_ladder, margin_of, not_surveyable, require_surveyable
from autotune.trial.survey.report import SurveyReport, SwitchedSetting
from autotune.trial.survey.retained import INPUT_MARK, OUTPUT_MARK, retaining_regions
from autotune.workload.catalog import load
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

CONTROL, FULL = Boundary.selective(), Boundary.full("uniform", 1)
BODY = (Checkpointed("b", "C", (Op(60, saves_input=True, own_bytes=30), Op(48, saves_input=True))),)
LAYERS = (Checkpointed("layer", "C", (Residual(BODY),)),) * 2


@pytest.mark.parametrize("base", [CONTROL, FULL], ids=lambda boundary: boundary.key)
def test_what_hooks_saw_explains_what_a_layer_allocated(base: Boundary) -> None:
    balance = closing_balance(normalise(play(LAYERS, base).trace()))
    assert (balance.unexplained_bytes, balance.fraction) == (0, 0.0)


@pytest.mark.parametrize("base", [CONTROL, FULL], ids=lambda boundary: boundary.key)
def test_a_tensor_that_hooks_do_not_see_breaks_the_balance(base: Boundary) -> None:
    trace = play(LAYERS, base).trace()
    hidden = next(number for number, saved in enumerate(trace.saved) if trace.storage_bytes[saved.storage] == 30)
    blind = replace(trace, saved=trace.saved[:hidden] + trace.saved[hidden + 1 :])
    balance = closing_balance(normalise(blind))
    assert balance.unexplained_bytes == 30 and balance.fraction > 0.01


def test_entries_whose_graph_was_dropped_and_what_outlives_the_step_do_not_count() -> None:
    trace = play(LAYERS, CONTROL).trace()
    own = [number for number, saved in enumerate(trace.saved) if trace.storage_bytes[saved.storage] == 30]
    pruned = normalise(replace(trace, pruned=tuple(own)))
    assert len(pruned.entries) == len(trace.saved) - len(own)
    persistent = normalise(replace(trace, persistent=(trace.saved[own[0]].storage,)))
    assert len(persistent.entries) == len(trace.saved) - 1


def test_micro_batches_that_were_not_recorded_raise_every_prediction_by_what_they_showed() -> None:
    trace = play(LAYERS, FULL).trace()
    plain = Predictor(normalise(trace)).predict(CONTROL).phases
    raised = Predictor(normalise(replace(trace, surplus_bytes={"backward": 7}))).predict(CONTROL).phases
    assert raised == {**plain, "backward": plain["backward"] + 7}


def test_the_phase_that_differs_most_is_named() -> None:
    assert largest_difference({"loss": 5, "backward": 9}, {"loss": 6, "backward": 4}) == ("backward", 5)
    assert largest_difference({"loss": 5}, {"forward": 6}) == ("", 0)


class Node:
    """A graph node as autograd's: its marks and where its gradients go."""

    def __init__(self, *following: Node, **marks: Any) -> None:
        self.metadata = {{"into": INPUT_MARK, "out_of": OUTPUT_MARK}[key]: value for key, value in marks.items()}
        self.next_functions = [(node, 0) for node in following] + [(None, 0)]


def test_a_kept_tensor_made_inside_a_region_retains_its_input() -> None:
    outside = Node()
    layer_input = Node(outside, into=0)
    expert_input = Node(layer_input, into=1)
    kept = Node(Node(expert_input))
    assert retaining_regions([kept], lambda region: region == 0) == {0, 1}


def test_a_kept_tensor_made_after_a_region_does_not_retain_it() -> None:
    layer_input = Node(Node(), into=0)
    inner = Node(Node(layer_input, into=1), out_of=[1])
    assert retaining_regions([Node(inner)], lambda region: region == 0) == {0}


def test_the_walk_stops_at_a_layer_so_that_a_stack_is_walked_once() -> None:
    before = Node(into=7)
    assert retaining_regions([Node(Node(before, into=0))], lambda region: region == 0) == {0}


def test_a_step_has_its_own_batches_until_one_is_repeated() -> None:
    batches = FrozenBatches(iter([{"tokens": number} for number in range(1, 7)]))
    assert [next(batches), next(batches)] == [{"tokens": 1}, {"tokens": 2}]
    batches.go_on()
    second = [next(batches), next(batches)]
    assert second == [{"tokens": 3}, {"tokens": 4}]
    second[0].pop("tokens")
    batches.rewind()
    assert [next(batches), next(batches)] == [{"tokens": 3}, {"tokens": 4}]
    batches.go_on()
    assert next(batches) == {"tokens": 5}


def test_random_states_are_restored_whichever_kind_the_tracker_has() -> None:
    """Tensors, or generators where graphs will be captured; a generator stays the same one."""
    torch = pytest.importorskip("torch")
    for state in (torch.Generator().manual_seed(5), torch.Generator().manual_seed(5).get_state()):
        frozen = to_numpy(state)
        if isinstance(state, torch.Generator):
            drawn = torch.rand(3, generator=state)
            assert restored(state, frozen) is state
            again = torch.rand(3, generator=state)
        else:
            drawn = torch.rand(3, generator=torch.Generator().set_state(state))
            again = torch.rand(3, generator=torch.Generator().set_state(restored(None, frozen)))
        assert torch.equal(drawn, again)


def test_without_full_recompute_the_widest_set_is_the_only_base(tmp_path: Path) -> None:
    plan = SurveyPlan(labels=("mlp", "core_attn"), full=False)
    tried: list[Boundary] = []

    def launch(trial: TrialSpec) -> TrialRecord:
        tried.append(trial.boundary)
        return record(OOM)

    assert run_survey(lambda base: spec(base, tmp_path), plan, launch).report is None
    assert tried == [Boundary.selective(["core_attn", "mlp"])]
    assert all_settings(("core_attn", "mlp"), 4, full=False) == tuple(
        Boundary.selective(labels) for labels in ([], ["core_attn"], ["mlp"], ["core_attn", "mlp"])
    )


def changed(**features: Any) -> Workload:
    workload = load("moonlight_tiny")
    precision = {key: features.pop(key) for key in ("fp8",) if key in features}
    return replace(workload, features=replace(workload.features, **features), precision=replace(workload.precision, **precision))


def test_what_is_frozen_at_build_is_not_surveyed_and_says_why() -> None:
    assert not_surveyable(changed()) is None
    for features, word in (
        ({"fp8": "hybrid"}, "FP8"),
        ({"cuda_graph_impl": "local"}, "cuda_graph_impl=local"),
        ({"cpu_offloading": True}, "offloading"),
        ({"overlap_moe_expert_parallel_comm": True}, "overlap"),
        ({"distribute_saved_activations": True}, "views"),
    ):
        assert word in str(not_surveyable(changed(**features)))
    with pytest.raises(RequestError, match="FP8"):
        require_surveyable(changed(fp8="hybrid"))


def spec(base: Boundary, folder: Path) -> TrialSpec:
    return TrialSpec(
        number=3, workload=load("llama_tiny"), boundary=base, world_size=2, steps=2, backend="cpu", folder=str(folder)
    )


def report(**changes: Any) -> SurveyReport:
    empty = SurveyReport(
        base=FULL, world_size=2, limit_bytes=None, margin=0.0, labels=(), inert_labels=(), predicted=(), base_measured={}
    )
    return replace(empty, **changes)


def record(failure: Failure | None) -> TrialRecord:
    return TrialRecord(
        number=3,
        kind="measured",
        boundary=FULL,
        workload_digest="",
        world_size=2,
        completed=failure is None,
        ranks={},
        failure=failure,
    )


OOM = Failure(failure_class="oom_capacity", stage="forward", rank=1, step=9, requested_bytes=512)


def test_a_plan_travels_in_the_spec(tmp_path: Path) -> None:
    plan = SurveyPlan(labels=("mlp",), candidates=(CONTROL, FULL), limit_bytes=10)
    of_survey = survey_spec(spec(CONTROL, tmp_path), plan, FULL)
    assert of_survey.boundary == FULL and of_survey.steps == plan.steps
    assert from_builtins(dict(of_survey.survey or {}), SurveyPlan, setting="survey") == plan


def test_experts_over_ranks_get_a_margin_of_a_percent() -> None:
    spread = resolve_workload("moonlight_tiny")
    alone = resolve_workload("moonlight_tiny", overrides=("world_size=1", "model.expert_model_parallel_size=1"))
    margins = [margin_of(workload) for workload in (spread, alone, resolve_workload("llama_tiny"))]
    assert margins == [0.01, 0.005, 0.005]


def test_the_second_base_is_tried_after_an_out_of_memory_only(tmp_path: Path) -> None:
    plan = SurveyPlan(labels=("mlp", "core_attn"))
    tried: list[Boundary] = []

    def run(failure: Failure) -> Any:
        def launch(trial: TrialSpec) -> TrialRecord:
            tried.append(trial.boundary)
            return record(failure)

        return launch

    assert run_survey(lambda base: spec(base, tmp_path), plan, run(OOM)).report is None
    assert tuple(tried) == base_ladder(plan.labels) == (FULL, Boundary.selective(["core_attn", "mlp"]))
    tried.clear()
    run_survey(lambda base: spec(base, tmp_path), plan, run(replace(OOM, failure_class="config_invalid")))
    assert tried == [FULL]


def test_a_switched_step_that_ran_out_of_memory_is_that_settings_failure() -> None:
    done = SwitchedSetting(boundary=CONTROL, peak_bytes=9, ranks={0: {"loss": 9}, 1: {"loss": 8}}, step_ms=(2.0,))
    records = switched_records(report(switched=(done,), trying=Boundary.selective(["mlp"])), record(OOM), 10)
    assert [(r.number, r.kind, r.boundary.key, r.completed) for r in records] == [
        (10, "switched", "[]", True),
        (11, "switched", "mlp", False),
    ]
    assert records[0].ranks[0].allocated_peak_bytes == 9 and records[1].failure == OOM
    assert len(switched_records(report(switched=(done,)), record(None), 10)) == 1


def test_a_folder_gives_back_its_report_and_predicts_further_settings(tmp_path: Path) -> None:
    assert read_report(tmp_path) is None
    (tmp_path / "survey.json").write_text(dump_json(report()))
    assert read_report(tmp_path) == report()
    trace = play(LAYERS, FULL).trace()
    (tmp_path / "survey" / "step-0").mkdir(parents=True)
    (tmp_path / "survey" / "step-0" / "000.json").write_text(dump_json(trace, indent=-1))
    later = predict_later(tmp_path, CONTROL)
    assert later[0].phases["backward"] == play(LAYERS, CONTROL).phases["backward"]
    assert to_builtins(later[0])["boundary"]["granularity"] == "selective"
