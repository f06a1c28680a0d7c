"""Recorded trials in files: study tables as people write them down, and truth tables.

A study file is ``{"tables": [{"name", "workload", "rows"}]}``; a row has ``modules`` (or the four fields), ``outcome``, a peak
with its unit (``peak_gb``, ``peak_gib`` or ``peak_bytes``) of rank 0 unless ``ranks`` says more, and ``step_ms``.
A truth table is one object ``{"name", "workload", "mem_targets_bytes", "rows"}`` whose rows hold ``runs``.
What a file does not report stays unreported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import decode_json
from autotune.trial.record import Failure, RankRecord

_BYTES_PER = {"bytes": 1, "gb": 10**9, "gib": 2**30}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """One run of one boundary, with what was reported of it."""

    completed: bool
    ranks: Mapping[int, RankRecord]
    step_ms: tuple[float, ...] = ()
    steps_run: int = 0
    steps_planned: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTable:
    """All recorded runs of one workload.

    Attributes:
        complete: A truth table, which has a row for every distinct boundary.
        workload: The file's own words on what was trained.
        survey: What a region survey would have measured, where the table has one.
    """

    name: str
    runs: Mapping[Boundary, tuple[RecordedRun, ...]]
    complete: bool
    workload: Mapping[str, Any] = field(default_factory=dict)
    revisions: Mapping[str, str | None] = field(default_factory=dict)
    mem_targets_bytes: tuple[int, ...] = ()
    survey: Mapping[str, Any] | None = None

    @property
    def world_size(self) -> int | None:
        """Ranks of the recorded runs, where the file says it."""
        parallel = self.workload.get("parallel")
        size = parallel.get("world_size") if isinstance(parallel, Mapping) else self.workload.get("gpus")
        return size if isinstance(size, int) else None

    @property
    def context_only(self) -> bool:
        """No matched control and no step times: such rows rank nothing."""
        times = any(run.step_ms for runs in self.runs.values() for run in runs)
        return not times and not any(boundary.is_control for boundary in self.runs)


def load_table(evidence: str) -> RecordedTable:
    """Read ``FILE[:TABLE]``.

    Raises:
        RequestError: No such file or table, several tables and none named, or a row that cannot be read.
    """
    path, name = Path(evidence), None
    if not path.exists() and ":" in evidence:
        head, _, tail = evidence.rpartition(":")
        path, name = Path(head), tail
    try:
        content = decode_json(path.read_bytes())
    except OSError as error:
        raise RequestError("--evidence", str(path), f"cannot be read ({error.strerror})", "give a readable JSON file") from None
    except msgspec.DecodeError as error:
        raise RequestError("--evidence", str(path), f"is no valid JSON ({error})", "mend or replace the file") from None
    tables = content.get("tables", [content]) if isinstance(content, dict) else None
    if not isinstance(tables, list) or not all(isinstance(t, dict) and isinstance(t.get("rows"), list) for t in tables):
        raise _bad(str(path), "holds no table with rows")
    by_name = {str(table.get("name", path.stem)): table for table in tables}
    if name is None and len(by_name) == 1:
        name = next(iter(by_name))
    if name not in by_name:
        rule = "several tables and none named" if name is None else f"no table {name!r}"
        raise RequestError("--evidence", evidence, rule, f"write {path}:NAME with NAME one of {', '.join(sorted(by_name))}")
    return read_table(by_name[name], name=name, evidence=evidence)


def read_table(table: Mapping[str, Any], *, name: str, evidence: str) -> RecordedTable:
    """Read one table from plain data.

    Raises:
        RequestError: A row that cannot be read.
    """
    workload = table.get("workload") or {}
    if not isinstance(workload, dict):
        raise _bad(evidence, "workload is no mapping")
    runs: dict[Boundary, list[RecordedRun]] = {}
    for index, row in enumerate(table["rows"]):
        where = f"row {index}"
        if not isinstance(row, dict):
            raise _bad(evidence, f"{where} is no mapping")
        try:
            boundary = _boundary(row)
            found = [_run(run, workload) for run in row["runs"]] if "runs" in row else [_run(row, workload)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _bad(evidence, f"{where}: {error if str(error) else type(error).__name__}") from None
        runs.setdefault(boundary, []).extend(found)
    targets = table.get("mem_targets_bytes") or []
    if not isinstance(targets, list) or not all(isinstance(target, int) for target in targets):
        raise _bad(evidence, "mem_targets_bytes is no list of whole numbers")
    return RecordedTable(
        name=name,
        runs={boundary: tuple(found) for boundary, found in runs.items()},
        complete=any("runs" in row for row in table["rows"]),
        workload=workload,
        revisions=table.get("revisions") or {},
        mem_targets_bytes=tuple(targets),
        survey=table.get("survey"),
    )


def _bad(evidence: str, rule: str) -> RequestError:
    return RequestError("--evidence", evidence, rule, "see the documentation of recorded tables for their form")


def _boundary(row: Mapping[str, Any]) -> Boundary:
    source = row["boundary"] if isinstance(row.get("boundary"), Mapping) else row
    fields = {key.removeprefix("recompute_"): value for key, value in source.items()}
    if "granularity" not in fields:
        fields["granularity"] = "selective"
        if "modules" not in fields:
            raise ValueError("names no boundary: give modules, or the four fields")
    modules = fields.get("modules")
    if fields["granularity"] not in ("selective", "full", None):
        raise ValueError(f"granularity {fields['granularity']!r} is neither selective, full nor null")
    if modules is not None and not (isinstance(modules, Sequence) and all(isinstance(m, str) for m in modules)):
        raise ValueError(f"modules {modules!r} is no list of labels")
    if fields.get("method") not in ("uniform", "block", None):
        raise ValueError(f"method {fields['method']!r} is neither uniform, block nor null")
    layers = fields.get("num_layers")
    if layers is not None and (isinstance(layers, bool) or not isinstance(layers, int)):
        raise ValueError(f"num_layers {layers!r} is no whole number")
    names = ("granularity", "modules", "method", "num_layers")
    return Boundary.from_fields({f"recompute_{name}": fields.get(name) for name in names})


def _size_bytes(source: Mapping[str, Any], stem: str) -> int | None:
    for unit, factor in _BYTES_PER.items():
        value = source.get(f"{stem}_{unit}")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{stem}_{unit} {value!r} is no positive number")
        return round(value * factor)
    return None


def _rank(rank: int, source: Mapping[str, Any]) -> RankRecord | None:
    allocated = _size_bytes(source, "allocated_peak") or _size_bytes(source, "peak")
    phases = {name: int(value) for name, value in (source.get("phases") or {}).items()}
    if allocated is None and not phases:
        return None
    iterations = tuple(source.get("iterations") or ())
    if not all(isinstance(iteration, Mapping) for iteration in iterations):
        raise ValueError(f"iterations of rank {rank} are no list of mappings")
    return RankRecord(
        rank=rank,
        allocated_peak_bytes=allocated if allocated is not None else max(phases.values()),
        reserved_peak_bytes=_size_bytes(source, "reserved_peak"),
        phases=phases,
        iterations=iterations,
    )


def _run(run: Mapping[str, Any], workload: Mapping[str, Any]) -> RecordedRun:
    outcome = run["outcome"]
    if not isinstance(outcome, str):
        raise ValueError(f"outcome {outcome!r} is no text")
    if "ranks" in run:
        reported = {int(rank): _rank(int(rank), source) for rank, source in run["ranks"].items()}
    else:
        reported = {int(run.get("rank", 0)): _rank(int(run.get("rank", 0)), run)}
    step = run.get("step_ms")
    samples = () if step is None else (step,) if isinstance(step, int | float) else tuple(step)
    if not all(isinstance(s, int | float) and s > 0 for s in samples):
        raise ValueError(f"step_ms {step!r} is no positive time")
    planned = run.get("steps_planned", workload.get("steps"))
    completed = outcome == "completed"
    steps_run = run.get("steps_run", planned if completed else 0) or 0
    if completed and planned is not None and steps_run < planned and run.get("steps_planned") is not None:
        completed = False  # only the head of a longer run was recorded
    return RecordedRun(
        completed=completed,
        ranks={rank: record for rank, record in reported.items() if record is not None},
        step_ms=tuple(float(s) for s in samples),
        steps_run=int(steps_run),
        steps_planned=planned,
        failure=None if outcome in ("completed", "running") else _failure(run, outcome),
    )


def _failure(run: Mapping[str, Any], outcome: str) -> Failure:
    failed = run.get("failed") or {}
    rank = failed.get("rank")
    if rank is None and (match := re.search(r"rank (\d+)", outcome)):
        rank = int(match.group(1))
    step = failed.get("step", run.get("failed_iteration"))
    stage = failed.get("phase") or (f"iteration {step}" if step is not None else "stage not reported")
    word = outcome.split(maxsplit=1)[0].lower()
    return Failure(
        failure_class="oom_capacity" if word == "oom" else word,
        stage=str(stage),
        rank=rank,
        step=step,
        requested_bytes=failed.get("requested_bytes"),
        message=str(run.get("failed_at") or failed.get("message") or ""),
    )
