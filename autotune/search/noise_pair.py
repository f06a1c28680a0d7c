"""Two boundaries that passed and whose prices are not told apart: run again before one is preferred."""

from __future__ import annotations

from autotune.search.evidence import Evidence
from autotune.search.posterior import Posterior
from autotune.search.proposal import Proposal
from autotune.search.repeats import Lacks
from autotune.search.stop_rule import StopRule


def noise_pair(evidence: Evidence, posterior: Posterior, rule: StopRule, lacks: Lacks) -> list[Proposal]:
    """One more run of the best, or of the boundary by which the most may be lost, where that is worth a launch.

    Step times of two launches differ by some percent for no reason of the boundary's. What preferring one of a pair
    loses on average is what knowing better would save; half of it, since a launch does not tell all. The one with fewer runs
    goes first.
    """
    best = evidence.best()
    if best is None or not posterior.knows(best):
        return []
    step_ms = evidence.verdicts[best].step_ms
    if step_ms is None:
        return []
    doubtful = []
    for boundary, verdict in evidence.verdicts.items():
        if boundary == best or not verdict.eligible or verdict.step_ms is None or not posterior.knows(boundary):
            continue
        if evidence.doubted(boundary) is not None:
            continue
        lost = posterior.lost(best, boundary)
        if lost / 2 >= rule.expected * step_ms:
            doubtful.append((-lost, boundary.key, boundary))
    for _, _, rival in sorted(doubtful):
        for boundary in sorted((rival, best), key=lambda b: (evidence.runs(b), b == best)):
            runs = evidence.runs(boundary)
            if runs < rule.most_runs and lacks(boundary, runs) is None:
                other = best if boundary == rival else rival
                why = f"its step is to be told from that of {other.key}"
                return [Proposal(boundary=boundary, why=why, repeat_reason="noise_pair")]
    return []
