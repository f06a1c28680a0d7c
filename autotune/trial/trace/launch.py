"""Starts the tracer's processes, one for each pipeline stage in turn, and reads what they found. Imports no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import from_builtins, to_builtins
from autotune.workload.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One boundary on one pipeline stage. ``first`` and ``steady`` are peaks of phases in bytes; never a measurement.

    ``error`` says why there are none: the installed Megatron refused the setting, or the tracer cannot run it.
    """

    boundary: Boundary
    stage: int
    rank: int
    first: Mapping[str, int] = field(default_factory=dict)
    steady: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None


def trace(
    workload: Workload, boundaries: Sequence[Boundary], *, on_found: Callable[[Traced], None] = lambda _: None
) -> list[Traced]:
    """Trace boundaries on the first rank of every pipeline stage.

    Raises:
        RequestError: The tracer could not start.
    """
    stages = workload.parallel.pipeline_model_parallel_size
    per_stage = workload.parallel.world_size // stages
    found: list[Traced] = []
    for stage in range(stages):
        for one in _trace_rank(workload, boundaries, stage, stage * per_stage):
            found.append(one)
            on_found(one)
    return found


def _trace_rank(workload: Workload, boundaries: Sequence[Boundary], stage: int, rank: int) -> Iterator[Traced]:
    request = {"workload": to_builtins(workload), "boundaries": [to_builtins(b) for b in boundaries], "rank": rank}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.trial.trace.program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdin as pipe:
                json.dump(request, pipe)
            count = 0
            for line in process.stdout:
                answer = json.loads(line)
                if "ready" not in answer:
                    count += 1
                    yield _traced(answer, stage)
            if process.wait() or count != len(boundaries):
                log.seek(0)
                last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
                raise RequestError(
                    "--trace", None, f"the tracer ended early: {last}", "run it with --verbose, or leave --trace out"
                )
        finally:
            process.kill()
            process.wait()


def _traced(answer: dict[str, Any], stage: int) -> Traced:
    return Traced(
        boundary=from_builtins(answer["boundary"], Boundary, setting="boundary"),
        stage=stage,
        rank=answer["rank"],
        first=answer.get("first", {}),
        steady=answer.get("steady", {}),
        seconds=answer.get("seconds", 0.0),
        error=answer.get("error"),
    )
