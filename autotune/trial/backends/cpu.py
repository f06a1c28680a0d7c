"""The cpu backend: real Megatron training steps on this machine's CPU, every rank's device memory counted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.config_builder import refuse_on_cpu
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import Kind, TrialRecord
from autotune.trial.spec import Loop, TrialSpec
from autotune.workload.workload import Workload


class CpuBackend:
    """Runs each boundary in fresh processes, forked from one warm process that lives as long as the backend.

    The memory limit of a request is the capacity of each simulated device, so a boundary that does not fit ends in a real
    ``torch.OutOfMemoryError``.

    Args:
        loop: ``bridge`` or ``core``; None takes Bridge where it is installed.
        wall_limit_s: A trial that takes longer ends as a hang.

    Raises:
        RequestError: The workload needs something that has no stand-in on a CPU.
    """

    name = "cpu"
    kind: Kind = "measured"
    to_the_bit = True
    free = False

    def __init__(self, workload: Workload, *, seed: int = 0, loop: Loop | None = None, wall_limit_s: float = 600.0) -> None:
        refuse_on_cpu(workload)
        self._workload, self._seed, self._loop, self._wall_limit_s = workload, seed, loop, wall_limit_s
        self._zygote: Zygote | None = None

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        """Nothing: a boundary can always be launched again."""
        return None

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        """Run one boundary on all ranks of its world."""
        if request.folder is None:
            with tempfile.TemporaryDirectory(prefix="autotune-trial-") as folder:
                return self.run(replace(request, folder=Path(folder)), on_progress)
        spec = TrialSpec(
            number=request.number,
            workload=self._workload,
            boundary=request.boundary,
            world_size=self._workload.parallel.world_size,
            steps=request.steps,
            seed=1234 + self._seed,
            backend="cpu",
            capacity_bytes=request.limit_bytes,
            folder=str(request.folder),
            loop=self._loop,
        )
        zygote = self._warm(spec, request.folder)
        record = run_trial(spec, on_line=_progress(on_progress), zygote=zygote, wall_limit_s=self._wall_limit_s)
        return replace(record, repeat_reason=request.repeat_reason, workload_digest=request.workload_digest)

    def close(self) -> None:
        """End the warm process."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _warm(self, spec: TrialSpec, folder: Path) -> Zygote:
        if self._zygote is None or not self._zygote.alive:
            self.close()
            self._zygote = Zygote("cpu", loop=self._loop, environment=spec.variables, log=folder.resolve().parent / "zygote.log")
        return self._zygote


def _progress(on_progress: OnProgress | None) -> Callable[[int, Mapping[str, Any]], None] | None:
    """The lines of all ranks as figures of the trial: step, phase, and the highest peak so far."""
    if on_progress is None:
        return None
    highest = 0

    def on_line(rank: int, line: Mapping[str, Any]) -> None:
        nonlocal highest
        highest = max([highest, *(line.get("phases") or {}).values()])
        if line["event"] in ("phase", "built", "iteration"):
            on_progress(
                {"rank": rank, "step": line.get("step", 0), "phase": line.get("phase", line["event"]), "peak_bytes": highest}
            )

    return on_line
