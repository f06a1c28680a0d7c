"""A process that has imported everything a trial needs, and forks one fresh process for each rank of each trial.

``python -m autotune.trial.zygote --backend cpu``: requests come as JSON lines on standard input, answers go to standard
output. It has one thread of its own, touches no GPU, and ends, with every process it forked, when its input closes.
With ``--cold`` it imports nothing and each rank starts as a new program: for packages that must not be forked from.

    -> {"spawn": ID, "spec": PATH, "rank": N, "log": PATH, "group": PID or 0}      <- {"spawned": ID, "pid": PID}
    -> {"kill": PGID, "signal": N}
                                                                                   <- {"exited": PID, "status": N}
``status`` is an exit status, or minus the signal that ended the process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError
from autotune.trial.processes import descendants

_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
"""Native threads whose library prepares itself for a fork: jemalloc's (in pyarrow) by handlers of pthread_atfork."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def self_test(backend: str) -> list[str]:
    """Why this process must not be forked from: an initialised CUDA, an open device file, threads. Empty: fine."""
    import threading

    wrong = []
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        wrong.append("CUDA is initialised")
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(entry.readlink())
            if target.startswith("/dev/nvidia"):
                wrong.append(f"{target} is open")
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    own = {threading.main_thread().native_id, *(thread.native_id for thread in others)}
    native = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir() if int(task.name) not in own]
    names = [*(thread.name for thread in others), *(name for name in native if name not in _FORK_SAFE_THREADS)]
    if names:
        wrong.append(f"threads run: {', '.join(sorted(names))}")
    return sorted(set(wrong))


class _Server:
    def __init__(self, answers: int, program: str, *, cold: bool = False) -> None:
        self._answers = answers
        self._program = program
        self._cold = cold
        self._children: set[int] = set()

    def answer(self, **fields: Any) -> None:
        os.write(self._answers, json.dumps(fields).encode() + b"\n")

    def serve(self) -> None:
        """Serve until the input closes; then end every child."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal group; the owner decides.
        # What a rank leaves behind in a group of its own becomes our child, not init's: it can be found and ended.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        pending = b""
        while True:
            ready, _, _ = select.select([0, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if 0 in ready:
                data = os.read(0, 65536)
                if not data:
                    break
                *requests, pending = (pending + data).split(b"\n")
                for request in requests:
                    self._handle(json.loads(request))
        for pid in self._children:
            _kill_group(pid, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _handle(self, request: dict[str, Any]) -> None:
        if "spawn" in request:
            pid = os.fork()
            if pid == 0:
                self._become_rank(request)
            group = request["group"] or pid
            with contextlib.suppress(OSError):  # The child does it, too: whoever is first.
                os.setpgid(pid, group)
            self._children.add(pid)
            self.answer(spawned=request["spawn"], pid=pid)
        elif "kill" in request:
            _kill_group(request["kill"], request["signal"])

    def _reap(self) -> None:
        """Take the status of every child that has ended, adopted ones among them."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self._children:
                    self._children.discard(pid)
                    self.answer(exited=pid, status=os.waitstatus_to_exitcode(status))

    def _become_rank(self, request: dict[str, Any]) -> None:
        """In the child: own group, own log, no way back into the server. Never returns."""
        status = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.setpgid(0, request["group"])
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            os.close(self._answers)
            log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if self._cold:
                command = [sys.executable, "-m", self._program, request["spec"], "--rank", str(request["rank"])]
                os.execv(sys.executable, command)
            from autotune.trial.spec import TrialSpec

            status = importlib.import_module(self._program).main(TrialSpec.load(Path(request["spec"])), request["rank"])
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _kill_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main(arguments: list[str] | None = None) -> int:
    """Entry of ``python -m autotune.trial.zygote``."""
    parser = argparse.ArgumentParser(prog="python -m autotune.trial.zygote", description="Fork ranks from a warm process.")
    parser.add_argument("--backend", choices=("cpu", "gpu"), required=True)
    parser.add_argument("--loop", choices=("bridge", "core"), default=None)
    parser.add_argument("--program", default="autotune.trial.rank", help="the module that a rank runs")
    parser.add_argument("--cold", action="store_true", help="import nothing; each rank is a new program")
    given = parser.parse_args(arguments)
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)  # Libraries print while they are imported.
    server = _Server(answers, given.program, cold=given.cold)
    if given.cold:
        server.answer(ready=True, loop=given.loop, pid=os.getpid(), unfit=[], revisions={})
        server.serve()
        return 0
    try:
        rank = importlib.import_module(given.program)
        loop = rank.preload(given.backend, given.loop)
    except AutotuneError as error:
        server.answer(failed=str(error), kind="request")
        return 1
    except Exception as error:
        server.answer(failed=f"{type(error).__name__}: {error}", kind="defect")
        traceback.print_exc()
        return 1
    gc.collect()
    gc.freeze()  # Keeps the pages of what is imported shared with the children.
    server.answer(ready=True, loop=loop, pid=os.getpid(), unfit=self_test(given.backend), revisions=rank.revisions())
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
