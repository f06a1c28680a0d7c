"""Ray Tune drives the trials of a run: a Searcher over its study, coordinators on slot groups, each result taken once."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.search import Searcher

from autotune.cluster.coordinator import Order, coordinate
from autotune.cluster.gpu_memory import UNKNOWN_PID
from autotune.cluster.group import SlotGroup
from autotune.cluster.ranks import NO_ANSWER
from autotune.cluster.rays_words import first_line
from autotune.errors import StoppedError
from autotune.records import dump_json, load_json, write_atomically
from autotune.trial.attend import Limits
from autotune.trial.backends.base import TrialRequest
from autotune.trial.lines import LineFollower
from autotune.trial.record import Failure, TrialRecord
from autotune.trial.spec import TrialSpec

_HEAD = {"node:__internal_head__": 0.001}
"""A coordinator takes no CPU and no GPU; it sits on Ray's head node, whose loss ends the run anyway."""
_FINISHED: str = Searcher.FINISHED
LOST_CLASSES = frozenset({"node_lost", "infrastructure"})


class Source(Protocol):
    """Where trials come from and results go: the run's study with its sampler."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will be asked for."""
        ...

    def next_request(self) -> TrialRequest | None:
        """The next trial; None while running ones have to end first, or when ``finished``."""
        ...

    def accept(self, request: TrialRequest, record: TrialRecord) -> None:
        """Take the result of a trial."""
        ...

    def progress(self, request: TrialRequest, figures: Mapping[str, Any]) -> None:
        """Take figures of a running trial."""
        ...


