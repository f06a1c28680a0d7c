"""When a finished boundary is launched again: only for a recorded reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.boundary.boundary import Boundary
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal
from autotune.trial.record import RepeatReason

Lacks = Callable[[Boundary, int], str | None]
"""Why a backend cannot run a boundary for the n-th time (``TrialBackend.lacks``)."""


def due_repeats(evidence: Evidence, lacks: Lacks) -> Iterator[Proposal]:
    """Repeats that are due, most urgent first.

    One retry a sitting after an infrastructure failure (a resumed run may find the nodes mended); one run with the allocator
    setting after a fragmentation failure, before anything wider; one repeat of the best where its peak is close to the limit.
    """
    for boundary, verdict in evidence.verdicts.items():
        reasons = {record.repeat_reason for record in evidence.of(boundary)}
        if verdict.infrastructure and not _retried(evidence, boundary):
            yield from _repeat(evidence, lacks, boundary, "infrastructure", f"one retry after {verdict.reason}")
        fragmented = verdict.failure is not None and verdict.failure.failure_class == "oom_fragmentation"
        if fragmented and "allocator" not in reasons:
            yield from _repeat(
                evidence, lacks, boundary, "allocator", "out of memory by fragmentation: the allocator setting first"
            )
    best = evidence.best()
    # A survey launch that ran it within the limit is the second look that a near limit asks for.
    if best is not None and evidence.verdicts[best].near_limit and not evidence.switched_within(best):
        yield from _repeat(evidence, lacks, best, "near_limit", "its peak is close to the limit")


def _repeat(evidence: Evidence, lacks: Lacks, boundary: Boundary, reason: RepeatReason, why: str) -> Iterator[Proposal]:
    if lacks(boundary, evidence.runs(boundary)) is None:
        yield Proposal(boundary=boundary, why=why, repeat_reason=reason)


def _retried(evidence: Evidence, boundary: Boundary) -> bool:
    return any(record.repeat_reason == "infrastructure" for record in evidence.of_this_sitting(boundary))


def stuck(evidence: Evidence) -> Boundary | None:
    """A boundary whose retry of this sitting failed by infrastructure too: the run stops and can be resumed."""
    for boundary, verdict in evidence.verdicts.items():
        if verdict.infrastructure and _retried(evidence, boundary):
            return boundary
    return None
