"""From a prediction's interval to the probability of fitting."""

from __future__ import annotations

from statistics import NormalDist

from autotune.ledger.prediction import Prediction

_Z95 = NormalDist().inv_cdf(0.95)


def fit_probability(prediction: Prediction, limit_bytes: int) -> float:
    """Probability that the peak is within the limit.

    A normal distribution around the point whose two halves have the widths of the prediction's 5 % and 95 % peaks.
    """
    point = prediction.peak_bytes
    above = limit_bytes >= point
    edge = prediction.peak_p95_bytes if above else prediction.peak_p05_bytes
    width = abs(edge - point) / _Z95
    if width == 0:
        return 1.0 if above else 0.0
    return NormalDist().cdf((limit_bytes - point) / width)
