"""The cpu and gpu backends: real trials on rank slots of a Ray cluster, driven by Ray Tune."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.cluster.connection import connect, control_store_of, disconnect, is_own
from autotune.cluster.drive import Source, TuneDriver
from autotune.cluster.group import Resources, SlotGroup, room_for
from autotune.cluster.head_watch import HeadWatch
from autotune.cluster.rays_words import rays_words_to
from autotune.cluster.trackers import check_trackers, tracker_callbacks
from autotune.errors import RequestError, StoppedError
from autotune.trial.allocator_setting import after_fragmentation, lacking
from autotune.trial.attend import Limits
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.record import Kind, TrialRecord
from autotune.trial.spec import Backend, Loop, TrialSpec
from autotune.workload.workload import Workload

BUNDLES: Mapping[Backend, Resources] = {"cpu": {"CPU": 1}, "gpu": {"GPU": 1, "CPU": 1}}
LIMITS: Mapping[Backend, Limits] = {
    "cpu": Limits(wall_s=900.0),
    # Imports, NCCL's start, compilation and graph capture of a large model take minutes on a cold file system.
    "gpu": Limits(wall_s=3600.0, silent_s=1200.0, silent_step_s=180.0),
}
RAYS_LOG = "ray.log"
"""In the run directory: what Ray itself has to say of the cluster (the last lines of a raylet that is gone, say)."""
MOST_GROUPS = 4
"""Trials side by side, at most: more would guess ahead of what their results would have shown."""


class ClusterBackend:
    """Runs boundaries through Ray; ``drive`` runs a whole search, ``run`` a single trial.

    Args:
        backend: ``cpu`` simulates each rank's device: a request's memory limit is its capacity, so a boundary that does not
            fit ends in a real ``torch.OutOfMemoryError``. ``gpu`` runs on the nodes' GPUs.
        address: Ray cluster; None is one of our own on this machine.
        bundle: What a rank takes of the cluster; the backend's own where None.
        program: The module that each rank runs.
        place_s: How long placement may take.
        log_to: Trackers (``wandb:PROJECT``, ``mlflow:URI``) that each trial is logged to.
        on_note: Takes lines for the user.

    Raises:
        RequestError: The workload cannot run there, or no cluster answers.
        StoppedError: The cluster is too small.
    """

    kind: Kind = "measured"
    free = False

    def __init__(
        self,
        workload: Workload,
        *,
        backend: Backend,
        seed: int = 0,
        address: str | None = None,
        loop: Loop | None = None,
        program: str = "autotune.trial.rank",
        bundle: Resources | None = None,
        limits: Limits | None = None,
        place_s: float = 300.0,
        warm_s: float = 600.0,
        log_to: Sequence[str] = (),
        on_note: Callable[[str], None] = lambda text: None,
    ) -> None:
        if backend == "cpu":
            from autotune.trial.config_builder import refuse_on_cpu

            refuse_on_cpu(workload)
        check_trackers(log_to)
        self._log_to = tuple(log_to)
        self.name: str = backend
        self.to_the_bit = backend == "cpu"
        self._backend: Backend = backend
        # A GPU trial is the recipe as Bridge runs it: a node without Bridge is refused, not trained by other means.
        self._loop: Loop | None = loop or ("bridge" if backend == "gpu" else None)
        self._workload, self._seed, self._address = workload, seed, address
        self._program = program
        self._bundle = bundle or BUNDLES[backend]
        self._limits = limits or LIMITS[backend]
        self._place_s, self._warm_s, self._on_note = place_s, warm_s, on_note
        self._world = workload.parallel.world_size
        self._lacking = lacking(workload) if backend == "gpu" else {}
        self._groups: list[SlotGroup] = []
        self._connected = False
        self._words = contextlib.ExitStack()

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        """Nothing: a boundary can always be launched again."""
        return None

    @property
    def parallel(self) -> int:
        """How many trials run side by side; known once connected."""
        return max(1, len(self._groups))

    def open(self) -> None:
        """Connect, place the slots and have them ready. May be called twice."""
        if self._connected and self._groups:
            return
        # One CPU a slot: on our own cluster they are declared, whatever the machine has.
        connect(self._address, local_cpus=self._world)
        self._connected = True
        if self._lacking:
            named = ", ".join(f"{name}={value}" for name, value in self._lacking.items())
            self._on_note(f"set in every trial, and needed in the job too: {named} (graphs are captured, segments expandable)")
        self._groups.append(self._make_group())
        if is_own(self._address):
            return
        while len(self._groups) < min(MOST_GROUPS, room_for(self._bundle) // self._world):
            try:
                self._groups.append(self._make_group(place_s=10.0))
            except StoppedError:
                break  # Busy with other work: what is placed is enough.

    def drive(self, source: Source, folder: Path) -> None:
        """Run the trials of a source until it is finished.

        Raises:
            StoppedError: The cluster was lost; the run can be resumed.
        """
        self._words.close()
        self._words.enter_context(rays_words_to(folder / RAYS_LOG))
        self.open()
        driver = TuneDriver(
            groups=self._groups,
            make_group=self._make_group,
            make_spec=self.spec,
            limits=self._limits,
            folder=folder,
            callbacks=tracker_callbacks(self._log_to, group=self._workload.name),
        )
        control_store = control_store_of(self._address)
        with HeadWatch(control_store) if control_store is not None else contextlib.nullcontext():
            driver.drive(source)

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        """Run one boundary on all ranks of its world."""
        with tempfile.TemporaryDirectory(prefix="autotune-trial-") as folder:
            if request.folder is None:
                return self.run(replace(request, folder=Path(folder)), on_progress)
            one = _One(request, on_progress)
            self.drive(one, Path(folder))
        assert one.record is not None
        return one.record

    def spec(self, request: TrialRequest) -> TrialSpec:
        """What the ranks of a request run."""
        assert request.folder is not None
        return TrialSpec(
            number=request.number,
            workload=self._workload,
            boundary=request.boundary,
            world_size=self._world,
            steps=request.steps,
            seed=1234 + self._seed,
            backend=self._backend,
            capacity_bytes=request.limit_bytes if self._backend == "cpu" else None,
            folder=str(request.folder.resolve()),
            loop=self._loop,
            program=self._program,
            survey=request.survey,
            environment=self._environment(request),
        )

    def close(self) -> None:
        """End the slots and leave the cluster."""
        for group in self._groups:
            group.close()
        self._groups.clear()
        if self._connected:
            disconnect()
            self._connected = False
        self._words.close()

    def _environment(self, request: TrialRequest) -> dict[str, str]:
        repeat = after_fragmentation(self._workload) if request.repeat_reason == "allocator" else {}
        return {**self._lacking, **repeat}

    def _make_group(self, place_s: float | None = None) -> SlotGroup:
        group = SlotGroup(self._world, self._bundle, timeout_s=self._place_s if place_s is None else place_s)
        try:
            variables = {**self._workload.env_vars, **self._lacking}
            warm = group.warm(self._backend, self._loop, variables, self._program, timeout_s=self._warm_s)
            if self._backend == "gpu":
                refuse_other_bridge(self._workload, {slot.revisions.get("megatron_bridge") for slot in warm})
        except BaseException:
            group.close()
            raise
        cold = next((slot.cold for slot in warm if slot.cold is not None), None)
        where = f"{self._world} rank slots on {group.nodes} node{'s' if group.nodes > 1 else ''}"
        how = f"ready after {max(slot.seconds for slot in warm):.1f} s"
        self._on_note(f"{where}, {how}" if cold is None else f"{where}; each trial starts cold processes: {cold}")
        return group


def refuse_other_bridge(workload: Workload, installed: Collection[str | None]) -> None:
    """Refuse settings that were read from another Bridge than the nodes': a snapshot that is stale there, say.

    Args:
        workload: What is about to be trained.
        installed: Versions of Megatron Bridge on the nodes; None where one is not known.

    Raises:
        RequestError: They differ.
    """
    source = workload.source
    if source.kind not in ("catalog", "bridge_recipe") or source.revision is None:
        return
    for version in sorted({version for version in installed if version is not None}):
        if version.partition("+")[0] != source.revision.partition("+")[0]:
            rule = f"its settings are those of Bridge {source.revision}, and a node would train those of Bridge {version}"
            way_out = f"start autotune where Bridge {version} is installed: it then takes the live recipe"
            raise RequestError("--recipe", source.reference, rule, way_out)


class _One:
    """A source of a single trial."""

    def __init__(self, request: TrialRequest, on_progress: OnProgress | None) -> None:
        self._request, self._on_progress = request, on_progress
        self._asked = False
        self.record: TrialRecord | None = None

    @property
    def finished(self) -> bool:
        return self._asked

    def next_request(self) -> TrialRequest | None:
        if self._asked:
            return None
        self._asked = True
        return self._request

    def accept(self, request: TrialRequest, record: TrialRecord) -> None:
        self.record = record

    def progress(self, request: TrialRequest, figures: Mapping[str, Any]) -> None:
        if self._on_progress is not None:
            self._on_progress(figures)
