"""Trials of earlier runs as evidence, and runs whose answer is stale because revisions changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import load_json
from autotune.trial.record import TrialRecord
from autotune.trial.survey.launch import read_report
from autotune.trial.survey.report import SurveyReport
from autotune.workload.workload import Source, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What an earlier run gives a new one.

    Attributes:
        full: Its launches where workload, revisions and backend are the same; numbered from -1 down, they are no trials of
            the new run.
        prior: Its launches where they differ: what they showed is believed only roughly.
        survey: Its survey launch and what that found, where the launches count fully; taken in place of a new one.
        answer: What it recommended.
        note: Which of the two, and why, in one line.
    """

    full: tuple[TrialRecord, ...] = ()
    prior: tuple[TrialRecord, ...] = ()
    survey: tuple[TrialRecord, SurveyReport] | None = None
    answer: Boundary | None = None
    note: str


def read_earlier(folder: Path, workload: Workload, workload_digest: str, backend: str) -> Earlier:
    """Read the trials of a run directory.

    Raises:
        RequestError: It holds no run.
    """
    if not (folder / "request.json").exists():
        raise RequestError("--evidence", str(folder), "holds no run", "name a run directory, or FILE[:TABLE] of recorded trials")
    identity = load_json(folder / "request.json", dict)
    found = [load_json(path, TrialRecord) for path in sorted((folder / "trials").glob("[0-9]*/record.json"))]
    # A survey launch ran many settings: its record is none of one boundary's own.
    records = [r for r in found if r.kind != "switched"]
    records = [replace(r, number=-1 - place) for place, r in enumerate(records)]
    surveyed = [(r, read_report(folder / "trials" / f"{r.number:03d}")) for r in found if r.kind == "switched"]
    differs = _differences(folder, identity, workload, workload_digest, backend)
    count = f"{len(records)} trial{'s' if len(records) != 1 else ''} of {folder}"
    if not differs:
        trusted = [(r, report) for r, report in surveyed if report is not None and report.trustworthy]
        survey = next(((replace(r, number=-1 - len(records)), report) for r, report in reversed(trusted)), None)
        note = f"{count} count fully: same workload and revisions"
        return Earlier(full=tuple(records), survey=survey, answer=_answer(folder), note=note)
    note = f"{count} count as prior only: {', '.join(differs)}"
    return Earlier(prior=tuple(records), answer=_answer(folder), note=note)


def usable_survey(
    earlier: Sequence[Earlier], boundaries: Iterable[Boundary], limit_bytes: int
) -> tuple[TrialRecord, SurveyReport] | None:
    """The survey of an earlier run that stands for a new one: the last that predicts every boundary.

    What ran out of memory in it under a lower limit than this run's says nothing here.
    """
    wanted = set(boundaries)
    for run_before in reversed(earlier):
        if run_before.survey is None:
            continue
        record, report = run_before.survey
        if wanted <= {setting.boundary for setting in report.predicted}:
            lower = report.limit_bytes is not None and report.limit_bytes < limit_bytes
            return record, replace(report, trying=None) if lower else report
    return None


def _differences(folder: Path, identity: Mapping[str, Any], workload: Workload, workload_digest: str, backend: str) -> list[str]:
    """What is not the same between an earlier run and this one, in words."""
    found = []
    if identity.get("workload") != workload_digest:
        path = folder / "workload.json"
        theirs = load_json(path, Workload) if path.exists() else None
        changed = revision_changes(theirs, workload) if theirs is not None else []
        same_otherwise = theirs is not None and _without_stack(theirs, workload) == _without_stack(workload, workload)
        found += changed if changed and same_otherwise else [*changed, "another workload"]
    if identity.get("backend") != backend:
        found.append(f"trials on {identity.get('backend')}, now {backend}")
    return found


def revision_changes(theirs: Workload, ours: Workload) -> list[str]:
    """Revisions that differ, as ``megatron_core 0.16.1, now 0.19.2``."""
    before, now = asdict(theirs.stack), asdict(ours.stack)
    return [f"{name} {before[name]}, now {now[name]}" for name in now if before.get(name) != now[name]]


def stale(folder: Path, workload: Workload) -> list[str]:
    """Revision changes that make the run in a folder stale; empty where there is no run, or more than revisions changed."""
    path = folder / "workload.json"
    if not path.exists() or not (folder / "request.json").exists():
        return []
    theirs = load_json(path, Workload)
    return revision_changes(theirs, workload) if _without_stack(theirs, workload) == _without_stack(workload, workload) else []


def set_aside(folder: Path) -> Path:
    """Rename a stale run; its new name."""
    attempt = 1
    while (kept := folder.with_name(f"{folder.name}.stale.{attempt}")).exists():
        attempt += 1
    folder.rename(kept)
    return kept


def _without_stack(workload: Workload, other: Workload) -> Workload:
    nowhere = Source(kind="file", reference="")
    return replace(workload, stack=other.stack, source=nowhere, recipe_recompute={})


def _answer(folder: Path) -> Boundary | None:
    path = folder / "recommendation.json"
    boundary = load_json(path, dict).get("boundary") if path.exists() else None
    return Boundary.from_fields(boundary) if boundary else None
