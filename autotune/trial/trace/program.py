"""``python -m autotune.trial.trace.program``: trace one rank. Reads a request from standard input, writes a JSON line a boundary.

Request: ``{"workload", "boundaries", "rank"}``. Imports once, then forks a process for each boundary. Only address space
grows with the model; limits on it (``ulimit -v``) would end a trace.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.spec import TrialSpec
from autotune.workload.workload import Workload

STEPS = 2
"""The first makes the optimizer state; the second is a steady one."""


def main() -> int:
    """Trace every boundary of the request."""
    request = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Megatron prints.
    workload = from_builtins(request["workload"], Workload, setting="workload")
    world = workload.parallel.world_size
    os.environ.update(RANK=str(request["rank"]), WORLD_SIZE=str(world), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    counter = _preload()
    answers.write(json.dumps({"ready": True}) + "\n")
    for given in request["boundaries"]:
        boundary = from_builtins(given, Boundary, setting="boundary")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                pipe.write(json.dumps(_attempt(workload, boundary, request["rank"], counter)))
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(child, 0)
        found = json.loads(text) if text else {"error": "the process that traced it was killed"}
        answers.write(json.dumps({"boundary": to_builtins(boundary), "rank": request["rank"], **found}) + "\n")
    return 0


def _preload() -> Any:
    from autotune.trial.trace import world

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from autotune.trial import core_loop, prelude
    from autotune.trial.extension import compile_storage_sharing

    counter = prelude.install(collectives=world.install)
    core_loop.preload()
    compile_storage_sharing()
    return counter


def _attempt(workload: Workload, boundary: Boundary, rank: int, counter: Any) -> dict[str, Any]:
    started = time.perf_counter()
    try:
        found = _trace(workload, boundary, rank, counter)
    except BaseException as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
    return {**found, "seconds": round(time.perf_counter() - started, 2)}


def _trace(workload: Workload, boundary: Boundary, rank: int, counter: Any) -> dict[str, Any]:
    import torch

    from autotune.trial import core_loop
    from autotune.trial.lines import LineWriter
    from autotune.trial.probe import Probe
    from autotune.trial.session import Session
    from autotune.trial.trace import routing, world
    from autotune.trial.trace.kernels import SkippedKernels

    with tempfile.TemporaryDirectory() as folder:
        spec = TrialSpec(
            number=0, workload=workload, boundary=boundary, world_size=workload.parallel.world_size, steps=STEPS, backend="cpu",
            loop="core", folder=folder,
        )  # fmt: skip
        counter.count_this_thread()
        lines = LineWriter(spec.rank_file(rank))
        probe = Probe(lines, reserved=False)
        session = Session(spec, rank, lines, probe, counter)
        steps: list[dict[str, int]] = []
        session.on_step_end.append(lambda *_: steps.append(dict(probe.last_iteration["phases"])))
        torch.distributed.init_process_group = world.join(rank, spec.world_size)
        mode = SkippedKernels()
        routing.install(mode)
        probe.mark("build")
        with mode:
            core_loop.run(session)
    return {"first": steps[0], "steady": steps[-1], "kernels": {"skipped": mode.skipped, "run": mode.run}}


if __name__ == "__main__":
    sys.exit(main())
