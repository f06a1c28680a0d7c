"""A survey in the search: its findings replace the ledger, switched settings are evidence and never a pass."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from toy_space import World, predict, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.certificate import certificate
from autotune.search.evidence import Evidence
from autotune.search.observations import FailureSeen, PeakSeen, StepSeen
from autotune.search.planner import Planner
from autotune.search.seen import seen_in_survey
from autotune.search.survey import SurveyedSetting, SurveyFindings, candidates_after_survey
from autotune.search.survey_regions import findings_from_table
from autotune.trial.record import Failure, RankRecord, TrialRecord

FULL = Boundary.full("uniform", 1)


def surveyed(world: World, *, off: float = 0.0) -> tuple[SurveyedSetting, ...]:
    """Every setting of the toy space as a survey of this world would see it."""
    found = []
    for candidate in space():
        truth = predict(candidate.boundary, saves=world.saves, prices=world.prices)
        peak = round(truth.peak_bytes * (1 + off))
        phases = {p.phase: round(p.peak_bytes * (1 + off)) for p in truth.stages[0].phases}
        found.append(SurveyedSetting(
            boundary=candidate.boundary, peak_bytes=peak, phases=phases, replay_ms=truth.replay_ms,
            replay_error_ms=truth.replay_ms * 0.05, replay_ms_by_label=truth.replay_ms_by_label,
        ))  # fmt: skip
    return tuple(found)


def switched(boundary: Boundary, world: World, *, over: bool = False) -> TrialRecord:
    ranks = {0: RankRecord(rank=0, allocated_peak_bytes=world.peak_bytes(boundary))}
    step = world.step(boundary)
    return TrialRecord(
        number=0, kind="switched", boundary=boundary, workload_digest="toy", world_size=2, completed=not over, ranks=ranks,
        step_ms=() if over else (step, step * 1.004, step * 0.996),
        failure=Failure(failure_class="oom_capacity", stage="backward", rank=0, step=8) if over else None,
    )  # fmt: skip


def search(world: World, findings: SurveyFindings | None) -> tuple[Evidence, Planner]:
    candidates = space()
    evidence = Evidence(candidates, settings(world.limit_gb))
    planner = Planner(candidates, evidence, world.lacks, draws=300, survey=True)
    for number in range(40):
        if planner.done() is not None:
            return evidence, planner
        (proposal,) = planner.ask(1)
        record = world.run(proposal.boundary, number, proposal.repeat_reason)
        if proposal.survey:
            planner.tell_survey(record, findings if record.completed else None)
        else:
            planner.tell(record)
    raise AssertionError("never done")


@pytest.mark.parametrize("seed", range(8))
def test_two_launches_and_the_optimum_however_wrong_the_ledger_is(seed: int) -> None:
    world = World(limit_gb=54.0 + 3 * seed, seed=seed, width=0.6)
    evidence, _ = search(world, SurveyFindings(base=FULL, settings=surveyed(world)))
    best, optimum = evidence.best(), world.optimum_ms(space())
    assert best is not None and optimum is not None and world.step(best) <= optimum * 1.002
    fresh = [r for r in evidence.records if r.kind != "switched"]
    assert len(evidence.records) <= 4 and all(r.boundary == best or r.failure for r in fresh)


def test_a_switched_setting_is_never_the_answer_until_it_was_launched() -> None:
    world = World(limit_gb=70.0)
    evidence = Evidence(space(), settings(70.0))
    cheap = Boundary.selective(["moe_act"])
    launch = world.run(FULL, 0)
    verdict = evidence.add_survey(launch, [switched(cheap, world)])
    assert verdict.status == "unproven" and "switched" in verdict.reason
    assert evidence.best() is None and evidence.runs(FULL) == 0 and evidence.runs(cheap) == 0
    assert evidence.switched_within(FULL) and len(evidence.records) == 1
    evidence.add(world.run(FULL, 1))
    assert evidence.best() == FULL


def test_a_base_that_does_not_fit_is_followed_by_the_broadest_set_and_then_by_launches() -> None:
    world = World(limit_gb=44.0)
    evidence, planner = search(world, None)
    asked = world.launches[:2]
    assert asked == [FULL, Boundary.selective(space()[63].boundary.modules)]
    stop = planner.done()
    assert stop is not None and stop.outcome == "none" and evidence.best() is None


def test_where_the_switched_peaks_part_from_the_predictions_the_margin_widens() -> None:
    world = World(limit_gb=70.0, seed=4)
    tried = [Boundary.selective(["moe"]), Boundary.selective(["moe_act"])]
    right = SurveyFindings(base=FULL, settings=surveyed(world), switched=tuple(switched(b, world) for b in tried))
    wrong = replace(right, settings=surveyed(world, off=0.03))
    assert right.surprise == 1.0 and wrong.surprise > 5.0
    widths = []
    for findings in (right, wrong):
        _, planner = search(world, findings)
        assert planner.posterior is not None
        untried = Boundary.selective(["layernorm", "mla_up_proj"])
        widths.append(planner.posterior.peak(untried)[1])
    assert widths[1] > 2 * widths[0]


def test_settings_with_the_same_effect_are_one_and_unknown_ones_lose_the_ledgers_word() -> None:
    world = World(limit_gb=70.0)
    rows = [replace(s, phases=dict(s.phases)) for s in surveyed(world) if len(s.boundary.modules) <= 1]
    bare = next(s for s in rows if s.boundary == Boundary.selective())
    inert = [replace(bare, boundary=s.boundary) if s.boundary.modules == ("core_attn",) else s for s in rows]
    after = {c.boundary: c for c in candidates_after_survey(space(), SurveyFindings(base=FULL, settings=tuple(inert)))}
    label = after[Boundary.selective(["core_attn"])]
    assert label.status == "same_as" and label.same_as == Boundary.selective() and "survey" in label.reason
    assert after[Boundary.selective(["moe", "moe_act"])].prediction is None
    moe = after[Boundary.selective(["moe"])].prediction
    assert moe is not None and moe.notes == ("surveyed",)


def test_the_certificate_says_what_the_survey_launch_showed() -> None:
    world = World(limit_gb=70.0)
    evidence = Evidence(space(), settings(70.0))
    control = Boundary.selective()
    evidence.add_survey(world.run(FULL, 0), [switched(control, world, over=True)])
    evidence.add(world.run(FULL, 1))
    row = next(r for r in certificate(space(), evidence, FULL) if r.name == "[]")
    assert row.basis == "switched" and row.reason.startswith("in the survey launch: oom_capacity in backward")


def test_peaks_from_regions_by_hand() -> None:
    """Base full/uniform/1 over 4 layers: 10 of loss of which 1 is kept; one label drops 2 a layer, nested ones only once."""
    layer = {"label": "layer", "layers": 4, "kept_bytes": 250, "dropped_bytes": 2000, "replay_transient_bytes": 500,
             "forward_ms": 5.0, "inert": False}  # fmt: skip
    rows = [
        layer,
        layer | {"label": "moe", "kept_bytes": 0, "dropped_bytes": 1000, "forward_ms": 2.0},
        layer | {"label": "moe_act", "kept_bytes": 0, "dropped_bytes": 300, "replay_transient_bytes": 100, "forward_ms": 0.5},
        layer | {"label": "layernorm", "dropped_bytes": 0, "replay_transient_bytes": 0, "forward_ms": 0.0, "inert": True},
    ]
    launch = TrialRecord(
        number=0, kind="replayed", boundary=FULL, workload_digest="t", world_size=1, completed=True,
        ranks={0: RankRecord(
            rank=0, allocated_peak_bytes=10_500, phases={"loss": 10_000, "backward": 10_500, "optimizer": 9000},
        )},
    )  # fmt: skip
    asked = [Boundary.selective(labels) for labels in ([], ["moe"], ["moe", "moe_act"], ["moe_act"], ["layernorm"])]
    asked += [FULL, Boundary.full("block", 2), Boundary.full("uniform", 2)]
    found = findings_from_table({"base": {}, "regions": rows, "switchable": []}, launch, asked)
    peaks = {s.boundary.key: (s.phases["loss"], s.phases["backward"], s.phases["optimizer"]) for s in found.settings}
    assert peaks["full/uniform/1"] == (10_000, 10_500, 9000)
    assert peaks["[]"] == peaks["layernorm"] == (18_000, 18_000, 9000)
    assert peaks["moe"] == (14_000, 14_500, 9000)
    assert peaks["moe+moe_act"] == (14_000, 14_600, 9000)
    assert peaks["moe_act"] == (16_800, 16_900, 9000)
    assert peaks["full/block/2"] == (14_000, 14_500, 9000)
    assert peaks["full/uniform/2"] == (9_500, 10_500, 9000)
    prices = {s.boundary.key: s.replay_ms for s in found.settings}
    assert prices["full/uniform/1"] == 20.0 and prices["full/block/2"] == 10.0
    assert prices["moe+moe_act"] == 10.0 and prices["layernorm"] == 0.0
    assert found.inert_labels == ("layernorm",)


def test_the_same_findings_give_the_same_run_in_any_order() -> None:
    runs = []
    for shuffle in (None, 1):
        world = World(limit_gb=66.0, seed=9, width=0.5, run_noise=0.006, step_noise=0.03)
        rows = list(surveyed(world))
        if shuffle is not None:
            random.Random(shuffle).shuffle(rows)
        evidence, _ = search(world, SurveyFindings(base=FULL, settings=tuple(rows)))
        runs.append((world.launches, evidence.best()))
    assert runs[0] == runs[1]


def test_the_base_is_seen_by_its_own_steps_and_switched_ones_by_what_a_launch_needs() -> None:
    """The launch's record has the highest peak of all that it ran; a switched step repeats one batch of several."""
    world = World(limit_gb=70.0)
    moe = Boundary.selective(["moe"])
    launch = world.run(FULL, 0)
    launch = replace(launch, ranks={r: replace(rank, allocated_peak_bytes=10**12) for r, rank in launch.ranks.items()})
    rows = tuple(replace(s, frozen_peak_bytes=s.peak_bytes - 3_000) for s in surveyed(world))
    failed = replace(switched(Boundary.selective(), world, over=True), step_ms=())
    findings = SurveyFindings(base=FULL, settings=rows, switched=(switched(moe, world), failed), base_peak_bytes=7)
    seen = {one.boundary: one for one in seen_in_survey(launch, findings, 1_000) if not isinstance(one, StepSeen)}
    base, tried, over = seen[FULL], seen[moe], seen[Boundary.selective()]
    assert isinstance(base, PeakSeen) and base.peak_bytes == 7
    assert isinstance(tried, PeakSeen) and tried.peak_bytes == findings.measured_bytes[moe] == world.peak_bytes(moe) + 3_000
    assert isinstance(over, FailureSeen) and over.above_bytes == 4_000
