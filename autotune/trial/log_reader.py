"""Failures in the text of training logs: tracebacks and the words of launchers and NCCL, by rank and in order of time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.trial.failure import Symptom, is_consequence, phase_of

_RANK_PREFIX = re.compile(r"^\s*(?:\[(?:rank|default|Rank )\s*(\d+)\]\s*:?|(\d{1,5}):(?=\s|$))\s?")
_RAY_PREFIX = re.compile(r"^\((?:[\w.]+ )?pid=\d+(?:, ip=[\d.]+)?\)\s?")
_RANK_IN_NAME = re.compile(r"(?:rank|default)[_.\-]?(\d+)", re.IGNORECASE)
_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+")
_TIME = re.compile(r"(?:(\d{4}-\d\d-\d\d)[ T_])?(\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_FRAME = re.compile(r'^\s*File "([^"]+)", line \d+, in (\S+)')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failure|Timeout)\w*)(?:: (.*))?$")
_WORDS = re.compile(
    r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out|EADDRINUSE|"
    r"[Aa]ddress already in use|exitcode\s*:\s*-\d+|Signal \d+ \(SIG\w+\)|[Oo]ut of memory: Killed process|oom-kill|"
    r"CUDA out of memory|Xid \d+|uncorrectable ECC|fallen off the bus|[Nn]ode .{0,80}(?:died|is dead)|"
    r"DUE TO TIME LIMIT|[Nn]o space left on device"
)
_NCCLS_LAST_WORD = re.compile(r"^nccl\w+Error:|^Cuda failure \d* ?'|^Failed to CUDA (?:calloc|malloc|host alloc)")
"""What NCCL could not do stands lines below the exception that only says "unhandled cuda error": one failure, not several."""
_OWN_RANK = re.compile(r"\[Rank (\d+)\]|\brank\s*:\s*(\d+)|\brank (\d+)\b", re.IGNORECASE)
_WARNS = re.compile(r"warn(ing)?s?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """One failure found in a log.

    Attributes:
        rank: As the prefix, the line or the file's name tells; None where none does.
        time: As printed, comparable as text within one day or with the date; None where the log has no times.
        line: Number of its last line in the file, from 1.
    """

    symptom: Symptom
    rank: int | None
    time: str | None
    source: str
    line: int

    @property
    def consequence(self) -> bool:
        """Whether it only tells that another rank failed."""
        return is_consequence(self.symptom)


@dataclass
class _Stream:
    """What one rank is in the middle of printing."""

    frames: list[str] = field(default_factory=list)
    open: bool = False
    time: str | None = None


def read_failures(text: str, *, source: str = "") -> list[LogFailure]:
    """All failures of one file, in the order of their lines."""
    found: list[LogFailure] = []
    streams: defaultdict[int | None, _Stream] = defaultdict(_Stream)
    named = _RANK_IN_NAME.search(Path(source).name)
    of_file = int(named[1]) if named else None
    last_step = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        prefix_rank, line = _without_prefix(raw)
        rank = of_file if prefix_rank is None else prefix_rank
        stream = streams[rank]
        iteration = _ITERATION.search(line)
        if iteration:
            last_step = max(last_step, int(iteration[1]))
        time = _TIME.search(line)
        if time:
            stream.time = f"{time[1] or ''} {time[2].replace(',', '.')}".strip()
        if line.lstrip().startswith("Traceback (most recent call last)"):
            stream.frames, stream.open = [], True
            continue
        frame = _FRAME.match(line)
        if frame:
            stream.frames.append(f"{Path(frame[1]).name}:{frame[2]}")
            stream.open = True
            continue
        if found and found[-1].rank == rank and _NCCLS_LAST_WORD.match(line.strip()):
            said = found[-1].symptom
            found[-1] = replace(found[-1], symptom=replace(said, message=f"{said.message}: {line.strip()}"))
            continue
        raised = _RAISED.match(line.strip())
        if raised and (stream.open or not _WARNS.search(raised[1])):
            kind = raised[1].rpartition(".")[2]
            place = (rank, stream.time, source, number)
            found.append(_failure(kind, raised[2] or "", tuple(stream.frames), last_step, place))
            stream.frames, stream.open = [], False
            continue
        if not stream.open and _WORDS.search(line) and not _WARNS.match(line):
            place = (_rank_in(line, rank), stream.time, source, number)
            found.append(_failure("", line.strip(), (), last_step, place))
    return found


def first_failure(failures: Sequence[LogFailure]) -> LogFailure | None:
    """The failure that came first in time and is no consequence of another; where all are, the first of them."""
    primary = [failure for failure in failures if not failure.consequence] or list(failures)
    if not primary:
        return None
    dated = all(failure.time is not None for failure in primary) and len({len((f.time or "").split()) for f in primary}) == 1
    if dated:
        return min(primary, key=lambda failure: failure.time or "")
    # A traceback says more than a launcher's summary, and comes before it.
    return min(enumerate(primary), key=lambda pair: (not pair[1].symptom.types, pair[0]))[1]


def read_files(paths: Iterable[Path]) -> Iterator[LogFailure]:
    """Failures of several files; what is not text in them is skipped over."""
    for path in paths:
        yield from read_failures(path.read_text(errors="replace"), source=str(path))


def _without_prefix(line: str) -> tuple[int | None, str]:
    rank = None
    line = _RAY_PREFIX.sub("", line)
    for _ in range(2):  # srun's number, then torch's.
        match = _RANK_PREFIX.match(line)
        if match is None:
            break
        rank = int(match[1] or match[2])
        line = line[match.end() :]
    return rank, line


def _rank_in(line: str, rank: int | None) -> int | None:
    own = _OWN_RANK.search(line)
    return int(next(group for group in own.groups() if group)) if own else rank


def _failure(
    kind: str, message: str, frames: tuple[str, ...], last_step: int, place: tuple[int | None, str | None, str, int]
) -> LogFailure:
    phase = phase_of(frames) or ("launch" if not last_step else "unknown")
    trains = phase in ("forward", "loss", "backward", "grad_sync", "optimizer", "after_capture", "unknown")
    step = last_step + 1 if last_step or trains else 0
    rank, time, source, line = place
    known = bool(last_step) or not trains
    symptom = Symptom(types=(kind,) if kind else (), message=message, where=frames, phase=phase, step=step, step_known=known)
    return LogFailure(symptom=symptom, rank=rank, time=time, source=source, line=line)
