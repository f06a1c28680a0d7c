"""When more launches are not worth it, and how far peaks and steps scatter."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workload.workload import Workload

JITTER = 0.0005
"""Relative scatter of a boundary's peak between launches where it repeats: on a CPU, and where no expert lies on another rank."""
LEDGER_SCATTER = 0.002
"""A measured peak is not held closer than this against the ledger's physics, which has no term for every byte."""
HINT_SCATTER = 0.03
"""Relative error of a peak that was measured under other revisions or a slightly other workload."""
EXPERT_JITTER = 0.006
"""With experts on several ranks of GPUs (seen between repeats of one setting: 0.55 and 0.66 %)."""
SURVEY_WIDTHS = {1.0: 0.8, 2.0: 0.15, 4.0: 0.05}
"""Times that a survey's errors may be too narrow, with their probabilities."""
NEAR = 0.98
"""Share of the limit above which a passing peak is near it (trial/gates.py)."""
CERTIFIED = 0.05
"""The certificate rules a setting out by probability only where it fits and is cheaper by 1 % with no more than this."""
SMALLEST_SCATTER = 0.001
"""Interleaved steps are never trusted to be better than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """When more launches are not worth it.

    Attributes:
        worth: A saving below this share of a step is none: for what the certificate leaves open.
        expected: What a launch costs, as a share of a step: it has to be expected to save so much.
        wrong: What an answer costs whose mean peak is over the limit, in steps: a boundary is passed over for one that is dearer
            by so many percent of a step as its risk is times this.
        sure: What fits with this probability counts as an answer that could be had instead.
        most_runs: A boundary near the limit, or one of a pair whose prices are not told apart, is run at most so often.
        hopeless: Without a pass: candidates that fit with a smaller probability are not launched, but full and the broadest
            selective set are ...
        beyond: ... and those with a smaller one than this are not either once these two failed.
        most_launches: After so many launches nothing more is launched but, where nothing passed, full and the broadest set.
    """

    worth: float = 0.01
    expected: float = 0.004
    wrong: float = 0.25
    sure: float = 0.9
    most_runs: int = 3
    hopeless: float = 0.05
    beyond: float = 0.5
    most_launches: int = 1000


SURVEYED_RULE = StopRule(expected=0.003, most_launches=4)
"""After a survey little is left to win: prices and peaks of all settings are known to about a percent."""


def peak_scatter(workload: Workload, *, to_the_bit: bool) -> float:
    """Relative scatter of the peak of one boundary between launches.

    Args:
        workload: What is trained.
        to_the_bit: Whether the backend's launches repeat each other.
    """
    return EXPERT_JITTER if workload.spreads_experts and not to_the_bit else JITTER
