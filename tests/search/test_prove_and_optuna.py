"""``--prove`` measures the neighbours; ours as an Optuna sampler; evidence of surveys."""

from __future__ import annotations

import optuna
import pytest
from toy_space import World, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.evidence import Evidence
from autotune.search.neighbours import neighbours
from autotune.search.optuna_planner import PlannerSampler
from autotune.search.planner import Planner


def test_neighbours_of_a_set_and_of_full() -> None:
    near = neighbours(space(3), Boundary.selective(["core_attn"]))
    assert [b.key for b in near] == ["[]", "core_attn+layernorm", "core_attn+mla_up_proj"]
    assert [b.key for b in neighbours(space(3), Boundary.full("uniform", 1))] == [
        "core_attn+layernorm+mla_up_proj", "full/uniform/2",
    ]  # fmt: skip


@pytest.mark.parametrize("limit_gb", [60.0, 75.0])
def test_prove_launches_every_neighbour_of_the_answer(limit_gb: float) -> None:
    world, candidates = World(limit_gb=limit_gb, seed=3), space(4)
    launches = []
    for prove in (False, True):
        world.launches = []
        evidence = Evidence(candidates, settings(limit_gb))
        planner = Planner(candidates, evidence, world.lacks, draws=200, prove=prove)
        number = 0
        while planner.done() is None:
            (proposal,) = planner.ask(1)
            planner.tell(world.run(proposal.boundary, number, proposal.repeat_reason))
            number += 1
        launches.append(set(world.launches))
        best = evidence.best()
        assert best is not None
    assert launches[0] < launches[1] and set(neighbours(candidates, best)) <= launches[1]


def test_optuna_follows_the_planner_and_stops_with_it() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    world, candidates = World(limit_gb=62.0, seed=2, width=0.3), space(4)
    evidence = Evidence(candidates, settings(62.0))
    sampler = PlannerSampler(Planner(candidates, evidence, world.lacks, draws=200), [c.boundary for c in candidates])
    study = optuna.create_study(sampler=sampler)

    def objective(trial: optuna.Trial) -> float:
        granularity = trial.suggest_categorical("granularity", ["none", "selective", "full"])
        proposal = sampler.proposal(trial.number)
        if proposal is None:
            raise optuna.TrialPruned
        assert granularity == (proposal.boundary.granularity or "none")
        sampler.tell(world.run(proposal.boundary, trial.number, proposal.repeat_reason))
        return world.step(proposal.boundary)

    study.optimize(objective, n_trials=60)
    assert len(study.trials) == len(world.launches) < 20
    assert all(trial.params["granularity"] in ("selective", "full") for trial in study.trials)
    best = evidence.best()
    assert best is not None and "proposal" in study.trials[0].user_attrs
