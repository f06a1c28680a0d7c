"""Which requests begin with a survey, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.engine.prepare import prepare
from autotune.engine.request import Request
from autotune.engine.run import survey_of
from autotune.trial.survey.plan import SurveyPlan


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
    return survey_of(request, replace(prepared, workload=workload), backend)


def test_a_recipe_without_graphs_is_surveyed_under_all_its_labels() -> None:
    plan, why = offer("moonlight16b")
    assert why is None and plan is not None
    assert {"moe", "moe_act", "mla_up_proj"} <= set(plan.labels) and Boundary.full("uniform", 1) in plan.candidates


def test_captured_scopes_rule_full_recompute_out_and_with_it_the_survey() -> None:
    plan, why = offer("nemotron3nano")
    assert plan is None and why is not None
    assert why.startswith(
        "every setting is priced under full/uniform/1, which cannot run here: full recompute needs cuda_graph_impl"
    )


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
