"""The program of one rank, the same on a CPU and a GPU: ``python -m autotune.trial.rank SPEC --rank N``.

A launcher that forks calls ``preload`` once and ``main`` in each child.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.trial.extension import compile_storage_sharing
from autotune.trial.lines import LineWriter
from autotune.trial.spec import Backend, Loop, TrialSpec

EXIT_FAILED = 13
"""Exit status of a rank that wrote a ``failure`` line."""

_counter: list[Any] = []


def preload(backend: Backend, loop: Loop | None = None) -> Loop:
    """Import everything a trial needs, without touching a GPU or starting a thread of ours; returns the loop to run.

    Raises:
        RequestError: Something that a trial needs is not installed.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        if backend == "cpu":
            os.environ.setdefault(name, "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("WANDB_MODE", "disabled")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from autotune.trial import bridge_loop, core_loop

    chosen: Loop = loop or ("bridge" if bridge_loop.available() else "core")
    if chosen == "bridge" and not bridge_loop.available():
        raise RequestError("loop", chosen, "Megatron Bridge is not installed here", "install megatron-bridge or take loop=core")
    if backend == "cpu" and not _counter:
        from autotune.trial import prelude

        _counter.append(prelude.install())
    (bridge_loop if chosen == "bridge" else core_loop).preload()
    compile_storage_sharing()
    return chosen


def main(spec: TrialSpec, rank: int) -> int:
    """Run one rank of a trial to its end. Every failure is a line in the rank's file; returns the exit status."""
    lines = LineWriter(spec.rank_file(rank))
    lines.write(
        "start", rank=rank, pid=os.getpid(), host=socket.gethostname(), backend=spec.backend, boundary=spec.boundary.to_fields()
    )
    probe = None
    try:
        _environment(spec, rank)
        loop = preload(spec.backend, spec.loop)
        probe = _run(spec, rank, lines, loop)
    except BaseException as error:
        lines.write("failure", **_failure(error, probe or _probe_of(error)))
        traceback.print_exc()
        return EXIT_FAILED
    lines.write("end", completed=True, steps=probe.step)
    return 0


def _environment(spec: TrialSpec, rank: int) -> None:
    local_size = spec.local_world_size or spec.world_size
    os.environ.update(spec.variables)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(spec.world_size),
        LOCAL_RANK=str(rank % local_size if spec.local_rank is None else spec.local_rank),
        LOCAL_WORLD_SIZE=str(local_size),
        MASTER_ADDR=spec.master_addr,
        MASTER_PORT=str(spec.master_port),
    )
    if spec.backend == "cpu" and spec.master_addr == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _run(spec: TrialSpec, rank: int, lines: LineWriter, loop: Loop) -> Any:
    import torch

    from autotune.trial import bridge_loop, core_loop
    from autotune.trial.probe import Probe
    from autotune.trial.session import Session

    counter = None
    if spec.backend == "cpu":
        from autotune.trial.config_builder import refuse_on_cpu

        refuse_on_cpu(spec.workload, captures=spec.survey is None)
        counter = _counter[0]
        counter.set_capacity(spec.capacity_bytes)
        counter.count_this_thread()
    else:
        _take_gpu(spec.rank_file(rank).with_suffix(".oom.pickle"), lines)
    probe = Probe(lines, reserved=spec.backend == "gpu")
    _probes.append(probe)
    session = Session(spec, rank, lines, probe, counter)
    lines.write("loop", loop=loop, revisions=revisions(), threads=torch.get_num_threads())
    if spec.survey is not None:
        from autotune.trial.survey.attach import attach

        attach(session)
    probe.mark("build")
    gc.collect()
    (bridge_loop if loop == "bridge" else core_loop).run(session)
    return probe


def _take_gpu(snapshot: Path, lines: LineWriter) -> None:
    """Make this rank's GPU the current one before anything else touches CUDA, which would leave a context on the node's first."""
    import torch

    from autotune.trial.gpu_snapshot import keep_first_out_of_memory

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    keep_first_out_of_memory(snapshot, lines)


_probes: list[Any] = []


def _probe_of(_: BaseException) -> Any:
    return _probes[-1] if _probes else None


_TRIED = re.compile(r"Tried to allocate ([0-9.]+) ?(bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def _failure(error: BaseException, probe: Any) -> dict[str, Any]:
    """The facts of an exception: its type, where the rank was, what it asked for. Classes are decided elsewhere."""
    message = " ".join(str(error).split())
    requested = None
    if type(error).__name__ == "OutOfMemoryError":
        requested = _counter[0].failed_request_bytes() if _counter else None
        match = _TRIED.search(message)
        if requested is None and match is not None:
            requested = round(float(match[1]) * _UNITS[match[2]])
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames]
    facts: dict[str, Any] = {
        "type": type(error).__name__,
        "types": [cls.__name__ for cls in type(error).__mro__[:-2]],
        "message": message[:4000],
        "where": where[-12:],
        "requested_bytes": requested,
        "phase": probe.phase if probe is not None else "launch",
        "step": probe.step if probe is not None else 0,
        "microbatch": probe.microbatch if probe is not None else 0,
    }
    if probe is not None:
        peaks, held = probe.take_peaks()
        facts |= {"phases": peaks, "reserved": held}
    return facts


def revisions() -> dict[str, str | None]:
    """Versions of what runs, by Stack's names; a stand-in is named as such."""
    from importlib import metadata

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    te = sys.modules.get("transformer_engine")
    stand_in = f"stand-in for {te.__version__}" if te is not None and getattr(te, "__stand_in__", False) else None
    return {
        "python": sys.version.split()[0],
        "torch": version("torch"),
        "megatron_core": version("megatron-core"),
        "megatron_bridge": version("megatron-bridge"),
        "transformer_engine": stand_in or version("transformer-engine"),
    }


def run_from_command_line(arguments: list[str] | None = None) -> int:
    """Entry of ``python -m autotune.trial.rank``."""
    parser = argparse.ArgumentParser(prog="python -m autotune.trial.rank", description="Run one rank of a trial.")
    parser.add_argument("spec", type=Path, help="spec.json of the trial")
    parser.add_argument("--rank", type=int, required=True)
    given = parser.parse_args(arguments)
    started = time.monotonic()
    status = main(TrialSpec.load(given.spec), given.rank)
    print(f"rank {given.rank} ended with status {status} after {time.monotonic() - started:.1f} s", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(run_from_command_line())
