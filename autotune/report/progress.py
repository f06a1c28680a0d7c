"""Where a run stands, read from its directory: by the process that runs it, and by any other shell."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import load_json
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, limit, milliseconds, percent, size
from autotune.trial.lines import LineFollower
from autotune.trial.record import TrialRecord

State = Literal["starting", "running", "finished", "ended early"]
COLUMNS = ("trial", "setting", "state", "step", "phase", "peak", "of the limit", "step time", "left")


@dataclass(slots=True, kw_only=True)
class TrialProgress:
    """One trial so far. ``peak_bytes`` is the highest allocated peak that any rank has written."""

    number: int
    setting: str
    state: State = "starting"
    step: int = 0
    steps: int | None = None
    phase: str = ""
    peak_bytes: int | None = None
    step_ms: float | None = None
    left_s: float | None = None
    why: str = ""
    followers: list[LineFollower] = field(default_factory=list)
    last_step_t: float | None = None


class RunProgress:
    """Follows one run directory. ``update`` reads what was written since the last call.

    Args:
        folder: The run directory.
        since_t: When this process began the run (seconds since the epoch); None where another one runs it.

    Raises:
        RequestError: The folder holds no run.
    """

    def __init__(self, folder: Path, *, since_t: float | None = None) -> None:
        if not (folder / "request.json").is_file():
            raise RequestError(
                "RUN", str(folder), "this folder holds no run (no request.json)", "name a directory that `autotune run` writes"
            )
        self.folder = folder
        self.since_t = since_t
        self.request: Mapping[str, Any] = load_json(folder / "request.json", dict)
        self.trials: dict[int, TrialProgress] = {}

    @property
    def limit_bytes(self) -> int:
        """The limit of the run."""
        return int(self.request["mem_target_bytes"])

    @property
    def answered(self) -> bool:
        """Whether the run has come to its end, with or without an answer."""
        return (self.folder / "recommendation.json").is_file()

    def update(self) -> None:
        """Read on."""
        for folder in sorted(self.folder.glob("trials/[0-9]*")):
            if not folder.name.isdecimal() or not (folder / "boundary.json").is_file():
                continue
            number = int(folder.name)
            trial = self.trials.get(number)
            if trial is None:
                boundary = load_json(folder / "boundary.json", Boundary)
                trial = self.trials[number] = TrialProgress(number=number, setting=boundary_name(boundary))
            if trial.state in ("finished", "ended early"):
                continue
            _read_spec(trial, folder)
            if (folder / "record.json").is_file():
                _finish(trial, load_json(folder / "record.json", TrialRecord))
            else:
                _read_on(trial, folder)


def _finish(trial: TrialProgress, record: TrialRecord) -> None:
    whole = record.completed and record.failure is None
    trial.state = "finished" if whole else "ended early"
    trial.peak_bytes = max((rank.allocated_peak_bytes for rank in record.ranks.values()), default=None)
    trial.step = max(trial.step, record.steps_run)
    trial.step_ms = sorted(record.step_ms)[len(record.step_ms) // 2] if record.step_ms else None
    trial.phase, trial.left_s = "", None
    if record.failure is not None:
        rank = "" if record.failure.rank is None else f" on rank {record.failure.rank}"
        trial.why = f"{record.failure.failure_class.replace('_', ' ')}{rank}"
    trial.followers.clear()


def _read_spec(trial: TrialProgress, folder: Path) -> None:
    if trial.steps is None and (folder / "spec.json").is_file():
        spec = load_json(folder / "spec.json", dict)
        trial.steps = spec.get("steps")
        if spec.get("survey") is not None:
            trial.setting = f"survey, under {trial.setting}"


def _read_on(trial: TrialProgress, folder: Path) -> None:
    if not trial.followers:
        trial.followers = [LineFollower(path) for path in sorted(folder.glob("ranks/*.jsonl"))]
    for follower in trial.followers:
        for line in follower.read():
            trial.state = "running"
            peaks = [int(value) for value in (line.get("phases") or {}).values()]
            trial.peak_bytes = max([*peaks, trial.peak_bytes or 0]) or None
            trial.phase = str(line.get("phase") or trial.phase).replace("_", " ")
            if line.get("event") == "iteration" and line.get("step", 0) > trial.step:
                trial.step = int(line["step"])
                trial.step_ms = line.get("step_ms")
                trial.last_step_t = line.get("t")
    if trial.steps and trial.step and trial.step_ms is not None and trial.last_step_t is not None:
        due = trial.last_step_t + (trial.steps - trial.step) * trial.step_ms / 1e3
        trial.left_s = max(0.0, due - time.time())


def headline(progress: RunProgress) -> str:
    """Recipe, limit and how far the run is, in one line."""
    ended = [trial for trial in progress.trials.values() if trial.state in ("finished", "ended early")]
    now = len(progress.trials) - len(ended)
    text = f"{progress.request['recipe']} under {limit(progress.limit_bytes)}, {progress.request['backend']}: "
    text += f"trials: {len(ended)} ended, {now} running"
    if progress.since_t is not None:
        text += f"; {duration(time.time() - progress.since_t)}"
    if not progress.answered and not now:
        text += "; starting the ranks" if not ended else "; deciding what is next"
    return text


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 05 s``, ``2 h 04 min``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def progress_table(progress: RunProgress) -> Table:
    """Every trial in a row; figures of running trials are those of their ranks' lines."""
    return Table(
        title="Trials",
        note="Peak: the highest that any rank has reported so far, allocated.",
        columns=COLUMNS,
        rows=tuple(
            (
                str(trial.number),
                trial.setting,
                trial.why or trial.state,
                (f"{trial.step} of {trial.steps}" if trial.steps else str(trial.step)) if trial.step else UNKNOWN,
                trial.phase or UNKNOWN,
                size(trial.peak_bytes),
                UNKNOWN if trial.peak_bytes is None else percent(trial.peak_bytes / progress.limit_bytes),
                milliseconds(trial.step_ms),
                UNKNOWN if trial.left_s is None else duration(trial.left_s),
            )
            for trial in sorted(progress.trials.values(), key=lambda trial: trial.number)
        ),
    )


def state_lines(progress: RunProgress) -> dict[int, str]:
    """A line for each trial that changes when the trial does: for a log."""
    lines = {}
    for row in progress_table(progress).rows:
        named = dict(zip(COLUMNS, row, strict=True))
        cells = [f"{name} {named[name]}" for name in ("step", "peak", "of the limit") if named[name] != UNKNOWN]
        lines[int(row[0])] = f"trial {row[0]}: {row[1]}: {row[2]}" + "".join(f", {cell}" for cell in cells)
    return lines


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock (engine/run_directory.py)."""
    try:
        with (folder / ".lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False
