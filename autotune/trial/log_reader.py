"""Failures in the text of training logs: tracebacks and the words of launchers and NCCL, by rank and in order of time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.trial.failure import Symptom, is_consequence, is_memory, phase_of
from autotune.trial.log_lines import Said, lines_of, rank_of_file, said

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+")
_HEAD = "Traceback (most recent call last)"
_FRAME = re.compile(r'^(\s*)File "([^"]+)", line \d+, in (\S+)')
_RAISED = re.compile(r"([A-Za-z_][\w.]*(?:Error|Interrupt|Exit|Warning|Failure|Timeout)\w*|[\w.]*Exception\w*)(?::(?: (.*))?)?$")
_ANY_RAISED = re.compile(r"((?:[a-z_]\w*\.)*[A-Z]\w*[a-z]\w*)(?:: (.*))?$")
"""Where a traceback is over: its last line begins with the name of a class, whatever that is called."""
_RAYS_TASK = re.compile(r"ray::[\w.<>]+\(\) ?\(pid=.*\)")
"""A remote error begins anew with the actor's own frames (ray/exceptions.py:RayTaskError.__str__)."""
_NAMED_RANK = re.compile(r"\brank=(\d+)")
_CHAINED = re.compile(r"\s*(?:During handling of the above exception|The above exception was the direct cause)")
_WORDS = re.compile(
    r"Watchdog caught collective operation timeout|Some NCCL operations have failed or timed out|EADDRINUSE|"
    r"[Aa]ddress already in use|exitcode\s*:\s*-\d+|Signal \d+ \(SIG\w+\)|[Oo]ut of memory: Killed process|oom[-_]kill|"
    r"CUDA out of memory|Xid (?:\(PCI:[^)]*\): )?\d+|uncorrectable ECC|fallen off the bus|[Nn]ode .{0,80}(?:died|is dead)|"
    r"DUE TO (?:TIME LIMIT|PREEMPTION|NODE FAIL)|[Nn]o space left on device|srun: error: .*task \d+: (?:Out Of Memory|Killed)"
)
_WORDS_AHEAD = (
    "Watchdog", "NCCL", "EADDR", "ddress already", "exitcode", "Signal ", "memory", "oom", "Xid", "ECC", "fallen", "ode ",
    "DUE TO", "left on device", "srun",
)  # fmt: skip
"""Each alternative of ``_WORDS`` holds one of these: looking for them is ten times faster than the expression is."""
_NCCLS_LAST_WORD = re.compile(r"nccl\w+Error:|Cuda failure \d* ?'|Failed to CUDA (?:calloc|malloc|host alloc)")
"""What NCCL could not do stands lines below the exception that only says "unhandled cuda error": one failure, not several."""
_OWN_RANK = re.compile(r"\[(?:PG [^\]]*)?Rank (\d+)\]|\btask (\d+):|\brank (\d+)\b", re.IGNORECASE)
_SUMMED_RANK = re.compile(r"\s*rank\s*:\s*(\d+) \(local_rank: \d+\)")
"""Of torchrun's summary (elastic/multiprocessing/errors): the lines below it are of that rank."""
_PID = re.compile(r"\(pid: (\d+)\)|\bPID (\d+)\b")
_WARNS = re.compile(r"warn(ing)?s?\b", re.IGNORECASE)
_SURVIVED = 2
"""Iterations printed after a failure that show it was none: one line may be late, of a rank that does not know of it yet."""
_CUT_OFF = "the log ends within a traceback"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFailure:
    """One failure found in a log.

    Attributes:
        rank: As the prefix, the line or the file's name tells; None where none does.
        time: As printed, comparable as text within one day or with the date; None where the log has no times.
        line: Number of its last line in the file, from 1.
        pid: The process, where the line tells it.
        speaker: What else tells its process from others.
        survived: Whether the training of the same file went on after it.
    """

    symptom: Symptom
    rank: int | None
    time: str | None
    source: str
    line: int
    pid: int | None = None
    speaker: str = ""
    survived: bool = False

    @property
    def consequence(self) -> bool:
        """Whether it only tells that another rank failed."""
        return is_consequence(self.symptom)


@dataclass
class _Stream:
    """What one process is in the middle of printing."""

    frames: list[str] = field(default_factory=list)
    open: bool = False
    headed: bool = False
    indent: int = 0
    time: str | None = None
    rank: int | None = None
    """As a line above tells, where no prefix does."""
    last: int | None = None
    """Place of its last failure in the list of all."""
    chained: bool = False

    def begin(self, indent: int) -> None:
        self.frames, self.open, self.headed, self.indent = [], True, True, indent


