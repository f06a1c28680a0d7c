"""Runs one trial on this machine: fresh processes from a zygote, one group, the first failure ends all of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.errors import RequestError, StoppedError
from autotune.trial.assemble import Ending, assemble
from autotune.trial.lines import LineFollower
from autotune.trial.record import TrialRecord
from autotune.trial.spec import Backend, Loop, TrialSpec

OnLine = Callable[[int, Mapping[str, Any]], None]
"""Called with a rank and each line it wrote, while the trial runs."""

SETTLE_S = 1.0
"""After the first failure the other ranks may still write theirs (all run out of memory at once, say)."""
TERM_S = 1.5
"""Between SIGTERM and SIGKILL."""
TEARDOWN_S = 20.0
"""A rank that has written its last line and does not end within this hangs in teardown: it is killed, its result stays."""


class Zygote:
    """The client's end of ``autotune.trial.zygote``: one warm process that forks ranks.

    Raises:
        RequestError: It could not import what a trial needs, or must not be forked from.
    """

    def __init__(
        self, backend: Backend, *, loop: Loop | None = None, environment: Mapping[str, str] | None = None, log: Path | None = None
    ) -> None:
        command = [sys.executable, "-m", "autotune.trial.zygote", "--backend", backend, *(["--loop", loop] if loop else [])]
        self._log = log.open("ab") if log is not None else None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log or subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        self._pending = b""
        self._next = 0
        self.exited: dict[int, int] = {}
        """Statuses of processes that have ended, by pid; taken by whoever started them."""
        self.loop: str | None = None
        self.revisions: Mapping[str, Any] = {}
        answer = self._wait_for(lambda a: "ready" in a or "failed" in a)
        if answer is None or "failed" in answer or answer["unfit"]:
            self.close()
            why = "it ended while it started" if answer is None else answer.get("failed") or "; ".join(answer["unfit"])
            raise RequestError("--backend", backend, f"a process to fork trials from could not be made: {why}", "see its log")
        self.loop, self.revisions = answer["loop"], answer["revisions"]

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the zygote runs."""
        return self._process.poll() is None

    def spawn(self, spec_path: Path, rank: int, log: Path, group: int = 0) -> int:
        """Fork one rank; ``group`` is the process group to join, 0 for one of its own. Returns its pid."""
        self._next += 1
        number = self._next
        self._send(spawn=number, spec=str(spec_path), rank=rank, log=str(log), group=group)
        answer = self._wait_for(lambda a: a.get("spawned") == number)
        if answer is None:
            raise StoppedError("the process that trials are forked from has ended; start the run again with --resume")
        return int(answer["pid"])

    def signal_group(self, group: int, number: int) -> None:
        """Send a signal to a process group of a trial."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Read what has been answered; ``exited`` then knows who has ended."""
        self._read(timeout_s)

    def close(self) -> None:
        """End the zygote and every process it forked."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, timeout_s: float | None) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], timeout_s)[0]:
            return []
        data = os.read(descriptor, 65536)
        if not data:
            self._process.wait()
            return []
        *lines, self._pending = (self._pending + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            if "exited" in answer:
                self.exited[answer["exited"]] = answer["status"]
        return answers

    def _wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        while True:
            for answer in self._read(None):
                if wanted(answer):
                    return answer
            if not self.alive:
                return None


@dataclass
class _Running:
    """One rank process."""

    rank: int
    pid: int
    lines: LineFollower
    status: int | None = None
    said: set[str] = field(default_factory=set)
    ended_at: float | None = None


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_trial(
    spec: TrialSpec, *, on_line: OnLine | None = None, zygote: Zygote | None = None, wall_limit_s: float = 600.0
) -> TrialRecord:
    """Run all ranks of a trial here, to the end or to the first failure, and leave nothing alive.

    Args:
        zygote: A warm process made for the same backend, loop and environment; without one, one is made and closed.
        wall_limit_s: After this long the trial ends as a hang.
    """
    if zygote is None:
        with Zygote(spec.backend, loop=spec.loop, environment=spec.variables) as own:
            return run_trial(spec, on_line=on_line, zygote=own, wall_limit_s=wall_limit_s)
    for attempt in (1, 2):
        port = spec.master_port if spec.master_port and attempt == 1 else free_port()
        record = _attempt(replace(spec, master_port=port), on_line, zygote, wall_limit_s)
        # Another program took the port between our look and rank 0's bind: nothing was learned, same trial again.
        if attempt == 1 and record.failure is not None and record.failure.failure_class == "port":
            for rank in range(spec.world_size):
                spec.rank_file(rank).unlink(missing_ok=True)
            continue
        break
    return record


def _attempt(spec: TrialSpec, on_line: OnLine | None, zygote: Zygote, wall_limit_s: float) -> TrialRecord:
    folder = Path(spec.folder)
    (folder / "ranks").mkdir(parents=True, exist_ok=True)
    path, log = spec.save(), folder / "stdout.log"
    began = time.monotonic()
    ranks: list[_Running] = []
    hung = False
    try:
        for rank in range(spec.world_size):
            pid = zygote.spawn(path, rank, log, ranks[0].pid if ranks else 0)
            ranks.append(_Running(rank, pid, LineFollower(spec.rank_file(rank))))
        first_failure: float | None = None
        while any(rank.status is None for rank in ranks):
            zygote.poll(0.05)
            _observe(ranks, zygote, on_line)
            now = time.monotonic()
            failed = any("failure" in r.said or (r.status not in (None, 0) and "end" not in r.said) for r in ranks)
            if failed and first_failure is None:
                first_failure = now
            if first_failure is not None and now - first_failure > SETTLE_S:
                break
            if not zygote.alive:
                break
            if now - began > wall_limit_s:
                hung = True
                break
            if all(r.ended_at is not None for r in ranks) and now - max(r.ended_at or 0.0 for r in ranks) > TEARDOWN_S:
                break
    finally:
        if ranks:
            _end(ranks, zygote)
    _observe(ranks, zygote, on_line)
    statuses = {rank.rank: rank.status for rank in ranks}
    return assemble(spec, Ending(statuses=statuses, hung=hung, wall_s=time.monotonic() - began))


def _observe(ranks: list[_Running], zygote: Zygote, on_line: OnLine | None) -> None:
    for rank in ranks:
        if rank.status is None:
            rank.status = zygote.exited.pop(rank.pid, None)
        for line in rank.lines.read():
            rank.said.add(line["event"])
            if line["event"] == "end":
                rank.ended_at = time.monotonic()
            if on_line is not None:
                on_line(rank.rank, line)


def _end(ranks: list[_Running], zygote: Zygote) -> None:
    """End the trial's process group; return when none of it is left. Ranks that we end have no status of their own."""
    group = ranks[0].pid
    for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, 5.0)):
        if not _group_lives(group):
            break
        zygote.signal_group(group, number)
        until = time.monotonic() + patience_s
        while _group_lives(group) and time.monotonic() < until:
            zygote.poll(0.02)
    for rank in ranks:
        zygote.exited.pop(rank.pid, None)


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