class _FromStudy(Searcher):  # type: ignore[misc]
    """Asks the study for the next boundary, and tells it each result."""

    def __init__(self, driver: TuneDriver, source: Source) -> None:
        super().__init__()
        self._driver, self._source = driver, source

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its searcher for ``Tuner.restore``; a resumed run here is a new Tuner over the study's journal."""
        return {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return self._driver.suggest(self._source, trial_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._driver.complete(self._source, trial_id, failed=error or not result)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing, likewise."""


class _Watch(tune.Callback):  # type: ignore[misc]
    """Looks at the lines of running ranks whenever Tune's loop turns."""

    def __init__(self, driver: TuneDriver, source: Source) -> None:
        self._driver, self._source = driver, source

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def on_step_begin(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        self._driver.watch(self._source)


@dataclass
class _Running:
    request: TrialRequest
    group: int
    followers: list[LineFollower]
    highest_bytes: int = 0
    step: int = 0
    phases: set[str] = field(default_factory=set)
    step_s: list[float] = field(default_factory=list)

    def note(self, rank: int, line: Mapping[str, Any]) -> dict[str, Any] | None:
        """A line of one rank as figures of the trial; None where it says nothing new of it."""
        before = (self.step, self.highest_bytes)
        self.highest_bytes = max([self.highest_bytes, *(line.get("phases") or {}).values()])
        self.step = max(self.step, line.get("step") or 0)
        phase = line.get("phase", line["event"])
        first = self.step <= 1 and line["event"] == "phase" and phase not in self.phases
        self.phases.add(phase)
        if line["event"] == "iteration":
            self.step_s.append(line["host_ms"] / 1e3)
        if not first and before == (self.step, self.highest_bytes):
            return None
        figures = {"rank": rank, "step": self.step, "steps": self.request.steps, "peak_bytes": self.highest_bytes}
        figures["phase"] = phase if line["event"] == "phase" else "between_steps"
        if self.step_s:
            # The first step makes the optimizer state and compiles: later ones are the better guess.
            figures["left_s"] = self.step_s[-1] * max(0, self.request.steps - self.step)
        return figures


@dataclass(kw_only=True)
class TuneDriver:
    """Drives one run.

    Args:
        groups: Slot groups, one trial each at a time.
        make_group: Makes a new one where a node was lost.
        make_spec: The spec of a request.
        folder: Where Tune may keep its own state while it runs; nothing in it outlives the run.
        callbacks: Tune callbacks that are told of every trial too.
    """

    groups: list[SlotGroup]
    make_group: Callable[[], SlotGroup]
    make_spec: Callable[[TrialRequest], TrialSpec]
    limits: Limits
    folder: Path
    callbacks: Sequence[Any] = ()
    _running: dict[str, _Running] = field(default_factory=dict)
    _error: BaseException | None = None
    _broken: set[int] = field(default_factory=set)
    _gone: set[int] = field(default_factory=set)

    def drive(self, source: Source) -> None:
        """Run trials until the source is finished.

        Raises:
            StoppedError: The cluster was lost, or processes of a trial would not end.
        """
        storage = self.folder / ".tune"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tuner = tune.Tuner(
                    tune.with_resources(coordinate, tune.PlacementGroupFactory([_HEAD])),
                    tune_config=tune.TuneConfig(search_alg=_FromStudy(self, source), num_samples=-1, reuse_actors=True),
                    run_config=tune.RunConfig(
                        name="trials",
                        storage_path=str(storage.resolve()),
                        callbacks=[_Watch(self, source), *self.callbacks],
                        verbose=0,
                        failure_config=tune.FailureConfig(max_failures=0, fail_fast=False),
                    ),
                )
                tuner.fit()
        except ray.exceptions.RayError as error:
            if self._error is not None:
                raise self._error from error
            raise StoppedError(f"the Ray cluster was lost ({first_line(error)}); start it and add --resume") from error
        finally:
            shutil.rmtree(storage, ignore_errors=True)
        if self._error is not None:
            raise self._error

    def suggest(self, source: Source, trial_id: str) -> dict[str, Any] | str | None:
        """What Tune runs next. Nothing is raised through Tune, which would make an error of its own of it."""
        try:
            if self._error is not None or (source.finished and not self._running):
                return _FINISHED
            number = self._free_group()
            if number is None:
                return None
            request = source.next_request()
            if request is None:
                return _FINISHED if source.finished and not self._running else None
            return self._start(request, trial_id, number)
        except (ray.exceptions.RayError, ConnectionError) as error:
            self._error = StoppedError(f"the Ray cluster was lost ({first_line(error)}); start it and add --resume")
            return _FINISHED
        except BaseException as error:
            self._error = error
            return _FINISHED

    def _free_group(self) -> int | None:
        """A group that runs nothing and whose slots all live; None where a running trial has to end first.

        Raises:
            StoppedError: None is left: nodes were lost, and what remains of the cluster is too small or busy.
        """
        busy = {running.group for running in self._running.values()}
        for number, group in enumerate(self.groups):
            if number in busy or number in self._gone:
                continue
            if number not in self._broken:
                return number
            group.close()
            try:
                self.groups[number] = self.make_group()
            except StoppedError:
                self._gone.add(number)
                if len(self._gone) == len(self.groups):
                    raise
                continue  # The others go on without it.
            self._broken.discard(number)
            return number
        return None

    def _start(self, request: TrialRequest, trial_id: str, number: int) -> dict[str, Any]:
        group = self.groups[number]
        spec = self.make_spec(request)
        spec.save()
        order = Order(
            spec=spec,
            slots=tuple(group.names),
            places=tuple(group.places),
            limits=self.limits,
            workload_digest=request.workload_digest,
            repeat_reason=request.repeat_reason,
        )
        path = Path(spec.folder) / "order.json"
        write_atomically(path, dump_json(order))
        followers = [LineFollower(spec.rank_file(rank)) for rank in range(spec.world_size)]
        self._running[trial_id] = _Running(request=request, group=number, followers=followers)
        return {"number": request.number, "boundary": request.boundary.key, "order": str(path.resolve())}

    def complete(self, source: Source, trial_id: str, *, failed: bool) -> None:
        """Take the result of a trial that Tune has ended."""
        running = self._running.pop(trial_id, None)
        if running is None:
            return
        try:
            record = self._record(running, failed=failed)
            if record.failure is not None and record.failure.failure_class in LOST_CLASSES:
                self._broken.add(running.group)
            source.accept(running.request, record)
            left = record.details.get("left_pids")
            if left:
                raise StoppedError(_left_behind(record.number, left))
        except BaseException as error:
            self._error = self._error or error

    def _record(self, running: _Running, *, failed: bool) -> TrialRecord:
        """What the coordinator wrote; where it died before that, an infrastructure failure."""
        request = running.request
        path = Path(str(request.folder)) / "record.json"
        if path.exists():
            return load_json(path, TrialRecord)
        self._broken.add(running.group)
        return TrialRecord(
            number=request.number,
            kind="measured" if request.survey is None else "switched",
            boundary=request.boundary,
            workload_digest=request.workload_digest,
            world_size=request.world_size,
            completed=False,
            ranks={},
            failure=Failure(
                failure_class="infrastructure",
                stage="launch",
                message="the coordinator of the trial died" if failed else "the coordinator of the trial wrote no record",
            ),
            repeat_reason=request.repeat_reason,
        )

    def watch(self, source: Source) -> None:
        """Tell the source what running ranks have written, where it is news."""
        for running in self._running.values():
            for rank, follower in enumerate(running.followers):
                for line in follower.read():
                    figures = running.note(rank, line)
                    if figures is not None:
                        source.progress(running.request, figures)


def _left_behind(number: int, pids: Sequence[int]) -> str:
    if NO_ANSWER in pids:
        return f"a rank slot has not said whether the processes of trial {number} are gone; look at its node, then --resume"
    if list(pids) == [UNKNOWN_PID]:
        what = f"GPU memory is not back at its level before trial {number}, and no process that holds it can be seen from here"
        return f"{what}; end it on its node (nvidia-smi), then --resume"
    named = ", ".join(str(pid) for pid in pids)
    return f"processes of trial {number} would not end, or hold its GPU memory (pids {named}); end them, then --resume"