class _Reader:
    def __init__(self, source: str) -> None:
        self._source, self._of_file = source, rank_of_file(source)
        self._streams: defaultdict[tuple[int | None, str], _Stream] = defaultdict(_Stream)
        self._step = 0
        self.found: list[LogFailure] = []
        self._printed = 0
        """Iterations that have a line."""
        self._before: list[int] = []
        """How many had one when each failure was found."""
        self._ranks: dict[str, int] = {}
        """By speaker and by process id, where some line tells both."""

    def take(self, number: int, raw: str) -> None:
        line = said(raw)
        text = line.text
        stream = self._streams[line.rank, line.speaker]
        if line.time:
            stream.time = line.time
        if line.rank is not None and line.speaker:
            self._ranks[line.speaker] = line.rank
        if "iteration" in text and (iteration := _ITERATION.search(text)):
            self._printed += int(iteration[1]) > self._step
            self._step = max(self._step, int(iteration[1]))
        bare = text.lstrip()
        indent = len(text) - len(bare)
        if _HEAD in text:
            stream.begin(indent)
        elif bare.startswith("File ") and (frame := _FRAME.match(text)):
            if not stream.open:
                stream.frames, stream.open, stream.headed = [], True, False
            stream.indent = max(0, len(frame[1]) - 2)
            stream.frames.append(f"{Path(frame[2]).name}:{frame[3]}")
        elif not (stream.open and stream.frames and indent > stream.indent):  # else a line of source
            self._take_words(number, line, bare.rstrip(), stream)

    def _take_words(self, number: int, line: Said, bare: str, stream: _Stream) -> None:
        rank = self._of_file if line.rank is None else line.rank
        if summed := _SUMMED_RANK.match(line.text):
            stream.rank = int(summed[1])
        elif bare.startswith("====="):
            stream.rank = None
        elif _CHAINED.match(line.text):
            stream.chained = True
        elif _RAYS_TASK.search(bare):
            stream.begin(0)
            named = _NAMED_RANK.search(bare)
            stream.rank = int(named[1]) if named else None
        elif stream.last is not None and stream.last == len(self.found) - 1 and _NCCLS_LAST_WORD.match(bare):
            before = self.found[-1]
            symptom = replace(before.symptom, message=f"{before.symptom.message}: {bare}")
            self.found[-1] = replace(before, symptom=symptom)
        elif raised := self._raised(bare, stream):
            kind = raised[1].rpartition(".")[2]
            self._add(number, line, stream, (kind, raised[2] or ""), stream.rank if rank is None else rank)
            stream.frames, stream.open = [], False
        elif any(word in bare for word in _WORDS_AHEAD) and _WORDS.search(bare) and not _WARNS.match(bare):
            if rank is None:
                own = _OWN_RANK.search(bare)
                rank = int(next(group for group in own.groups() if group)) if own else stream.rank
            self._add(number, line, replace(stream, frames=[]), ("", bare), rank)

    def _raised(self, bare: str, stream: _Stream) -> re.Match[str] | None:
        raised = _RAISED.match(bare)
        if raised is None and stream.open and stream.frames:
            return _ANY_RAISED.match(bare)
        return raised if raised and (stream.open or not _WARNS.search(raised[1])) else None

    def _add(self, number: int, line: Said, stream: _Stream, words: tuple[str, str], rank: int | None) -> None:
        kind, message = words
        symptom = _symptom(kind, message, tuple(stream.frames), self._step)
        pid = next((int(group) for match in _PID.finditer(message) for group in match.groups() if group), None)
        if pid is not None and rank is not None:
            self._ranks[f"pid {pid}"] = rank
        failure = LogFailure(
            symptom=symptom, rank=rank, time=stream.time, source=self._source, line=number, pid=pid, speaker=line.speaker
        )
        own = self._streams[line.rank, line.speaker]
        chained, own.chained = own.chained, False
        if chained and own.last is not None:
            # One failure in several tracebacks: the first of them, unless memory ran out in a later one.
            if is_memory(symptom) and not is_memory(self.found[own.last].symptom):
                self.found[own.last] = failure
            return
        self.found.append(failure)
        self._before.append(self._printed)
        own.last = len(self.found) - 1

    def end(self, number: int) -> list[LogFailure]:
        if not self.found:
            for (rank, speaker), stream in self._streams.items():
                if stream.open and stream.headed and stream.frames:
                    known = rank if rank is not None else stream.rank if stream.rank is not None else self._of_file
                    self._add(number, Said(rank, speaker, None, ""), stream, ("", _CUT_OFF), known)
        seen = zip(self.found, self._before, strict=True)
        return [replace(self._named(failure), survived=before + _SURVIVED <= self._printed) for failure, before in seen]

    def _named(self, failure: LogFailure) -> LogFailure:
        """With the rank that another line tells of its process."""
        if failure.rank is not None:
            return failure
        rank = self._ranks.get(f"pid {failure.pid}", self._ranks.get(failure.speaker))
        return failure if rank is None else replace(failure, rank=rank)


def read_failures(lines: str | Iterable[str], *, source: str = "") -> list[LogFailure]:
    """All failures of one file, in the order of their lines."""
    reader = _Reader(source)
    number = 0
    for number, line in enumerate(lines.splitlines() if isinstance(lines, str) else lines, start=1):
        reader.take(number, line)
    return reader.end(number)


def first_failure(failures: Sequence[LogFailure]) -> LogFailure | None:
    """The failure that came first in time, is no consequence of another and was not survived; where none is, the first of all."""
    fatal = [failure for failure in failures if not failure.survived] or failures
    primary = [failure for failure in fatal if not failure.consequence] or list(fatal)
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
        yield from read_failures(lines_of(path), source=str(path))


def _symptom(kind: str, message: str, frames: tuple[str, ...], last_step: int) -> Symptom:
    phase = phase_of(frames) or ("launch" if not last_step else "unknown")
    trains = phase in ("forward", "loss", "backward", "grad_sync", "optimizer", "after_capture", "unknown")
    step = last_step + 1 if last_step or trains else 0
    known = bool(last_step) or not trains
    return Symptom(types=(kind,) if kind else (), message=message, where=frames, phase=phase, step=step, step_known=known)
