"""Which backend a request runs on, and why."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.request import Request
from autotune.errors import RequestError
from autotune.workload.catalog import find
from autotune.workload.workload import Workload

_OF_A_TRIAL = {"ray": "ray", "torch": "torch", "megatron-core": "megatron"}
"""What a launch needs beside this package, and the package it is found by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A backend by name, with the line that says why it."""

    name: str
    why: str


def choose(request: Request, workload: Workload) -> Choice:
    """The backend of a request; ``auto`` takes gpu, else cpu, else predict.

    Raises:
        RequestError: The named backend cannot run this workload here.
    """
    of_a_run = request.evidence is not None and Path(request.evidence).is_dir()
    if request.backend == "replay" or (request.backend == "auto" and request.evidence is not None and not of_a_run):
        if request.evidence is None or of_a_run:
            raise RequestError("--backend", "replay", "replay reads recorded trials", "name them with --evidence FILE[:TABLE]")
        return Choice(name="replay", why=f"replay: recorded trials of {request.evidence}")
    if request.backend == "predict":
        return Choice(name="predict", why="predict: asked for, nothing is launched")
    no_gpu, no_cpu = _no_gpu(request, workload), _no_cpu(request, workload)
    if request.backend == "gpu":
        if no_gpu is not None:
            raise RequestError("--backend", "gpu", no_gpu, "use --backend predict, or run where the GPUs are")
        return Choice(name="gpu", why="gpu: asked for")
    if request.backend == "cpu":
        if no_cpu is not None:
            raise RequestError("--backend", "cpu", no_cpu, "use a recipe sized for it (autotune recipes), or --backend predict")
        return Choice(name="cpu", why="cpu: asked for")
    if no_gpu is None:
        return Choice(name="gpu", why=f"auto took gpu: {workload.parallel.world_size} GPUs and Megatron Bridge are here")
    if no_cpu is None:
        return Choice(name="cpu", why=f"auto took cpu: the recipe is sized for it; not gpu: {no_gpu}")
    return Choice(name="predict", why=f"auto took predict, nothing is launched; not gpu: {no_gpu}; not cpu: {no_cpu}")


def runs_on_cpu(request: Request) -> bool:
    """Whether a run of this request on this machine would launch on the CPU; no cluster is asked.

    Trials on a CPU run the stand-ins' kernels, so a plan for them has to price those.
    """
    if request.backend != "auto":
        return request.backend == "cpu"
    entry = find(request.recipe)
    return entry is not None and entry.sized_for == "cpu"


def _no_gpu(request: Request, workload: Workload) -> str | None:
    """Why the gpu backend cannot run; None where the machine, or the Ray cluster, has a GPU for each rank, and Bridge.

    Whether the nodes of a cluster have Bridge shows when their slots get ready.
    """
    needed = workload.parallel.world_size
    address = request.address or os.environ.get("RAY_ADDRESS")
    if address:
        from autotune.cluster.connection import connect

        found = int(connect(address, local_cpus=needed).get("GPU", 0))
        return None if found >= needed else f"{found} GPUs in the Ray cluster, {needed} needed"
    here = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if here == 0:
        return "no GPU on this machine"
    if here < needed:
        return f"{here} GPUs here, {needed} needed"
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None:
        return "megatron-bridge is not installed"
    return None


def _no_cpu(request: Request, workload: Workload) -> str | None:
    """Why the cpu backend cannot run this workload; None where it can.

    A recipe of the catalog says what it is sized for. A workload file or a recipe of the user's own does not: it runs on
    the CPU where that was asked for by name, never by ``auto``.
    """
    entry = find(request.recipe)
    if (entry is None and request.backend != "cpu") or (entry is not None and entry.sized_for != "cpu"):
        return f"the recipe is sized for {workload.parallel.world_size} x {workload.hardware.gpu}"
    absent = [name for name, package in _OF_A_TRIAL.items() if importlib.util.find_spec(package) is None]
    return f"{', '.join(absent)} not installed" if absent else None
