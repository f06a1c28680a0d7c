"""A rank slot: one rank's place on a node, which outlives trials. The class is made a Ray actor by ``group.py``.

The actor itself never runs Megatron and is never forked from (Ray has threads); its zygote, a plain subprocess, is.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.cluster.gpu_memory import SlotGpus
from autotune.records import from_builtins
from autotune.trial.attend import News
from autotune.trial.launch import OwnRanks, UnfitError, Zygote
from autotune.trial.spec import Backend, Loop, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """Where a slot is. ``gpu_ids`` are Ray's for this slot, as ``CUDA_VISIBLE_DEVICES`` takes them."""

    node_id: str
    address: str
    host: str
    pid: int
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """What a slot starts ranks from.

    Attributes:
        cold: Why each rank starts as a new program instead of being forked; None where it is forked.
        seconds: How long the slot took to be ready.
        revisions: Of this node, as far as the zygote has imported what a trial needs.
    """

    loop: str | None
    cold: str | None
    zygote_pid: int
    seconds: float
    reused: bool = False
    revisions: Mapping[str, str | None] = field(default_factory=dict)


def _end_with_raylet(raylet: int) -> None:
    """End this process when its parent is gone: then the zygote's pipe closes, and all that it forked ends.

    Ray does so too, 10 s and more after (seen: 13 s); until then ranks would go on holding a GPU that nobody manages.
    """
    while os.getppid() == raylet:
        time.sleep(0.5)
    os._exit(1)


class RankSlot:
    """Keeps a zygote and runs one rank of one trial at a time."""

    def __init__(self) -> None:
        threading.Thread(target=_end_with_raylet, args=(os.getppid(),), name="raylet watch", daemon=True).start()
        self._zygote: Zygote | None = None
        self._made_for: tuple[object, ...] = ()
        self._cold: str | None = None
        self._ranks: OwnRanks | None = None
        self._gpus: SlotGpus | None = None
        self._rank_file = Path()

    def facts(self) -> SlotFacts:
        """Where this slot is."""
        import ray

        context = ray.get_runtime_context()
        return SlotFacts(
            node_id=context.get_node_id(),
            address=ray.util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            gpu_ids=tuple(str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])),
        )

    def warm(self, backend: Backend, loop: Loop | None, environment: Mapping[str, str], program: str) -> Warmth:
        """Have a zygote for this backend, loop, environment and program: the one that is there, or a new one.

        Raises:
            RequestError: What a trial needs cannot be imported on this node.
        """
        wanted = (backend, loop, program, tuple(sorted(environment.items())))
        began = time.monotonic()
        if self._zygote is not None and self._zygote.alive and wanted == self._made_for:
            return self._warmth(began, reused=True)
        self.close()
        log = Path(tempfile.gettempdir()) / f"autotune-zygote-{os.getpid()}.log"
        self._cold = None
        try:
            self._zygote = Zygote(backend, loop=loop, environment=environment, log=log, program=program)
        except UnfitError as error:
            self._cold = str(error)
            self._zygote = Zygote(backend, loop=loop, environment=environment, log=log, program=program, cold=True)
        self._made_for = wanted
        return self._warmth(began, reused=False)

    def _warmth(self, began: float, *, reused: bool) -> Warmth:
        assert self._zygote is not None
        seconds = round(time.monotonic() - began, 3)
        return Warmth(
            loop=self._zygote.loop,
            cold=self._cold,
            zygote_pid=self._zygote.pid,
            seconds=seconds,
            reused=reused,
            revisions=self._zygote.revisions,
        )

    def port(self) -> int:
        """A port of this node that nobody listens on now."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def start(self, spec: object, rank: int) -> None:
        """Start one rank in a fresh process.

        Args:
            spec: A TrialSpec as builtins.
            rank: Which rank of it.
        """
        trial = from_builtins(spec, TrialSpec, setting="trial")
        self.warm(trial.backend, trial.loop, trial.variables, trial.program)
        assert self._zygote is not None
        self._rank_file = trial.rank_file(rank)
        self._gpus = SlotGpus(self.facts().gpu_ids) if trial.backend == "gpu" else None
        if self._gpus is not None:
            self._gpus.before(self._rank_file)
        self._ranks = OwnRanks(self._zygote, [rank])
        self._ranks.start(trial)

    def poll(self) -> News:
        """News of the rank; waits up to 50 ms for some."""
        if self._ranks is None:
            return News()
        return next(iter(self._ranks.poll().values()), News())

    def end(self) -> Sequence[int]:
        """End the rank and whatever it left; the pids that would not end, or that hold this slot's GPU memory."""
        if self._ranks is None:
            return ()
        left = list(self._ranks.end())
        if not left and self._gpus is not None:
            left = self._gpus.after(self._rank_file)
        return left

    def close(self) -> None:
        """End the zygote and all it started."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
