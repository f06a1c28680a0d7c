"""Settings at the limit where launches scatter: what is accepted, what is left open, and what is worth a launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_space import GB, World, predict, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.certificate import certificate
from autotune.search.early_stop import last_resort
from autotune.search.evidence import Evidence
from autotune.search.observations import PeakSeen, PriorSpread, StepSeen
from autotune.search.planner import Planner
from autotune.search.posterior import Posterior
from autotune.search.seen import seen_in_survey
from autotune.search.stop_rule import EXPERT_JITTER
from autotune.search.survey import SurveyedSetting, SurveyFindings
from autotune.search.worth import Outlook, outlook, saving, saving_of_a_repeat
from autotune.trial.record import RankRecord, TrialRecord

EXACT = PriorSpread(
    group=0.0, offset=0.0, phase_offset=0.0, saving=0.0, least_saving=0.0, own=0.0, run=0.006, price=0.0, inert=0.0,
    widths={1.0: 1.0},
)  # fmt: skip
FULL, CONTROL = Boundary.full("uniform", 1), Boundary.selective()


def surveyed(world: World) -> SurveyFindings:
    rows = []
    for candidate in space():
        truth = predict(candidate.boundary, saves=world.saves, prices=world.prices)
        phases = {p.phase: p.peak_bytes for p in truth.stages[0].phases}
        rows.append(SurveyedSetting(
            boundary=candidate.boundary, peak_bytes=truth.peak_bytes, phases=phases, replay_ms=truth.replay_ms,
            replay_error_ms=truth.replay_ms * 0.05, replay_ms_by_label=truth.replay_ms_by_label,
        ))  # fmt: skip
    return SurveyFindings(base=FULL, settings=tuple(rows))


def after_survey(limit_gb: float) -> tuple[Planner, Evidence, World]:
    """A planner with free routing that has its survey, of a world that is as the ledger says."""
    world = World(limit_gb=limit_gb, width=0.0)
    evidence = Evidence(space(), settings(limit_gb))
    planner = Planner(space(), evidence, world.lacks, draws=1000, jitter=EXPERT_JITTER, survey=True)
    (proposal,) = planner.ask(1)
    planner.tell_survey(world.run(proposal.boundary, 0), surveyed(world))
    return planner, evidence, world


def test_what_a_launch_at_the_limit_may_show_by_hand() -> None:
    """One boundary, known to 0.6 %, one launch of 0.6 % more: by the formula of two normals, against a million draws."""
    spread = PriorSpread(
        group=0.0, offset=0.006, phase_offset=0.0, saving=0.0, least_saving=0.0, own=0.0, run=0.006, price=0.0, inert=0.0,
        widths={1.0: 1.0},
    )  # fmt: skip
    posterior = Posterior({CONTROL: predict(CONTROL)}, spread=spread, draws=20_000)
    peak, generator = predict(CONTROL).peak_bytes, np.random.default_rng(5)
    means = generator.normal(1, 0.006, 10**6)
    launches = means + generator.normal(0, 0.006, 10**6)
    for room in (0.0, 0.01, 0.015):
        limit = round(peak * (1 + room))
        shows = outlook(posterior, CONTROL, limit, settles=False)
        passed = launches <= 1 + room
        assert shows.passes == pytest.approx(float(np.mean(passed)), abs=0.02)
        assert shows.risk == pytest.approx(float(np.mean(means[passed] > 1 + room)), abs=0.02)
        assert shows.risks == tuple(sorted(shows.risks))
        # A repeat of the answer: it passes, and the risk is what is left; or it fails, and the rival 40 ms dearer is the answer.
        risk = float(np.mean(means > 1 + room))
        left = np.array([np.mean(means[part] > 1 + room) for part in np.array_split(np.argsort(launches)[: passed.sum()], 40)])
        after = np.mean(passed) * np.minimum(300 * left, 40).mean() + np.mean(~passed) * 40
        gain = saving_of_a_repeat(shows, wrong_ms=300.0, risk=risk, otherwise_ms=40.0)
        assert gain == pytest.approx(min(300 * risk, 40) - after, abs=2.0)


def test_what_a_launch_is_worth_over_an_answer() -> None:
    """The control saves 45 ms over an answer without risk: less what it leaves at risk, where it passes."""
    posterior = Posterior({b: predict(b) for b in (CONTROL, Boundary.selective(["moe"]))}, spread=EXACT, draws=2000)
    moe, limit = Boundary.selective(["moe"]), round(predict(CONTROL).peak_bytes * 1.006)
    certain, risky = Outlook(0.8, (0.0, 0.0)), Outlook(0.8, (0.0, 0.1))
    options = {"wrong_ms": 300.0, "answer_risk": 0.0}
    assert saving(posterior, CONTROL, moe, certain, **options) == pytest.approx((0.8 * 45, 0.8))
    assert saving(posterior, CONTROL, moe, risky, **options) == pytest.approx((0.8 * (45 + 15) / 2, 0.8))
    # 0.2 at risk is worth more than all that is saved: then the answer stays, and nothing is lost.
    assert saving(posterior, CONTROL, moe, Outlook(0.8, (0.0, 0.2)), **options) == pytest.approx((0.4 * 45, 0.4))
    # An answer that is at risk itself is worth leaving.
    assert saving(posterior, CONTROL, moe, certain, wrong_ms=300.0, answer_risk=0.1)[0] == pytest.approx(0.8 * 75)
    assert outlook(posterior, CONTROL, limit, settles=True).risks == (0.0,)


def test_an_answer_states_its_risk_and_is_no_pass_where_that_is_large() -> None:
    """A setting whose mean is as likely over the limit as not passes its one launch by chance."""
    planner, evidence, world = after_survey(82.0 * 1.0005)
    record = world.run(CONTROL, 1)
    planner.tell(record)
    assert evidence.verdicts[CONTROL].status == "pass"
    answered = evidence.answered(CONTROL)
    assert answered.status == "unproven" and answered.reason.startswith("passed, but over the limit in the mean of its launches")
    roomy, evidence, world = after_survey(82.0 * 1.05)
    roomy.tell(world.run(CONTROL, 1))
    assert evidence.answered(CONTROL) == evidence.verdicts[CONTROL] and evidence.answered(CONTROL).status == "pass"


def test_what_is_worth_trying_is_launched_before_what_is_sure() -> None:
    """The control fits with 1.6 % to spare: launched at once. With 0.1 % to spare it would not be accepted: the sure one goes."""
    room, tight = after_survey(82.0 * 1.016)[0], after_survey(82.0 * 1.001)[0]
    assert room.ask(1)[0].boundary == CONTROL
    (sure,) = tight.ask(1)
    assert sure.boundary != CONTROL and tight.fit(sure.boundary) == pytest.approx(1, abs=0.05)


def test_a_risky_setting_gives_way_to_one_that_costs_less_than_its_risk() -> None:
    """The control at the limit saves 6 ms and is over it as likely as not, which counts for 75 ms of a 600 ms step."""
    planner, evidence, world = after_survey(82.0 * 1.0005)
    planner.tell(world.run(CONTROL, 1))
    assert evidence.best() == CONTROL
    sure = Boundary.selective(["moe_act"])
    planner.tell(world.run(sure, 2))
    assert evidence.best() == sure and evidence.answered(sure).status == "pass"
    row = next(row for row in certificate(planner.candidates, evidence, sure) if row.name == "[]")
    assert "over the limit in the mean of its launches with" in row.reason


def test_the_certificate_leaves_open_what_one_launch_at_the_limit_cannot_rule_out() -> None:
    planner, evidence, world = after_survey(82.0 * 1.002)
    failed = replace(world, limit_gb=40.0).run(CONTROL, 1)
    ranks = {r: replace(k, allocated_peak_bytes=81 * GB) for r, k in failed.ranks.items()}
    planner.tell(replace(failed, ranks=ranks))
    sure = Boundary.selective(["moe_act"])
    planner.tell(world.run(sure, 2))
    rows = {row.name: row for row in certificate(planner.candidates, evidence, sure)}
    row = rows["[]"]
    chance = evidence.chance(CONTROL, sure) if evidence.chance is not None else None
    assert chance is not None and 0.05 < chance < 0.95
    assert row.basis == "open" and "oom_capacity" in row.reason and "not ruled out: within the limit in the mean" in row.reason
    # Far over the limit a failure rules out.
    far, evidence, world = after_survey(74.0)
    far.tell(world.run(CONTROL, 1))
    wide = Boundary.selective(["moe"])
    far.tell(world.run(wide, 2))
    row = next(row for row in certificate(far.candidates, evidence, wide) if row.name == "[]")
    assert row.basis == "measured" and "not ruled out" not in row.reason


def test_without_free_routing_a_launch_has_told() -> None:
    world = World(limit_gb=82.0 * 1.0005, width=0.0)
    evidence = Evidence(space(), settings(world.limit_gb))
    planner = Planner(space(), evidence, world.lacks, draws=400)
    planner.tell(world.run(CONTROL, 0))
    assert evidence.best() == CONTROL and evidence.doubted(CONTROL) is None
    assert evidence.chance is not None and evidence.chance(CONTROL, None) is None


def test_full_over_everything_and_the_widest_set_are_the_last_resort_whatever_is_predicted() -> None:
    candidates = space()
    widest = candidates[63].boundary
    assert last_resort(candidates) == [FULL, widest]
    # The prediction of another full setting may be lower: the plain one is tried all the same.
    lower = [
        replace(c, prediction=replace(c.prediction, peak_bytes=GB)) if c.boundary.num_layers == 2 and c.prediction else c
        for c in candidates
    ]
    assert last_resort(lower) == [FULL, widest]
    assert last_resort([c for c in lower if c.boundary != FULL]) == [Boundary.full("uniform", 2), widest]
    assert last_resort([c for c in candidates if c.boundary.granularity != "full"]) == [widest]


def test_steps_of_the_base_tell_prices() -> None:
    """Interleaved with a switched setting, the base takes 40 ms longer than was priced: full recompute is dearer than thought."""
    world = World(limit_gb=100.0, width=0.0)
    moe = Boundary.selective(["moe"])
    setting = TrialRecord(
        number=0, kind="switched", boundary=moe, workload_digest="toy", world_size=1, completed=True,
        ranks={0: RankRecord(rank=0, allocated_peak_bytes=world.peak_bytes(moe))}, step_ms=(645.0, 646.0, 644.0),
    )  # fmt: skip
    base_ms = 600.0 + predict(FULL).replay_ms + 40.0
    rough = tuple(replace(s, replay_error_ms=0.2 * s.replay_ms) for s in surveyed(world).settings)
    findings = SurveyFindings(base=FULL, settings=rough, switched=(setting,), base_step_ms=(base_ms, base_ms + 1, base_ms - 1))
    seen = seen_in_survey(world.run(FULL, 0), findings, 100 * GB)
    steps = [s for s in seen if isinstance(s, StepSeen)]
    assert [s.boundary for s in steps] == [FULL, moe] and {s.process for s in steps} == {0}
    prices = []
    for told in (findings, replace(findings, base_step_ms=())):
        evidence = Evidence(space(), settings(100.0))
        planner = Planner(space(), evidence, world.lacks, draws=1000, survey=True)
        planner.ask(1)
        planner.tell_survey(replace(world.run(FULL, 0), step_ms=()), told)
        assert planner.posterior is not None
        prices.append(planner.posterior.price_ms(FULL) - planner.posterior.price_ms(moe))
    assert prices[1] == pytest.approx(135, abs=5) and prices[0] == pytest.approx(175, abs=10)


def test_a_peak_that_is_seen_moves_all_settings_of_the_metric() -> None:
    posterior = Posterior({c.boundary: c.prediction for c in space() if c.prediction is not None}, draws=1000)
    before = posterior.peak(FULL)[0]
    posterior.see([PeakSeen(boundary=CONTROL, peak_bytes=round(predict(CONTROL).peak_bytes * 1.02), phases={})])
    assert posterior.peak(CONTROL)[0] == pytest.approx(predict(CONTROL).peak_bytes * 1.02, rel=0.004)
    assert posterior.peak(FULL)[0] >= before - GB
