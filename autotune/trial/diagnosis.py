"""From a log or a run directory to what failed first, where, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import RequestError
from autotune.records import load_json
from autotune.trial.advice import COMPARISONS, levers
from autotune.trial.failure import Symptom, class_of, stage_of
from autotune.trial.lines import read_lines
from autotune.trial.log_reader import LogFailure, first_failure, read_files
from autotune.trial.record import Failure, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One failed run or trial.

    Attributes:
        source: The log files, or the trial.
        failure_class: One of ``failure.CLASSES``; ``none`` where nothing failed.
        step: None before training, and where the log has no line of any iteration: the stage then takes it for the first.
        available_bytes: Free on the device plus reserved but unallocated, where the message says so.
        borderline: Fragmented with so little slack that the allocator setting may not be enough.
        root_cause: The first line of the failure that came first.
        consequences: How many later failures only follow from it.
        levers: What to do, the first thing first.
        comparisons: What a second trial shows of this one.
    """

    source: str
    failure_class: str
    stage: str | None = None
    rank: int | None = None
    step: int | None = None
    requested_bytes: int | None = None
    available_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    unallocated_bytes: int | None = None
    total_bytes: int | None = None
    borderline: bool = False
    root_cause: str = ""
    time: str | None = None
    consequences: int = 0
    levers: tuple[str, ...] = ()
    comparisons: tuple[str, ...] = ()


def diagnose(paths: Sequence[Path]) -> list[Diagnosis]:
    """Diagnose logs of one run (taken together), or each trial of run directories.

    Raises:
        RequestError: A path does not exist, cannot be read, or is a directory of neither.
    """
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise RequestError("LOG", str(missing), "does not exist", "name log files of one run, or a run directory of autotune")
    found: list[Diagnosis] = []
    for folder in (path for path in paths if path.is_dir()):
        found += _of_directory(folder)
    logs = [path for path in paths if path.is_file()]
    if logs:
        found.append(_of_logs(logs))
    return found


def _of_logs(paths: Sequence[Path]) -> Diagnosis:
    try:
        failures = [*read_files(path for path in paths if path.suffix != ".jsonl"), *_of_rank_files(paths)]
    except OSError as error:
        raise RequestError("LOG", str(error.filename), f"cannot be read ({error.strerror})", "name a readable file") from None
    source = ", ".join(str(path) for path in paths)
    first = first_failure(failures)
    if first is None:
        return Diagnosis(source=source, failure_class="none", root_cause="no failure found in the text")
    consequences = sum(failure.consequence for failure in failures if failure is not first)
    return of_symptom(first.symptom, source=first.source, rank=first.rank, time=first.time, consequences=consequences)


def of_symptom(
    symptom: Symptom, *, source: str, rank: int | None = None, time: str | None = None, consequences: int = 0
) -> Diagnosis:
    """The diagnosis of one failure."""
    memory = symptom.memory
    stage = stage_of(symptom.phase, symptom.step)
    text = f"{symptom.types[0]}: {symptom.message}" if symptom.types else symptom.message
    return Diagnosis(
        source=source,
        failure_class=class_of(symptom),
        stage=stage,
        rank=rank,
        step=symptom.step or None if symptom.step_known else None,
        requested_bytes=memory.requested_bytes if memory else None,
        available_bytes=memory.available_bytes if memory else None,
        free_bytes=memory.free_bytes if memory else None,
        allocated_bytes=memory.allocated_bytes if memory else None,
        unallocated_bytes=memory.unallocated_bytes if memory else None,
        total_bytes=memory.total_bytes if memory else None,
        borderline=memory.borderline if memory else False,
        root_cause=text.strip()[:500],
        time=time,
        consequences=consequences,
        levers=levers(symptom, stage),
    )


def _of_rank_files(paths: Iterable[Path]) -> Iterable[LogFailure]:
    """Failures that ranks of our own wrote down (``ranks/RRR.jsonl``)."""
    for path in paths:
        if path.suffix != ".jsonl":
            continue
        for number, line in enumerate(read_lines(path), start=1):
            if line.get("event") == "failure":
                symptom = Symptom(
                    types=tuple(line["types"]),
                    message=line["message"],
                    where=tuple(line["where"]),
                    phase=line["phase"],
                    step=line["step"],
                )
                rank = int(path.stem) if path.stem.isdigit() else None
                yield LogFailure(symptom=symptom, rank=rank, time=f"{line['t']:017.6f}", source=str(path), line=number)


def _of_directory(folder: Path) -> list[Diagnosis]:
    records = sorted(folder.glob("trials/*/record.json")) or sorted(folder.glob("record.json"))
    if not records:
        rule = "holds no trials/NNN/record.json"
        raise RequestError("LOG", str(folder), rule, "name log files of one run, or a run directory of autotune")
    found = []
    for path in records:
        record = load_json(path, TrialRecord)
        compared = record.details.get("comparison") or {}
        comparisons = tuple(
            f"{text} than trial {compared.get('compared_with')}" if name == "farther_but_still_oom" else f"{text}: {what}"
            for name, (text, what) in COMPARISONS.items()
            if compared.get(name)
        )
        name = f"{path.parent}: {record.boundary.key}"
        if record.failure is not None:
            found.append(_of_failure(record.failure, name, comparisons))
        elif comparisons:
            found.append(Diagnosis(source=name, failure_class="none", comparisons=comparisons))
    return found or [Diagnosis(source=str(folder), failure_class="none", root_cause="no trial failed")]


def _of_failure(failure: Failure, source: str, comparisons: tuple[str, ...]) -> Diagnosis:
    """The class is the record's: it was decided with the exception at hand."""
    kind, _, message = failure.message.partition(": ")
    phase = _PHASES.get(failure.stage, failure.stage)
    symptom = Symptom(types=(kind,), message=message or kind, phase=phase, step=failure.step or 0)
    memory = symptom.memory
    return Diagnosis(
        source=source,
        failure_class=failure.failure_class,
        stage=failure.stage,
        rank=failure.rank,
        step=failure.step,
        requested_bytes=failure.requested_bytes,
        available_bytes=memory.available_bytes if memory else None,
        free_bytes=memory.free_bytes if memory else None,
        allocated_bytes=memory.allocated_bytes if memory else None,
        unallocated_bytes=memory.unallocated_bytes if memory else None,
        total_bytes=memory.total_bytes if memory else None,
        borderline=memory.borderline if memory else False,
        root_cause=failure.message[:500],
        levers=levers(symptom, failure.stage, failure.failure_class),
        comparisons=comparisons,
    )


_PHASES = {
    "model_build": "build",
    "first_forward": "forward",
    "post_optimizer_forward": "forward",
    "optimizer_init": "optimizer",
    "optimizer_step": "optimizer",
    "graph_capture": "after_capture",
}
