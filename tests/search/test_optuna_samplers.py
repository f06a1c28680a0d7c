"""Optuna's own samplers on the same space: never twice, never invalid, and to the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_space import World, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.optuna_samplers import OptunaSampler


@pytest.mark.parametrize("name", ["tpe", "random", "gp"])
def test_each_candidate_once_and_the_optimum_in_the_end(name: str) -> None:
    # A suggestion of the Gaussian process takes seconds: two labels leave it one, after its start.
    world, candidates = World(limit_gb=70.0, seed=3), space(2 if name == "gp" else 3)
    evidence = Evidence(candidates, settings(world.limit_gb))
    sampler = OptunaSampler(name, candidates, evidence, world.lacks, seed=1)
    number = 0
    while sampler.done() is None:
        (proposal,) = sampler.ask(1)
        assert proposal.repeat_reason is not None or evidence.runs(proposal.boundary) == 0
        sampler.tell(world.run(proposal.boundary, number, proposal.repeat_reason))
        number += 1
    assert {r.boundary for r in evidence.records} == {c.boundary for c in candidates}
    best, optimum = evidence.best(), world.optimum_ms(candidates)
    assert best is not None and optimum is not None and world.step(best) <= optimum * 1.0101


def test_the_same_seed_gives_the_same_suggestions() -> None:
    runs = []
    for _ in range(2):
        world, candidates = World(limit_gb=70.0, seed=3), space(4)
        evidence = Evidence(candidates, settings(world.limit_gb))
        sampler = OptunaSampler("tpe", candidates, evidence, world.lacks, seed=7)
        for number in range(8):
            (proposal,) = sampler.ask(1)
            sampler.tell(world.run(proposal.boundary, number))
        runs.append(world.launches)
    assert runs[0] == runs[1]


def test_pending_suggestions_are_distinct() -> None:
    world, candidates = World(limit_gb=70.0), space(3)
    sampler = OptunaSampler("random", candidates, Evidence(candidates, settings(70.0)), world.lacks, seed=0)
    asked = [p.boundary for p in sampler.ask(4)] + [p.boundary for p in sampler.ask(4)]
    assert len(set(asked)) == 8


@pytest.mark.parametrize("name", ["exhaustive", "random"])
def test_out_of_memory_in_the_optimizer_whatever_is_recomputed_ends_every_sampler(name: str) -> None:
    candidates = space(3)
    evidence = Evidence(candidates, settings(60.0))
    world = World(limit_gb=20.0)
    random = OptunaSampler("random", candidates, evidence, world.lacks)
    sampler = random if name == "random" else ExhaustiveSampler(candidates, evidence, world.lacks)
    for number, boundary in enumerate([Boundary.selective(), Boundary.selective(candidates[7].boundary.modules)]):
        record = world.run(boundary, number)
        assert sampler.done() is None and record.failure is not None
        sampler.tell(replace(record, failure=replace(record.failure, failure_class="oom_optimizer", stage="optimizer")))
    stop = sampler.done()
    assert stop is not None and stop.outcome == "none" and "not an activation problem" in stop.text and sampler.ask(1) == []
