"""Prices of settings from steps that took turns: right on made-up machines whose costs are known."""

from __future__ import annotations

import itertools
from statistics import mean

import numpy as np
import pytest

from autotune.boundary.boundary import Boundary
from autotune.workload.architecture import LayerKind
from benchmarks.truth_prices import features, step_prices

LAYERS = (LayerKind("mla", "dense"), LayerKind("mla", "moe"), LayerKind("mla", "moe"))
LABELS = ("a", "b", "c", "d")
SETS = [Boundary.selective(chosen) for size in range(5) for chosen in itertools.combinations(LABELS, size)]
FULL = [Boundary.full("uniform", 1), Boundary.full("block", 1), Boundary.full("block", 2)]
SETTINGS = [*SETS, *FULL]
COST = {"a": 10.0, "b": 25.0, "c": 60.0, "d": 130.0, "mla dense": 80.0, "mla moe": 150.0}


def drawn(seed: int, *, rounds: int, noise: float, own: float) -> tuple[dict[Boundary, list[float]], dict[Boundary, float]]:
    """Samples and true prices of one machine, whose rounds drift by far more than a price."""
    draw = np.random.default_rng(seed)
    own_ms = {s: draw.normal(0, own) for s in SETTINGS}
    true = {s: sum(COST[n] * k for n, k in features(s, LAYERS).items()) + own_ms[s] for s in SETTINGS}
    level = 800 + draw.normal(0, 200, rounds)
    samples = {s: [float(level[r] + true[s] + draw.normal(0, noise)) for r in range(rounds)] for s in SETTINGS}
    return samples, {s: true[s] - true[SETS[0]] for s in SETTINGS}


def test_features_are_labels_or_layers_by_kind() -> None:
    assert features(Boundary.selective(["moe", "mlp"]), LAYERS) == {"moe": 1, "mlp": 1}
    assert features(Boundary.full("block", 2), LAYERS) == {"mla dense": 1, "mla moe": 1}
    assert features(Boundary.full("uniform", 3), LAYERS) == {"mla dense": 1, "mla moe": 2}


def test_without_noise_every_price_is_exact() -> None:
    samples, true = drawn(0, rounds=2, noise=0.0, own=0.0)
    found = step_prices(samples, LAYERS, SETTINGS)
    for setting in SETTINGS:
        assert found.prices[setting].replay_ms == pytest.approx(true[setting], abs=1e-6)
    assert found.prices[SETS[0]].replay_ms == 0.0 and found.prices[SETS[0]].standard_error_ms == 0.0


@pytest.mark.parametrize(("rounds", "noise", "own"), [(2, 40.0, 0.0), (3, 40.0, 10.0), (30, 20.0, 30.0)])
def test_errors_are_as_large_as_they_are_said_to_be(rounds: int, noise: float, own: float) -> None:
    scores = []
    for seed in range(40):
        samples, true = drawn(seed, rounds=rounds, noise=noise, own=own)
        found = step_prices(samples, LAYERS, SETTINGS)
        scores += [(found.prices[s].replay_ms - true[s]) / found.prices[s].standard_error_ms for s in SETTINGS if s != SETS[0]]
    assert 0.85 < mean(score**2 for score in scores) ** 0.5 < 1.2


def test_sums_of_labels_tell_more_than_single_means_where_rounds_are_few() -> None:
    single, joint = [], []
    for seed in range(20):
        samples, true = drawn(seed, rounds=2, noise=40.0, own=0.0)
        found = step_prices(samples, LAYERS, SETTINGS)
        base = mean(samples[SETS[0]])
        single += [(mean(samples[s]) - base - true[s]) ** 2 for s in SETS]
        joint += [(found.prices[s].replay_ms - true[s]) ** 2 for s in SETS]
    assert mean(joint) < 0.4 * mean(single)


def test_a_setting_that_never_ran_costs_the_sum_of_its_labels() -> None:
    samples, true = drawn(1, rounds=20, noise=5.0, own=0.0)
    missing = Boundary.selective(["b", "d"])
    price = step_prices({s: x for s, x in samples.items() if s != missing}, LAYERS, SETTINGS).prices[missing]
    assert abs(price.replay_ms - true[missing]) < 4 * price.standard_error_ms < 20
