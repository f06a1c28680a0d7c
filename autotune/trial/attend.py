"""Attends to one trial from start to end, wherever its ranks run: first failure, hang, port, clean end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from autotune.trial.assemble import Ending, assemble
from autotune.trial.record import TrialRecord
from autotune.trial.spec import TrialSpec

OnLine = Callable[[int, Mapping[str, Any]], None]
"""Called with a rank and each line it wrote, while the trial runs."""

SETTLE_S = 1.0
"""After the first failure the other ranks may still write theirs (all run out of memory at once, say)."""
TEARDOWN_S = 20.0
"""A rank that has written its last line and does not end within this hangs in teardown: it is killed, its result stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a trial may take.

    Attributes:
        wall_s: From start to end.
        silent_s: No rank wrote a line for so long, before the first step has ended (imports, compilation, NCCL's start).
        silent_step_s: The same later; or ``silent_steps`` times the longest step so far, where that is more.
    """

    wall_s: float = 600.0
    silent_s: float = 300.0
    silent_step_s: float = 60.0
    silent_steps: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one rank has done since it was last asked.

    Attributes:
        lines: Lines it wrote.
        status: Its exit status (minus the signal, if by one) once it has ended.
        lost: Why it can no longer be asked (its node is gone), if so.
    """

    lines: Sequence[Mapping[str, Any]] = ()
    status: int | None = None
    lost: str | None = None


class Ranks(Protocol):
    """The processes of one trial."""

    def port(self) -> int:
        """A port that nobody listens on now, where rank 0 runs."""
        ...

    def start(self, spec: TrialSpec) -> None:
        """Start every rank, each a fresh process in a process group of the trial's own."""
        ...

    def poll(self) -> Mapping[int, News]:
        """News of all ranks; waits a fraction of a second for some."""
        ...

    def end(self) -> Sequence[int]:
        """End whatever still runs of the trial, descendants included; the pids that would not end."""
        ...


@dataclass
class _Seen:
    lines: list[Mapping[str, Any]] = field(default_factory=list)
    events: set[str] = field(default_factory=set)
    status: int | None = None
    lost: str | None = None
    ended_at: float | None = None


def attend(spec: TrialSpec, ranks: Ranks, *, on_line: OnLine | None = None, limits: Limits | None = None) -> TrialRecord:
    """Run a trial to the end or to its first failure, and leave nothing of it alive.

    Another program may take rank 0's port between the look at it and the bind: then nothing was learned of the boundary, and
    the same trial starts again on another port.
    """
    record = _attempt(spec if spec.master_port else replace(spec, master_port=ranks.port()), ranks, on_line, limits or Limits())
    for attempt in (1, 2):
        if record.failure is None or record.failure.failure_class != "port":
            break
        for rank in range(spec.world_size):
            with contextlib.suppress(FileNotFoundError):  # Kept beside the next one; a file of its own for each attempt.
                spec.rank_file(rank).rename(spec.rank_file(rank).with_suffix(f".attempt{attempt}.jsonl"))
        record = _attempt(replace(spec, master_port=ranks.port()), ranks, on_line, limits or Limits())
    return record


def _attempt(spec: TrialSpec, ranks: Ranks, on_line: OnLine | None, limits: Limits) -> TrialRecord:
    began = time.monotonic()
    seen = {rank: _Seen() for rank in range(spec.world_size)}
    hung: str | None = None
    try:
        ranks.start(spec)
        began = heard = time.monotonic()
        failed_at: float | None = None
        longest_step_s: float | None = None
        while any(rank.status is None for rank in seen.values()):
            news = ranks.poll()
            now = time.monotonic()
            steps = _note(seen, news, on_line, now)
            if steps or any(of_rank.lines for of_rank in news.values()):
                heard = now
                longest_step_s = max([*steps, *([longest_step_s] if longest_step_s is not None else [])], default=None)
            if failed_at is None and any(_failed(rank) for rank in seen.values()):
                failed_at = now
            if any(rank.lost for rank in seen.values()) or (failed_at is not None and now - failed_at > SETTLE_S):
                break
            ended = [rank.ended_at for rank in seen.values()]
            if all(at is not None for at in ended):
                if now - max(at for at in ended if at is not None) > TEARDOWN_S:
                    break
                continue
            hung = _hung(now - began, now - heard, longest_step_s, limits) if failed_at is None else None
            if hung is not None:
                break
    finally:
        left = ranks.end()
    _note(seen, ranks.poll(), on_line, time.monotonic(), statuses=False)
    ending = Ending(
        statuses={rank: of_rank.status for rank, of_rank in seen.items()},
        hung=hung,
        lost={rank: of_rank.lost for rank, of_rank in seen.items() if of_rank.lost is not None},
        left_pids=tuple(left),
        wall_s=time.monotonic() - began,
    )
    return assemble(spec, ending, {rank: of_rank.lines for rank, of_rank in seen.items()})


def _note(
    seen: Mapping[int, _Seen], news: Mapping[int, News], on_line: OnLine | None, now: float, *, statuses: bool = True
) -> list[float]:
    """Keep the news; the seconds of the steps that ended. A rank that we ended has no status of its own."""
    steps = []
    for rank, of_rank in news.items():
        known = seen[rank]
        if statuses and known.status is None:
            known.status = of_rank.status
        known.lost = known.lost or of_rank.lost
        for line in of_rank.lines:
            known.lines.append(line)
            known.events.add(line["event"])
            if line["event"] == "end":
                known.ended_at = now
            elif line["event"] == "iteration":
                steps.append(line["host_ms"] / 1e3)
            if on_line is not None:
                on_line(rank, line)
    return steps


def _failed(rank: _Seen) -> bool:
    return "failure" in rank.events or (rank.status not in (None, 0) and "end" not in rank.events)


def _hung(since_start_s: float, silent_s: float, longest_step_s: float | None, limits: Limits) -> str | None:
    if since_start_s > limits.wall_s:
        return f"the wall-clock limit of {limits.wall_s:.0f} s was reached"
    bound = limits.silent_s
    if longest_step_s is not None:
        bound = max(limits.silent_step_s, limits.silent_steps * longest_step_s)
    return f"no progress for {silent_s:.0f} s" if silent_s > bound else None
