"""Prices of settings from region times, and the choice of what to switch to."""

from __future__ import annotations

import pytest
from toy_machine import Checkpointed, Op, play

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.choose import all_settings, choose, join, over
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.plan import SurveyPlan
from autotune.trial.survey.prices import Price, PriceList
from autotune.trial.survey.report import PredictedSetting
from autotune.trial.survey.summary import summarise
from autotune.trial.survey.timeline import Timeline


def layer(*labels: str) -> Checkpointed:
    inner = tuple(Checkpointed(label, "C", (Op(10, saves_input=True),)) for label in labels)
    return Checkpointed("layer", "C", (Op(10, saves_input=True), *inner, Op(10)))


@pytest.fixture
def timeline() -> Timeline:
    return normalise(play((layer("a"), layer("a", "b")), Boundary.selective()).trace())


def times(timeline: Timeline, ms: dict[str, float], factor: float = 1.0) -> list[float | None]:
    return [ms[region.label] * factor for region in timeline.regions]


def test_a_price_is_the_sum_of_the_regions_a_setting_replays(timeline: Timeline) -> None:
    prices = PriceList(timeline, [times(timeline, {"layer": 10.0, "a": 3.0, "b": 2.0})], units_total=4)
    assert prices.price(Boundary.selective()).replay_ms == 0
    assert prices.price(Boundary.selective(["a"])).replay_ms == 4 * 2 * 3.0
    assert prices.price(Boundary.selective(["a", "b"])).replay_ms == 4 * (2 * 3.0 + 2.0)
    assert prices.price(Boundary.full("uniform", 2)).replay_ms == 4 * 2 * 10.0
    assert prices.price(Boundary.full("block", 1)).replay_ms == 4 * 10.0


def test_each_checkpoint_call_adds_its_own_work(timeline: Timeline) -> None:
    prices = PriceList(timeline, [times(timeline, {"layer": 10.0, "a": 3.0, "b": 2.0})], units_total=4, own_ms={"C": 0.5})
    assert prices.price(Boundary.selective()).replay_ms == 0
    assert prices.price(Boundary.selective(["a"])).replay_ms == 4 * 2 * 3.5
    assert prices.price(Boundary.full("uniform", 1)).replay_ms == 4 * 2 * 10.5
    assert prices.price(Boundary.full("uniform", 2)).replay_ms == 4 * (2 * 10.0 + 0.5), "both layers are one call"
    assert prices.price(Boundary.full("block", 1)).replay_ms == 4 * 10.5


def test_one_slow_sample_does_not_move_a_price(timeline: Timeline) -> None:
    ms = {"layer": 10.0, "a": 3.0, "b": 2.0}
    samples = [times(timeline, ms), times(timeline, ms), times(timeline, ms, 50.0)]
    price = PriceList(timeline, samples, units_total=1).price(Boundary.selective(["b"]))
    assert price.replay_ms == 2.0
    spread = [times(timeline, ms, factor) for factor in (0.8, 1.0, 1.2, 0.9, 1.1)]
    assert 0 < PriceList(timeline, spread, units_total=1).price(Boundary.selective(["b"])).standard_error_ms < 0.5


def predicted(boundary: Boundary, peak: int, replay_ms: float) -> PredictedSetting:
    phases = {0: {"backward": peak}}
    price = Price(replay_ms=replay_ms, standard_error_ms=0.0)
    return PredictedSetting(boundary=boundary, peak_bytes=peak, rank=0, phase="backward", ranks=phases, price=price)


CONTROL, A, B, AB = (Boundary.selective(labels) for labels in ((), ("a",), ("b",), ("a", "b")))
FULL = Boundary.full("uniform", 1)
SPACE = [
    predicted(CONTROL, 1000, 0),
    predicted(A, 900, 5),
    predicted(B, 1000, 0),
    predicted(AB, 800, 9),
    predicted(FULL, 700, 50),
]


