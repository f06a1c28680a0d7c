"""The settings next to an answer: what ``--prove`` measures before it stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import launchable
from autotune.search.proposal import Proposal


def neighbours(candidates: Sequence[Candidate], answer: Boundary) -> list[Boundary]:
    """Launchable settings one step from the answer, in the candidates' order.

    Of a label set: one label more or fewer. Of full recompute: the nearest sizes of the same method; of a set with no wider
    neighbour, and of the lightest full, the step between the two granularities.
    """
    known = [c.boundary for c in launchable(candidates)]
    if answer.granularity == "full":
        return [b for b in known if b in _full_neighbours(known, answer)]
    own = set(answer.modules)
    return [b for b in known if b.granularity != "full" and len(own ^ set(b.modules)) == 1]


def _full_neighbours(known: Sequence[Boundary], answer: Boundary) -> set[Boundary]:
    same = sorted((b for b in known if b.granularity == "full" and b.method == answer.method), key=lambda b: b.num_layers or 0)
    place = same.index(answer) if answer in same else 0
    found = set(same[max(place - 1, 0) : place + 2]) - {answer}
    if place == 0:
        selective = [b for b in known if b.granularity != "full"]
        widest = max(selective, key=lambda b: len(b.modules), default=None)
        found |= {widest} if widest is not None else set()
    return found


def unproven(
    fresh: Sequence[Candidate], candidates: Sequence[Candidate], answer: Boundary, fit: Callable[[Boundary], float | None]
) -> list[Proposal]:
    """The neighbours of an answer that were not launched yet, to be measured."""
    untried = {c.boundary for c in fresh}
    why = f"a neighbour of {answer.key}, to be measured"
    return [Proposal(boundary=b, why=why, fit_probability=fit(b)) for b in neighbours(candidates, answer) if b in untried]
