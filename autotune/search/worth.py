"""What one more launch of a boundary is worth.

An answer costs its price and, where its peak is near the limit, the risk that the mean of its launches is over it times what
that would cost (``StopRule.wrong``). A launch is worth what it lowers this by on average, over all that it may show: it fails;
it passes far below the limit, and the risk is gone; it passes at the limit, and the risk stays
(docs/decisions/091-near-the-limit.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from autotune.boundary.boundary import Boundary
from autotune.search.posterior import Posterior

NODES = 8
"""Equally likely peaks of a pass, over which what the launch leaves is averaged."""
_STANDARD = NormalDist()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What one more launch of a boundary may show."""

    passes: float
    """Probability that it stays within the limit."""
    risks: tuple[float, ...]
    """At equally likely peaks of a pass: the probability, after it, that the mean of its launches is over the limit."""

    @property
    def risk(self) -> float:
        """The mean risk that a pass leaves."""
        return sum(self.risks) / len(self.risks)


def outlook(posterior: Posterior, boundary: Boundary, limit_bytes: int, *, settles: bool) -> Outlook:
    """What one more launch may show.

    Args:
        posterior: What is known.
        boundary: Of one of its boundaries.
        limit_bytes: Memory of a rank.
        settles: A peak repeats, so that a pass leaves no risk. Otherwise a launch scatters around its boundary's mean, and both
            are taken as normal: mean and deviation are the worlds', and a launch moves them as it does between two normals.
    """
    if settles:
        return Outlook(posterior.safe(boundary, limit_bytes), (0.0,))
    (mean, deviation), run = posterior.peak(boundary), posterior.run_bytes
    before, noise = max(deviation**2, 1.0), max(run**2, 1.0)
    launch = NormalDist(mean, math.sqrt(before + noise))
    passes = launch.cdf(limit_bytes)
    if passes < 1e-6:
        return Outlook(passes, (1.0,))
    after = 1 / (1 / before + 1 / noise)
    risks = []
    for node in range(NODES):
        peak = launch.inv_cdf(passes * (node + 0.5) / NODES)
        updated = (mean / before + peak / noise) * after
        risks.append(_STANDARD.cdf((updated - limit_bytes) / math.sqrt(after)))
    return Outlook(passes, tuple(risks))


def saving(
    posterior: Posterior, boundary: Boundary, answer: Boundary, shows: Outlook, *, wrong_ms: float, answer_risk: float
) -> tuple[float, float]:
    """Expected saving over an answer (ms a step) of launching another boundary, and how probable it is that there is any.

    After a survey a launch tells whether a boundary is within the limit and next to nothing of its price, since launches scatter
    by more than prices are uncertain: then the mean saving counts. Before, what it would be in each world.

    Args:
        shows: What the launch may show.
        wrong_ms: What an answer over the limit costs.
        answer_risk: Probability that the answer is over the limit.
    """
    saves = posterior.savings_ms(boundary, answer) + wrong_ms * answer_risk
    gains = np.maximum(saves[None, :] - wrong_ms * np.array(shows.risks)[:, None], 0.0)
    expected, any_ = (float(of.mean(axis=0) @ posterior.weights) for of in (gains, gains > 0))
    return shows.passes * expected, shows.passes * any_


def saving_of_a_repeat(shows: Outlook, *, wrong_ms: float, risk: float, otherwise_ms: float) -> float:
    """Expected saving (ms a step) of running an answer again: a pass lowers its risk, a failure makes it give way.

    Args:
        shows: What the repeat may show.
        wrong_ms: What an answer over the limit costs.
        risk: Probability that it is over the limit.
        otherwise_ms: How much dearer what would be the answer in its place is, its own risk included.
    """
    kept = [min(wrong_ms * left, otherwise_ms) for left in shows.risks]
    after = shows.passes * sum(kept) / len(kept) + (1 - shows.passes) * otherwise_ms
    return min(wrong_ms * risk, otherwise_ms) - after