def test_the_cheapest_that_fit_are_tried_from_low_to_high_peak() -> None:
    plan = SurveyPlan(labels=("a", "b"), limit_bytes=950, switch_to=2)
    assert [setting.boundary for setting in choose(SPACE, plan, base=FULL)] == [AB, A]


def test_a_prediction_just_above_the_limit_is_tried_last() -> None:
    plan = SurveyPlan(labels=("a", "b"), limit_bytes=899, margin=0.005, switch_to=2)
    assert [setting.boundary for setting in choose(SPACE, plan, base=FULL)] == [AB, A]
    assert [s.boundary for s in choose(SPACE, SurveyPlan(labels=("a",), limit_bytes=890), base=FULL)] == [AB]


def test_what_is_over_the_limit_is_tried_only_where_it_is_cheaper_than_all_that_fits() -> None:
    """It may end the launch, and what costs more than a setting that fits is of no use."""
    plan = SurveyPlan(labels=("a", "b"), limit_bytes=899, margin=0.2, switch_to=4)
    dearer = predicted(Boundary.selective(["c"]), 950, 20)
    chosen = choose([*SPACE, dearer], plan, base=FULL)
    assert [(s.boundary, over(s, plan)) for s in chosen] == [(AB, False), (A, True), (CONTROL, True)]


def test_a_launch_needs_what_its_highest_step_needs_and_the_switched_steps_repeat_the_last() -> None:
    steps = [{"backward": 10, "loss": 30}, {"backward": 50, "loss": 20}, {"backward": 40, "loss": 25}]
    other = [{"backward": 5}, {"backward": 5}, {"backward": 45}]
    free = Price(replay_ms=0.0, standard_error_ms=0.0)
    (joined,) = join([A], [[(steps, free)], [(other, free)]])
    assert joined.ranks == {0: {"backward": 50, "loss": 30}, 1: {"backward": 45}}
    assert (joined.peak_bytes, joined.rank, joined.step_peaks_bytes) == (50, 0, (30, 50, 45))
    assert joined.frozen_ranks == {0: steps[2], 1: other[2]} and joined.frozen_peak_bytes == 45


def test_settings_of_equal_effect_are_tried_once() -> None:
    chosen = [setting.boundary for setting in choose(SPACE, SurveyPlan(labels=("a", "b"), switch_to=-1), base=FULL)]
    assert chosen == [AB, A, CONTROL]


def test_the_highest_rank_and_the_longest_replay_count() -> None:
    rows = [
        [([{"backward": 10, "loss": 30}], Price(replay_ms=1.0, standard_error_ms=0.1))],
        [([{"backward": 40, "loss": 20}], Price(replay_ms=0.5, standard_error_ms=0.3))],
    ]
    (joined,) = join([A], rows)
    assert (joined.peak_bytes, joined.rank, joined.phase, joined.price.replay_ms) == (40, 1, "backward", 1.0)


def test_every_setting_is_listed_once() -> None:
    settings = all_settings(("a", "b", "c"), 4)
    assert len(settings) == len(set(settings)) == 8 + 3 + 4
    assert {s.num_layers for s in settings if s.method == "uniform"} == {1, 2, 4}


def test_a_summary_tells_what_a_label_drops_on_each_kind_of_layer(timeline: Timeline) -> None:
    prices = PriceList(timeline, [times(timeline, {"layer": 10.0, "a": 3.0, "b": 2.0})], units_total=1)
    rows = {(row.label, row.layer_kind): row for row in summarise(timeline, prices)}
    assert set(rows) == {("layer", "a"), ("layer", "a+b"), ("a", "a"), ("a", "a+b"), ("b", "a+b")}
    inner, whole = rows["b", "a+b"], rows["layer", "a+b"]
    assert (inner.layers, inner.kept_bytes, inner.dropped_bytes, inner.forward_ms) == (1, 10, 0, 2.0)
    assert inner.inert and whole.dropped_bytes == 20 and not whole.inert
    assert whole.replay_transient_bytes == 40
