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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import RequestError, StoppedError
from autotune.trial.attend import Limits, News, OnLine, attend
from autotune.trial.lines import LineFollower
from autotune.trial.processes import descendants, members
from autotune.trial.record import TrialRecord
from autotune.trial.spec import Backend, Loop, TrialSpec

TERM_S = 1.5
"""Between SIGTERM and SIGKILL."""
KILL_S = 5.0
"""How long a killed process may take to go (its memory is given back first)."""


class UnfitError(Exception):
    """A warm process must not be forked from; its text says why (a package initialised CUDA when it was imported, say)."""


class Zygote:
    """The client's end of ``autotune.trial.zygote``: one warm process that forks ranks.

    Args:
        cold: Import nothing; every rank starts as a new program.

    Raises:
        RequestError: It could not import what a trial needs.
        UnfitError: It must not be forked from.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        loop: Loop | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        program: str = "autotune.trial.rank",
        cold: bool = False,
    ) -> None:
        command = [sys.executable, "-m", "autotune.trial.zygote", "--backend", backend, *(["--loop", loop] if loop else [])]
        command += ["--program", program, *(["--cold"] if cold else [])]
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
            if answer is not None and answer.get("unfit"):
                raise UnfitError("; ".join(answer["unfit"]))
            why = "it ended while it started" if answer is None else answer["failed"]
            way_out = f"see {log} on {socket.gethostname()}" if log is not None else "start it by hand to see more"
            raise RequestError("--backend", backend, f"a process to fork trials from could not be made: {why}", way_out)
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


def free_port() -> int:
    """A loopback port that nobody listens on now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnRanks:
    """Some ranks of a trial, forked from one zygote on this machine (``attend.Ranks``).

    Args:
        ranks: Which ranks of the trial; None is all of its world.
    """

    def __init__(self, zygote: Zygote, ranks: Sequence[int] | None = None) -> None:
        self._zygote, self._chosen = zygote, ranks
        self._pids: dict[int, int] = {}
        self._lines: dict[int, LineFollower] = {}

    def port(self) -> int:
        """A free loopback port."""
        return free_port()

    def start(self, spec: TrialSpec) -> None:
        """Fork the ranks, all in one process group."""
        (Path(spec.folder) / "ranks").mkdir(parents=True, exist_ok=True)
        log = Path(spec.folder) / "stdout.log"
        self._pids = {}
        self._lines = {}
        for rank in range(spec.world_size) if self._chosen is None else self._chosen:
            # Ranks on other nodes have specs of their own (their place on the node differs), in the same folder.
            path = spec.save() if self._chosen is None else spec.save(f"ranks/{rank:03d}.spec.json")
            self._lines[rank] = LineFollower(spec.rank_file(rank))
            self._pids[rank] = self._zygote.spawn(path, rank, log, self._group)

    @property
    def _group(self) -> int:
        return next(iter(self._pids.values()), 0)

    def poll(self, timeout_s: float = 0.05) -> Mapping[int, News]:
        """News of the ranks."""
        self._zygote.poll(timeout_s)
        lost = None if self._zygote.alive else "the process that trials are forked from has ended"
        # Statuses are read before the lines: what an ended rank wrote last is then among them.
        statuses = {rank: self._zygote.exited.get(pid) for rank, pid in self._pids.items()}
        return {
            rank: News(lines=self._lines[rank].read(), status=statuses[rank], lost=lost if statuses[rank] is None else None)
            for rank in self._pids
        }

    def end(self) -> Sequence[int]:
        """SIGTERM, then SIGKILL, to the group and to whatever left it; the pids that would not end."""
        group = self._group
        for number, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            left = self._alive(group)
            if not left:
                break
            self._zygote.signal_group(group, number)
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            until = time.monotonic() + patience_s
            while self._alive(group) and time.monotonic() < until:
                self._zygote.poll(0.02)
        left = self._alive(group)
        for pid in self._pids.values():
            self._zygote.exited.pop(pid, None)
        return left

    def _alive(self, group: int) -> list[int]:
        """Processes of the trial: its group, and descendants of the zygote in groups of their own."""
        return sorted({*descendants(self._zygote.pid), *members(group)}) if group else []


def run_trial(
    spec: TrialSpec,
    *,
    on_line: OnLine | None = None,
    zygote: Zygote | None = None,
    wall_limit_s: float = 600.0,
    limits: Limits | None = None,
) -> TrialRecord:
    """Run all ranks of a trial here, to the end or to the first failure, and leave nothing alive.

    Args:
        zygote: A warm process made for the same backend, loop and environment; without one, one is made and closed.
        wall_limit_s: After this long the trial ends as a hang.
        limits: All limits; takes the place of ``wall_limit_s``.
    """
    if zygote is None:
        with Zygote(spec.backend, loop=spec.loop, environment=spec.variables, program=spec.program) as own:
            return run_trial(spec, on_line=on_line, zygote=own, wall_limit_s=wall_limit_s, limits=limits)
    return attend(spec, OwnRanks(zygote), on_line=on_line, limits=limits or Limits(wall_s=wall_limit_s))
