"""What holds for every search, with a survey and without, at the limit and far from it."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from toy_space import World, settings, space
from toy_survey import report_of

from autotune.boundary.boundary import Boundary
from autotune.engine.survey_stage import findings_of
from autotune.search.candidate import Candidate
from autotune.search.evidence import TIE_RATIO, Evidence
from autotune.search.planner import Planner
from autotune.search.stop_rule import JITTER
from autotune.trial.gates import peaks_bytes
from autotune.trial.record import TrialRecord

WORLDS = st.builds(
    World,
    limit_gb=st.floats(44.0, 84.0),
    seed=st.integers(0, 10_000),
    width=st.sampled_from([0.05, 0.2, 0.5]),
    run_noise=st.sampled_from([0.0, 0.006]),
    step_noise=st.sampled_from([0.0, 0.03]),
)


def shuffled(candidates: list[Candidate], seed: int) -> list[Candidate]:
    """The same space, its candidates listed and their labels written in another order."""
    draw = random.Random(seed)
    found = []
    for candidate in candidates:
        labels = list(candidate.boundary.modules)
        draw.shuffle(labels)
        full = candidate.boundary.granularity == "full"
        found.append(candidate if full else replace(candidate, boundary=Boundary.selective(labels)))
    draw.shuffle(found)
    return found


def renumbered(record: TrialRecord) -> TrialRecord:
    """The same launch with its ranks the other way round."""
    last = record.world_size - 1
    ranks = {last - rank: replace(own, rank=last - rank) for rank, own in sorted(record.ranks.items(), reverse=True)}
    failure = record.failure
    if failure is not None and failure.rank is not None:
        failure = replace(failure, rank=last - failure.rank)
    return replace(record, ranks=ranks, failure=failure)


def search(world: World, *, survey: bool, seed: int = 0, permute: int | None = None) -> tuple[Evidence, Planner]:
    candidates = space() if permute is None else shuffled(space(), permute)
    evidence = Evidence(candidates, settings(world.limit_gb))
    planner = Planner(candidates, evidence, world.lacks, draws=150, jitter=max(world.run_noise, JITTER), survey=survey, seed=seed)
    for number in range(100):
        if planner.done() is not None:
            assert planner.ask(1) == []
            return evidence, planner
        (proposal,) = planner.ask(1)
        record = world.run(proposal.boundary, number, proposal.repeat_reason)
        record = record if permute is None else renumbered(record)
        if proposal.survey:
            record = replace(record, kind="switched", step_ms=())
            findings = findings_of(report_of(world), record, to_the_bit=False) if record.completed else None
            planner.tell_survey(record, findings)
        else:
            planner.tell(record)
    raise AssertionError("never done")


@hypothesis_settings(max_examples=10, deadline=None)
@given(WORLDS, st.booleans())
def test_nothing_is_launched_twice_without_a_reason_and_the_answer_is_what_its_records_say(world: World, survey: bool) -> None:
    evidence, planner = search(world, survey=survey)
    best, stop = evidence.best(), planner.done()
    launched = [r.boundary for r in evidence.records if r.kind != "switched"]
    fresh = [r.boundary for r in evidence.records if r.kind != "switched" and r.repeat_reason is None]
    assert len(fresh) == len(set(fresh)) and all(launched.count(b) <= 3 for b in launched)
    assert stop is not None and stop.outcome == ("answer" if best is not None else "none")
    if best is None:
        widest = max((c.boundary for c in space()), key=lambda b: len(b.modules))
        tried = {r.boundary for r in evidence.records}
        assert {Boundary.full("uniform", 1), widest} <= tried
        return
    records = evidence.of(best)
    assert records and all(r.kind == "measured" and r.completed and r.failure is None for r in records)
    assert all(peak <= evidence.settings.limit_bytes for r in records for peak in peaks_bytes(r).values())
    # Nothing that passed surely is cheaper by more than a tie.
    passed = [b for b, v in evidence.verdicts.items() if v.eligible and evidence.doubted(b) is None]
    assert all(evidence.cost_ms(b) >= evidence.cost_ms(best) * 0.998 for b in passed if evidence.doubted(best) is None)


@hypothesis_settings(max_examples=6, deadline=None)
@given(WORLDS, st.booleans(), st.integers(0, 1000))
def test_the_order_of_candidates_labels_and_ranks_changes_nothing(world: World, survey: bool, permute: int) -> None:
    again = replace(world)
    evidence, planner = search(world, survey=survey, seed=3)
    other, twin = search(again, survey=survey, seed=3, permute=permute)
    assert again.launches == world.launches and other.best() == evidence.best()
    ours, theirs = planner.posterior, twin.posterior
    assert ours is not None and theirs is not None and ours.boundaries == theirs.boundaries
    # Not only the decisions: the same worlds were drawn and weighed.
    assert all(ours.peak(b) == theirs.peak(b) and ours.price_ms(b) == theirs.price_ms(b) for b in ours.boundaries)


@hypothesis_settings(max_examples=6, deadline=None)
@given(WORLDS, st.booleans(), st.integers(0, 5))
def test_the_same_seed_gives_the_same_run(world: World, survey: bool, seed: int) -> None:
    again = replace(world)
    evidence, planner = search(world, survey=survey, seed=seed)
    other, twin = search(again, survey=survey, seed=seed)
    assert again.launches == world.launches and other.best() == evidence.best()
    assert planner.done() == twin.done()


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    WORLDS.filter(lambda w: w.run_noise == w.step_noise == 0.0), st.lists(st.integers(0, 65), min_size=2, max_size=8, unique=True)
)
def test_a_passing_cheaper_record_never_makes_the_answer_dearer(world: World, chosen: list[int]) -> None:
    """Whatever passed in whatever order, most of it far from the optimum; steps are exact, so only ties may make it dearer."""
    candidates = space()
    roomy = replace(world, limit_gb=200.0)  # everything passes
    evidence = Evidence(candidates, settings(200.0))
    passed: list[Boundary] = []
    for number, boundary in enumerate(candidates[index].boundary for index in chosen):
        before = evidence.best()
        evidence.add(roomy.run(boundary, number))
        passed.append(boundary)
        after = evidence.best()
        assert after is not None
        assert roomy.step(after) <= min(map(roomy.step, passed)) * (1 + TIE_RATIO)
        if before is not None and roomy.step(boundary) < roomy.step(before):
            assert roomy.step(after) <= roomy.step(before)
        if before is not None and roomy.step(boundary) > roomy.step(before) * (1 + TIE_RATIO):
            assert after == before


@hypothesis_settings(max_examples=8, deadline=None)
@given(WORLDS, st.lists(st.integers(0, 65), min_size=2, max_size=5, unique=True))
def test_after_any_launches_the_planner_prefers_what_costs_least_with_its_risk(world: World, chosen: list[int]) -> None:
    candidates = space()
    evidence = Evidence(candidates, settings(world.limit_gb))
    planner = Planner(candidates, evidence, world.lacks, draws=150, jitter=max(world.run_noise, JITTER))
    for number, index in enumerate(chosen):
        planner.tell(world.run(candidates[index].boundary, number))
        best, premium = evidence.best(), evidence.premium
        assert premium is not None
        cost = {b: evidence.cost_ms(b) + premium(b) for b, v in evidence.verdicts.items() if v.eligible}
        assert (best is None) == (not cost)
        assert best is None or cost[best] <= min(cost.values()) * 1.001
