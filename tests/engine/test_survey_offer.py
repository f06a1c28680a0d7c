"""Which requests begin with a survey, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.engine.prepare import prepare
from autotune.engine.request import Request
from autotune.engine.run import make_sampler, survey_of
from autotune.engine.survey_stage import plan_of_survey, without_labels
from autotune.search.early_stop import last_resort
from autotune.search.evidence import Evidence
from autotune.search.planner import Planner
from autotune.search.stop_rule import EXPERT_JITTER, JITTER
from autotune.trial.gates import GateSettings
from autotune.trial.survey.plan import SurveyPlan, base_ladder


class Launches:
    """A backend that launches real ranks, as far as the question goes."""

    def drive(self, source: Any, folder: Path) -> None:
        raise AssertionError("nothing is launched here")


def offer(recipe: str, *overrides: str, **changes: Any) -> tuple[SurveyPlan | None, str | None]:
    request = Request(recipe=recipe, mem_target_bytes=75 * 10**9, overrides=overrides)
    prepared = prepare(request, detailed=False)
    workload = prepared.workload
    for section, fields in changes.items():
        workload = replace(workload, **{section: replace(getattr(workload, section), **fields)})
    backend: Any = Launches()
    return survey_of(request, replace(prepared, workload=workload), backend, launch_steps=4)


def test_a_recipe_without_graphs_is_surveyed_under_all_its_labels() -> None:
    plan, why = offer("moonlight16b")
    assert why is None and plan is not None
    assert {"moe", "moe_act", "mla_up_proj"} <= set(plan.labels) and Boundary.full("uniform", 1) in plan.candidates


def test_beside_captured_scopes_the_widest_selective_set_is_the_base_and_inert_labels_are_left_out_by_name() -> None:
    plan, why = offer("nemotron3nano")
    assert why is None and plan is not None
    assert not plan.full and plan.warmup_only == ()
    assert plan.labels == ("layernorm", "moe", "moe_act", "shared_experts")
    assert plan.captured == {
        "core_attn": "core_attn acts only before graph capture (a captured region runs without its checkpoint)"
    }
    assert base_ladder(plan.labels, full=plan.full) == (Boundary.selective(plan.labels),)
    assert len(plan.candidates) == 2 ** len(plan.labels) and Boundary.selective(plan.labels) in plan.candidates
    assert not any(b.granularity == "full" or "core_attn" in b.modules for b in plan.candidates)


def test_the_search_is_offered_the_same_base_and_takes_sets_with_an_inert_label_for_those_without() -> None:
    prepared = prepare(Request(recipe="nemotron3nano", mem_target_bytes=75 * 10**9), detailed=False)
    plan, _ = offer("nemotron3nano")
    assert plan is not None
    candidates = without_labels(prepared.candidates, plan.captured)
    assert last_resort(candidates) == [Boundary.selective(plan.labels)]
    by_boundary = {candidate.boundary: candidate for candidate in candidates}
    both = by_boundary[Boundary.selective(["core_attn", "moe"])]
    assert (both.status, both.same_as) == ("same_as", Boundary.selective(["moe"]))
    assert both.reason.startswith("as moe: core_attn acts only before graph capture")
    assert [c for c in candidates if "core_attn" not in c.boundary.modules] == [
        c for c in prepared.candidates if "core_attn" not in c.boundary.modules
    ]


def test_a_label_that_lowers_a_peak_before_capture_stays_and_costs_nothing() -> None:
    """Scores of unfused attention, 32 heads of 4096 x 4096, are there in the eager steps alone; their replays as well."""
    graphs = ("model.cuda_graph_impl=transformer_engine", "model.cuda_graph_modules=[attn]")
    plan, why = offer("llama3_8b", *graphs, "model.attention_backend=unfused", "model.context_parallel_size=1")
    assert why is None and plan is not None and not plan.full and plan.captured == {}
    assert plan.warmup_only == ("core_attn",) and set(plan.labels) == {"core_attn", "mlp"}
    assert plan.charged(Boundary.selective(["core_attn", "mlp"])) == Boundary.selective(["mlp"])
    assert plan.charged(Boundary.full("uniform", 1)) == Boundary.full("uniform", 1)


def test_without_any_label_left_the_reason_names_what_is_captured() -> None:
    graphs = ("model.cuda_graph_impl=transformer_engine", "model.cuda_graph_modules=[attn,mlp]")
    plan, why = offer("llama3_8b", *graphs)
    assert plan is None and why is not None
    assert why.startswith("the space has no label to switch: core_attn acts only before graph capture") and "mlp acts" in why


def test_a_space_with_other_full_settings_alone_is_not_surveyed() -> None:
    prepared = prepare(Request(recipe="llama3_8b", mem_target_bytes=75 * 10**9), detailed=False)
    refused = replace(prepared, candidates=tuple(c for c in prepared.candidates if c.boundary != Boundary.full("uniform", 1)))
    why = plan_of_survey(refused, 75 * 10**9, launch_steps=4)
    assert isinstance(why, str) and why.endswith("under full/uniform/1, which cannot run here: it is not in the space")


def test_labels_that_are_refused_together_leave_the_widest_set_and_what_it_can_tell_of() -> None:
    prepared = prepare(Request(recipe="moonlight16b", mem_target_bytes=75 * 10**9), detailed=False)
    plan = plan_of_survey(prepared, None, launch_steps=4)
    assert isinstance(plan, SurveyPlan)
    union = set(plan.labels)
    candidates = tuple(
        replace(c, status="invalid") if {"moe", "moe_act"} <= set(c.boundary.modules) else c for c in prepared.candidates
    )
    narrower = plan_of_survey(replace(prepared, candidates=candidates), None, launch_steps=4)
    assert isinstance(narrower, SurveyPlan)
    assert len(narrower.labels) == len(union) - 1 and set(narrower.labels) < union
    assert all(set(boundary.modules) <= set(narrower.labels) for boundary in narrower.candidates)


@pytest.mark.parametrize(
    ("section", "fields", "name"),
    [
        ("precision", {"fp8": "hybrid"}, "FP8"),
        ("precision", {"fp4": "e2m1"}, "FP4"),
        ("features", {"fine_grained_activation_offloading": True}, "offloading"),
        ("features", {"overlap_moe_expert_parallel_comm": True}, "overlap"),
        ("features", {"distribute_saved_activations": True}, "distribute_saved_activations"),
    ],
)
def test_what_cannot_be_switched_is_declined_by_name(section: str, fields: dict[str, Any], name: str) -> None:
    plan, why = offer("moonlight16b", **{section: fields})
    assert plan is None and why is not None and name in why


@pytest.mark.parametrize(
    ("overrides", "to_the_bit", "jitter"),
    [
        ((), False, EXPERT_JITTER),
        (("model.moe_router_force_load_balancing=true",), False, EXPERT_JITTER),  # nothing measured says that it is less
        ((), True, JITTER),  # on a CPU launches repeat, whatever is routed where
        (("world_size=1", "model.expert_model_parallel_size=1"), False, JITTER),  # one rank has every token
    ],
)
def test_peaks_scatter_where_routing_moves_tokens_between_ranks_and_launches_do_not_repeat(
    overrides: tuple[str, ...], to_the_bit: bool, jitter: float
) -> None:
    request = Request(recipe="moonlight_tiny", mem_target_bytes=50 * 10**6, overrides=overrides)
    prepared = prepare(request, detailed=False)
    backend: Any = Launches()
    backend.kind, backend.to_the_bit, backend.lacks = "measured", to_the_bit, lambda boundary, run_index: None
    evidence = Evidence(prepared.candidates, GateSettings(limit_bytes=50 * 10**6))
    planner = make_sampler(request, prepared, backend, evidence, survey=True, first=None)
    assert isinstance(planner, Planner) and planner.jitter == jitter
