"""Candidates whose status the installed Megatron Core has confirmed, for backends that are about to launch it."""

from __future__ import annotations

from autotune.boundary.validator import validate
from autotune.boundary.verdict import ValidatorReport
from autotune.search.candidate import Candidate
from autotune.search.space import ClassifiedLike, build_candidates
from autotune.search.space_file import SpaceFile
from autotune.workload.workload import Workload


def validated_candidates(
    workload: Workload, architecture: ClassifiedLike, *, space: SpaceFile | None = None
) -> tuple[tuple[Candidate, ...], ValidatorReport]:
    """Build the candidates by the rules, ask the installed Megatron Core about all of them, and build them again.

    The first call for a stack and workload starts a process that imports Megatron (5 to 15 s), later ones read the
    remembered answers. Where the installed Megatron Core is not the workload's, its answers are in the report and
    change no status.
    """
    listed = build_candidates(workload, architecture, space=space)
    report = validate(workload, [candidate.boundary for candidate in listed])
    return build_candidates(workload, architecture, space=space, report=report), report
