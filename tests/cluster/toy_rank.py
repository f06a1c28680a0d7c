"""A rank program without Megatron: writes the lines of a trial in the same form, and misbehaves as its boundary's trial says.

What it does is read from ``toy.json`` beside the spec's folder: {"<rank>": {"do": ..., "step": ...}}.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.trial.lines import LineWriter
from autotune.trial.spec import TrialSpec

PRICES = ("core_attn", "layernorm", "mlp", "moe_act")
"""Dearest last; what a step is said to take does not depend on how long it does."""
STEP_S = float(os.environ.get("TOY_STEP_S", "0.05"))


def preload(backend: str, loop: str | None = None) -> str:
    if os.environ.get("TOY_THREAD"):
        import threading

        threading.Thread(target=time.sleep, args=(1e6,), name="library thread", daemon=True).start()
    if os.environ.get("TOY_LACKS"):
        raise RequestError("loop", "toy", "the toy is not installed here", "install it")
    time.sleep(float(os.environ.get("TOY_IMPORTS_S", "0")))
    return loop or "core"


def revisions() -> dict[str, str | None]:
    return {"toy": "1"}


def main(spec: TrialSpec, rank: int) -> int:
    lines = LineWriter(spec.rank_file(rank))
    lines.write("start", rank=rank, pid=os.getpid(), host=socket.gethostname(), backend=spec.backend, boundary={})
    lines.write("loop", loop="core", revisions=revisions(), threads=1)
    local = {key: os.environ.get(key) for key in ("TOY_MARK", "CUDA_VISIBLE_DEVICES")}
    place = {"local_rank": spec.local_rank, "local_world_size": spec.local_world_size}
    lines.write("note", rank=rank, **place, environment=local, niceness=os.getpriority(os.PRIO_PROCESS, 0))
    todo = _todo(spec, rank)
    peak = 1000 * (rank + 1) - 100 * len(spec.boundary.modules)
    phases = {"forward": peak - 10, "backward": peak}
    lines.write("phase", phase="build", step=0, microbatch=0, allocated_bytes=1)
    if todo.get("do") == "port" and not (Path(spec.folder) / "tried").exists():
        if rank == 0:
            time.sleep(0.3)
        (Path(spec.folder) / "tried").touch()
        return _fail(
            lines,
            "DistNetworkError",
            "The server socket has failed to listen on any local network address. EADDRINUSE",
            "build",
            0,
        )
    lines.write("built", phases={"build": 10}, reserved={}, allocated_bytes=10)
    for step in range(1, spec.steps + 1):
        lines.write("phase", phase="forward", step=step, microbatch=1, allocated_bytes=1)
        if todo and step == todo.get("step", 1):
            status = _misbehave(todo["do"], lines, step, phases, spec)
            if status is not None:
                return status
        time.sleep(STEP_S)
        lines.write(
            "iteration",
            step=step,
            step_ms=50.0 + 5 * sum(map(PRICES.index, spec.boundary.modules)) + 5 * len(spec.boundary.modules),
            host_ms=STEP_S * 1e3,
            loss=1.0 / step,
            grad_norm=1.0,
            skipped=False,
            nan=False,
            phases=phases,
            reserved={},
            allocated_bytes=1,
            allocator_retries=0,
            tokens_per_expert=[],
        )
    lines.write("end", completed=True, steps=spec.steps)
    if todo.get("do") == "teardown":
        time.sleep(1e6)
    return 0


def _todo(spec: TrialSpec, rank: int) -> dict[str, Any]:
    path = Path(spec.folder) / "toy.json"
    if not path.exists():
        path = Path(os.environ.get("TOY_FILE", "/nonexistent"))
    if not path.exists():
        return {}
    told = json.loads(path.read_text())
    return told.get(spec.boundary.key, told).get(str(rank), {}) if isinstance(told, dict) else {}


def _misbehave(what: str, lines: LineWriter, step: int, phases: dict[str, int], spec: TrialSpec) -> int | None:
    if what == "oom":
        text = (
            "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 50.00 MiB of which 1.00 MiB is free."
        )
        return _fail(lines, "OutOfMemoryError", text, "forward", step, phases=phases)
    if what == "collective":  # Waits for a rank that will never come, deaf to everything as NCCL is.
        server = socket.create_server(("127.0.0.1", 0))
        server.accept()
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1e6)
    if what == "hang":
        time.sleep(1e6)
    if what == "killed_once":
        try:
            (Path(spec.folder).parent / "killed").touch(exist_ok=False)
        except FileExistsError:
            return None
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "orphan":  # A process of its own session that ignores SIGTERM and outlives its parent.
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1e6)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        (Path(spec.folder) / "orphan.pid").write_text(str(child.pid))
    return None


def _fail(lines: LineWriter, kind: str, text: str, phase: str, step: int, *, phases: dict[str, int] | None = None) -> int:
    lines.write(
        "failure",
        type=kind,
        types=[kind, "RuntimeError"],
        message=text,
        where=["toy_rank.py:main"],
        requested_bytes=2 * 2**20 if "OOM" in kind or kind == "OutOfMemoryError" else None,
        phase=phase,
        step=step,
        microbatch=0,
        phases=phases or {},
        reserved={},
    )
    return 13


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("spec", type=Path)
    parser.add_argument("--rank", type=int, required=True)
    given = parser.parse_args()
    sys.exit(main(TrialSpec.load(given.spec), given.rank))
