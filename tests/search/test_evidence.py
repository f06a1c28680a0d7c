"""What the records say together: the best, the certificate, the curve over limits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from toy_space import GB, World, boundaries, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.breakpoints import Point, breakpoints, predicted_points, recorded_points
from autotune.search.candidate import Candidate
from autotune.search.certificate import at_risk, certificate
from autotune.search.early_stop import not_an_activation_problem
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler, PredictedSampler
from autotune.search.fit import fit_probability
from autotune.search.planner import Planner
from autotune.search.ties import preference
from autotune.trial.record import Failure, RankRecord, TrialRecord

SPACE = space(4)


def whole(boundary: Boundary, peak_gb: float, step_ms: float, number: int = 0) -> TrialRecord:
    iterations = tuple({"step": i + 1, "loss": 7.0, "grad_norm": 1.0} for i in range(4))
    ranks = {r: RankRecord(rank=r, allocated_peak_bytes=round(peak_gb * GB) - r, iterations=iterations) for r in range(2)}
    return TrialRecord(
        number=number, kind="measured", boundary=boundary, workload_digest="t", world_size=2, completed=True, ranks=ranks,
        step_ms=(step_ms,), steps_run=4,
    )  # fmt: skip


def evidence_of(records: list[TrialRecord], limit_gb: float = 75.0) -> Evidence:
    evidence = Evidence(SPACE, settings(limit_gb))
    for record in records:
        evidence.add(record)
    return evidence


results = st.lists(
    st.tuples(st.sampled_from(boundaries(4)), st.floats(40, 90), st.floats(500, 800)),
    min_size=1,
    max_size=8,
    unique_by=lambda r: r[0],
)


@given(results, st.floats(50, 80))
def test_the_answer_never_violates_its_own_records(rows: list[tuple[Boundary, float, float]], limit_gb: float) -> None:
    evidence = evidence_of([whole(b, peak, step, n) for n, (b, peak, step) in enumerate(rows)], limit_gb)
    best = evidence.best()
    fitting = [(b, step) for b, peak, step in rows if round(peak * GB) <= round(limit_gb * GB)]
    assert (best is None) == (not fitting)
    if best is not None:
        assert best in [b for b, _ in fitting]
        assert evidence.cost_ms(best) <= min(step for _, step in fitting) * 1.01


@given(results, st.floats(0.5, 0.999), st.floats(40, 70))
def test_a_passing_cheaper_record_never_makes_the_answer_dearer(
    rows: list[tuple[Boundary, float, float]], cheaper: float, peak_gb: float
) -> None:
    evidence = evidence_of([whole(b, peak, step, n) for n, (b, peak, step) in enumerate(rows)])
    before = evidence.best()
    left = [b for b in boundaries(4) if b not in evidence.verdicts]
    if before is None or not left:
        return
    price = evidence.cost_ms(before)
    evidence.add(whole(left[0], peak_gb, price * cheaper, len(rows)))
    after = evidence.best()
    assert after is not None and evidence.cost_ms(after) <= price


@hypothesis_settings(max_examples=30)
@given(results, st.randoms(use_true_random=False))
def test_the_order_of_records_changes_nothing(rows: list[tuple[Boundary, float, float]], shuffle: random.Random) -> None:
    records = [whole(b, peak, step, n) for n, (b, peak, step) in enumerate(rows)]
    straight = evidence_of(records)
    shuffle.shuffle(records)
    mixed = evidence_of(records)
    assert straight.best() == mixed.best() and straight.records == mixed.records
    assert dict(straight.verdicts) == dict(mixed.verdicts)


def test_ties_go_to_fewer_labels_then_to_the_smaller_peak() -> None:
    one, other, two = (
        Boundary.selective(["moe_act"]),
        Boundary.selective(["layernorm"]),
        Boundary.selective(["core_attn", "moe_act"]),
    )
    records = [
        whole(two, 60, 600.0, 0),
        whole(one, 62, 603.0, 1),
        whole(other, 61, 604.0, 2),
        whole(Boundary.selective(), 90, 590, 3),
    ]
    assert evidence_of(records).best() == other
    assert evidence_of([records[0], whole(one, 62, 620.0, 1)]).best() == two


def test_reference_is_the_control_else_the_completed_one_with_the_least_replay() -> None:
    light, heavy = Boundary.selective(["layernorm"]), Boundary.selective(["layernorm", "mla_up_proj"])
    evidence = evidence_of([whole(heavy, 60, 640, 0), whole(light, 61, 620, 1)])
    assert evidence.reference is not None and evidence.reference.boundary == light
    evidence.add(whole(Boundary.selective(), 90, 600, 2))
    # Over the limit, but a whole run: its loss and step are those of the control.
    assert evidence.reference.boundary == Boundary.selective() and evidence.best() in (light, heavy)


def test_a_slowdown_bound_is_held_against_the_reference() -> None:
    evidence = Evidence(SPACE, settings(75.0), max_slowdown=0.05)
    evidence.add(whole(Boundary.selective(), 90, 600, 0))
    evidence.add(whole(Boundary.selective(["layernorm"]), 70, 640, 1))
    assert evidence.best() is None
    evidence.add(whole(Boundary.selective(["mla_up_proj"]), 70, 629, 2))
    assert evidence.best() == Boundary.selective(["mla_up_proj"])


def test_certificate_has_a_row_with_a_reason_for_each_cheaper_candidate() -> None:
    world = World(limit_gb=79.0)
    evidence = Evidence(SPACE, settings(79.0))
    for number, boundary in enumerate(
        [Boundary.selective(), Boundary.selective(["mla_up_proj"]), Boundary.selective(["moe_act"])]
    ):
        evidence.add(world.run(boundary, number))
    answer = evidence.best()
    assert answer == Boundary.selective(["moe_act"])
    ruled = [
        Candidate(boundary=Boundary.selective(["mlp"]), order=90, status="no_effect", reason="no dense layer"),
        Candidate(boundary=Boundary.selective(["gdn"]), order=91, status="invalid", reason="needs GDN"),
        Candidate(boundary=Boundary.off(), order=92, status="same_as", reason="as []", same_as=Boundary.selective()),
    ]
    rows = {row.name: row for row in certificate([*SPACE, *ruled], evidence, answer)}
    cheaper = {c.boundary.key for c in SPACE if evidence.cost_ms(c.boundary) < evidence.cost_ms(answer)}
    assert cheaper <= set(rows) and "moe_act" not in rows and all(row.reason for row in rows.values())
    assert rows["[]"].basis == "measured" and "oom_capacity" in rows["[]"].reason and "lower bound" in rows["[]"].reason
    assert rows["mlp"].basis == "no effect" and rows["gdn"].basis == "invalid" and rows["off"].basis == "same effect"


def test_predictions_are_never_called_failures() -> None:
    evidence = Evidence(SPACE, settings(70.0))
    for row in certificate(SPACE, evidence, None):
        assert row.basis == "predicted" and row.fit_probability is not None
        assert "fail" not in row.reason and f"{row.peak_bytes / 1e9:.3f} GB" in row.reason  # type: ignore[operator]
    opened = certificate(SPACE, evidence, None, why_open=lambda b: "table t has no row for it")
    assert all(row.basis == "open" and row.reason.startswith("table t has no row for it; predicted") for row in opened)


def test_at_risk_are_those_whose_point_fits_and_whose_95_percent_peak_does_not() -> None:
    limit = 76.0
    rows = at_risk(SPACE, Evidence(SPACE, settings(limit)), None)
    expected = {
        c.boundary.key for c in SPACE if c.prediction and c.prediction.peak_bytes <= limit * GB < c.prediction.peak_p95_bytes
    }
    assert {row.name for row in rows} == expected != set()
    assert [row.replay_ms for row in rows] == sorted(row.replay_ms for row in rows)


def test_predicted_sampler_takes_the_cheapest_whose_95_percent_peak_fits() -> None:
    for limit in (60.0, 70.0, 77.0, 84.0):
        candidates = space()
        sampler = PredictedSampler(candidates, Evidence(candidates, settings(limit)))
        fitting = [c for c in candidates if c.prediction and c.prediction.peak_p95_bytes <= limit * GB]
        (proposal,) = sampler.ask()
        chosen = next(c for c in candidates if c.boundary == proposal.boundary)
        assert chosen.prediction is not None
        assert chosen.prediction.replay_ms == min(c.prediction.replay_ms for c in fitting if c.prediction)
    lost = PredictedSampler(SPACE, Evidence(SPACE, settings(30.0)))
    stop = lost.done()
    assert lost.ask() == [] and stop is not None and stop.outcome == "none"


def test_fit_probability_at_the_interval_ends() -> None:
    prediction = SPACE[0].prediction
    assert prediction is not None
    assert fit_probability(prediction, prediction.peak_bytes) == pytest.approx(0.5)
    assert fit_probability(prediction, prediction.peak_p95_bytes) == pytest.approx(0.95)
    assert fit_probability(prediction, prediction.peak_p05_bytes) == pytest.approx(0.05)
    exact = replace(prediction, peak_p05_bytes=prediction.peak_bytes, peak_p95_bytes=prediction.peak_bytes)
    assert (fit_probability(exact, exact.peak_bytes), fit_probability(exact, exact.peak_bytes - 1)) == (1.0, 0.0)


points = st.lists(
    st.builds(Point, boundary=st.sampled_from(boundaries(4)), peak_bytes=st.integers(1, 10**6), cost_ms=st.floats(0, 1000),
              kind=st.just("predicted")),
    max_size=30,
)  # fmt: skip


@given(points, st.integers(0, 10**6))
def test_a_breakpoint_is_the_cheapest_within_every_limit(found: list[Point], limit: int) -> None:
    steps = breakpoints(found)
    within = [p for p in found if p.peak_bytes <= limit]
    last = [step for step in steps if step.from_bytes <= limit]
    assert bool(within) == bool(last)
    assert [step.from_bytes for step in steps] == sorted({step.from_bytes for step in steps})
    if within:
        best = min(within, key=lambda p: (p.cost_ms, *preference(p.boundary, p.peak_bytes)))
        assert last[-1].name == best.boundary.key


@given(st.lists(st.sampled_from([c for c in SPACE if c.prediction]), unique_by=lambda c: c.boundary, min_size=1), st.data())
def test_breakpoints_and_the_predicted_answer_agree_at_every_limit(some: list[Candidate], data: st.DataObject) -> None:
    """Settings of one price are told apart by one rule: ``mlp`` beside a dearer label on another stage costs nothing more."""
    level = [
        replace(c, prediction=replace(c.prediction, replay_ms=round(c.prediction.replay_ms, -2))) for c in some if c.prediction
    ]
    steps = breakpoints(predicted_points(level))
    limit = data.draw(st.sampled_from([step.from_bytes + off for step in steps for off in (-1, 0, 1)]))
    asked = PredictedSampler(level, Evidence(level, settings(limit / GB))).ask()
    expected = [step.name for step in steps if step.from_bytes <= limit][-1:]
    assert [proposal.boundary.key for proposal in asked] == expected


TIMED = [(("core_attn",), 60, 100.5), (("layernorm", "mlp"), 61, 100.0), (("moe_act",), 62, 98.0), (("moe",), 63, 98.5)]


@given(st.permutations(TIMED))
def test_recorded_breakpoints_know_ties(order: list[tuple[tuple[str, ...], int, float]]) -> None:
    found = [
        Point(boundary=Boundary.selective(labels), peak_bytes=peak, cost_ms=cost, kind="measured") for labels, peak, cost in order
    ]
    assert [step.name for step in breakpoints(found, tie_ratio=0.01)] == ["core_attn", "moe_act"]


def test_breakpoints_of_one_kind_only() -> None:
    evidence = evidence_of([whole(Boundary.selective(["moe_act"]), 62, 603.0)])
    assert {p.kind for p in predicted_points(SPACE)} == {"predicted"}
    assert [(p.kind, p.step_ms) for p in recorded_points(evidence)] == [("measured", 603.0)]


def test_optimizer_failures_at_both_ends_stop_the_search() -> None:
    widest = max((c.boundary for c in SPACE), key=lambda b: len(b.modules))
    for sampler_of in (
        lambda e: ExhaustiveSampler(SPACE, e, lambda b, n: None), lambda e: Planner(SPACE, e, lambda b, n: None, draws=100)
    ):  # fmt: skip
        evidence = Evidence(SPACE, settings(45.0))
        for number, boundary in enumerate([Boundary.selective(), widest]):
            assert not not_an_activation_problem(SPACE, evidence)
            failure = Failure(failure_class="oom_optimizer", stage="optimizer_init", rank=0, step=1)
            evidence.add(replace(whole(boundary, 44, 1, number), completed=False, step_ms=(), failure=failure))
        sampler = sampler_of(evidence)
        stop = sampler.done()
        assert stop is not None and stop.outcome == "none" and stop.text.startswith("not an activation problem")
        assert sampler.ask() == []
