"""What each setting costs, from interleaved steps of one process: an estimate that shares nothing with a survey's prices.

Steps of all settings take turns in rounds. A step's time is its round's level, plus a cost for each label it replays (or
for each layer of a kind, under full recompute), plus what is the setting's own, plus noise:

    time[round, setting] = level[round] + features[setting] . cost + own[setting] + noise

``own`` is a random effect whose variance is what the repeats leave unexplained beyond their noise. With few rounds its
estimate leans on the sum of labels, with many on the setting's own mean (best linear unbiased prediction), and the
standard error says which it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.boundary.boundary import Boundary
from autotune.workload.architecture import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrice:
    """Time of a step over that of the control, in the time that the samples were taken in."""

    replay_ms: float
    standard_error_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """Prices of all settings.

    Attributes:
        noise_ms: Standard deviation of one step around its setting, rounds' levels taken out.
        own_ms: Standard deviation of what a setting costs beside the sum of its labels.
    """

    control_ms: float
    prices: Mapping[Boundary, StepPrice]
    rounds: int
    noise_ms: float
    own_ms: float


def features(boundary: Boundary, layers: Sequence[LayerKind]) -> Counter[str]:
    """What a setting replays: its labels, or under full recompute how many layers of each kind."""
    if boundary.granularity != "full":
        return Counter(boundary.modules)
    replayed = layers[: boundary.num_layers] if boundary.method == "block" else layers
    return Counter(f"{kind.mixer} {kind.mlp}" for kind in replayed)


def step_prices(
    samples_ms: Mapping[Boundary, Sequence[float]], layers: Sequence[LayerKind], wanted: Sequence[Boundary]
) -> StepPrices:
    """Estimate prices.

    Args:
        samples_ms: One step a round of each setting, the control among them; equally many of all, two at least.
        layers: Kinds of the layers of a pipeline stage, in their order.
        wanted: Settings to price; one without samples has the sum of its labels.
    """
    settings = list(samples_ms)
    times = np.array([samples_ms[setting] for setting in settings], dtype=float)
    count, rounds = times.shape
    centred = times - times.mean(0)
    means = centred.mean(1)
    noise_var = float(((centred - means[:, None]) ** 2).sum() / ((count - 1) * (rounds - 1)))
    names = sorted({name for setting in settings for name in features(setting, layers)})
    design = np.array([[1.0, *(features(setting, layers)[name] for name in names)] for setting in settings])
    gram = np.linalg.pinv(design.T @ design)
    cost = gram @ design.T @ means
    unexplained = means - design @ cost
    free = count - int(np.linalg.matrix_rank(design))
    own_var = max(0.0, float((unexplained**2).sum()) / free - noise_var / rounds) if free else 0.0
    lean = own_var / (own_var + noise_var / rounds) if own_var else 0.0
    place = {setting: number for number, setting in enumerate(settings)}
    fitted = gram @ design.T  # Costs as weights of the settings' means.

    def weights(setting: Boundary) -> tuple[np.ndarray, np.ndarray]:
        """How a setting's estimate weighs the means, and which setting's own effect it is to tell."""
        mine = np.zeros(count)
        row = np.array([1.0, *(features(setting, layers)[name] for name in names)])
        if setting not in place:
            return row @ fitted, mine
        mine[place[setting]] = 1.0
        return (1 - lean) * (row @ fitted) + lean * mine, mine

    control = Boundary.selective()
    prices = {}
    for setting in wanted:
        (of_setting, own), (of_control, control_own) = weights(setting), weights(control)
        weight = of_setting - of_control
        variance = own_var * float(((weight - own + control_own) ** 2).sum()) + noise_var / rounds * float((weight**2).sum())
        variance += own_var if setting not in place else 0.0
        prices[setting] = StepPrice(replay_ms=float(weight @ means), standard_error_ms=variance**0.5)
    return StepPrices(
        control_ms=float(times[place[control]].mean()),
        prices=prices,
        rounds=rounds,
        noise_ms=noise_var**0.5,
        own_ms=own_var**0.5,
    )
