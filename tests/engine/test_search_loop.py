"""A run that is killed at any point: nothing finished is repeated, nothing is lost, the answer is the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_space import World, settings, space
from toy_survey import report_of

from autotune.boundary.boundary import Boundary
from autotune.engine.events import ignore
from autotune.engine.run_directory import RunDirectory
from autotune.engine.search_loop import SearchLoop
from autotune.errors import RequestError
from autotune.records import dump_json
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.planner import Planner
from autotune.search.stop_rule import JITTER
from autotune.search.study import StudyLog
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.record import Kind, TrialRecord
from autotune.trial.survey.plan import SurveyPlan


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the code under test may catch it."""


class WorldBackend:
    """The toy world as a backend; counts how often a boundary was run to its end."""

    name, to_the_bit, free = "toy", False, False
    kind: Kind = "measured"

    def __init__(self, world: World) -> None:
        self.world = world

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        return None

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        record = self.world.run(request.boundary, request.number, request.repeat_reason)
        if request.survey is None:
            return record
        assert request.folder is not None
        (request.folder / "survey.json").write_text(dump_json(report_of(self.world)))
        return replace(record, kind="switched", step_ms=())

    def close(self) -> None:
        pass


def sitting(path: Path, sampler: str, world: World, resume: bool) -> Evidence:
    candidates = space(2 if sampler == "exhaustive" else 6)
    evidence = Evidence(candidates, settings(world.limit_gb))
    directory = RunDirectory(path, {"recipe": "toy"}, resume=resume)
    try:
        chosen = (
            ExhaustiveSampler(candidates, evidence, world.lacks)
            if sampler == "exhaustive"
            else Planner(
                candidates, evidence, world.lacks, draws=100, jitter=max(world.run_noise, JITTER), survey=sampler == "survey"
            )
        )
        study = StudyLog(directory.journal, [c.boundary for c in candidates])
        loop = SearchLoop(
            backend=WorldBackend(world),
            sampler=chosen,
            evidence=evidence,
            study=study,
            directory=directory,
            workload_digest="toy",
            world_size=2,
            on_event=ignore,
            survey=SurveyPlan(labels=("moe",)) if sampler == "survey" else None,
        )
        loop.run()
    finally:
        directory.close()
    return evidence


def killing_at(count: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Every durable write ends in fsync: die at the ``count``-th. Returns the counter.

    The real fsync is left out: it matters to a power cut, not to a kill, and is slow on a shared disk.
    """
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == count:
            raise Killed

    monkeypatch.setattr(os, "fsync", fsync)
    return lambda: calls


@pytest.mark.parametrize("sampler", ["exhaustive", "planner", "survey"])
def test_killed_at_every_write_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str) -> None:
    def world() -> World:
        # The survey's answer is close to the limit where launches scatter: its search has repeats.
        limit_gb = {"exhaustive": 81.0, "planner": 63.0, "survey": 65.0}[sampler]
        return World(limit_gb=limit_gb, seed=5, width=0.4, run_noise=0.006 if sampler == "survey" else 0.0)

    whole_world = world()
    with monkeypatch.context() as patch:
        writes = killing_at(-1, patch)
        whole = sitting(tmp_path / "whole", sampler, whole_world, resume=False)
        total = writes()
    assert total > 30 and (sampler != "survey" or any(r.repeat_reason for r in whole.records))
    for count in range(1, total + 1, {"exhaustive": 5, "planner": 2, "survey": 2}[sampler]):
        path, first, second = tmp_path / f"killed-{count}", world(), world()
        with monkeypatch.context() as patch, pytest.raises(Killed):
            killing_at(count, patch)
            sitting(path, sampler, first, resume=False)
        finished = {int(p.parent.name) for p in path.glob("trials/*/record.json")}
        with monkeypatch.context() as patch:
            killing_at(-1, patch)
            again = sitting(path, sampler, second, resume=(path / "request.json").exists())
        assert again.best() == whole.best()
        assert [r.boundary for r in again.records] == whole_world.launches
        assert len(second.launches) == len(whole_world.launches) - len(finished)
        # A third sitting launches nothing and gives the same answer.
        third = world()
        assert sitting(path, sampler, third, resume=True).best() == whole.best()
        assert third.launches == []


def test_what_a_killed_attempt_left_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", {"recipe": "toy"}, resume=False)
    folder = directory.open_trial(3, Boundary.selective(["moe"]))
    (folder / "stdout.log").write_text("half a line")
    again = directory.open_trial(3, Boundary.selective(["moe"]))
    assert again == folder and not (again / "stdout.log").exists()
    assert (folder.with_name("003.interrupted.1") / "stdout.log").read_text() == "half a line"
    directory.close()


def refused(path: Path, **changes: Any) -> str:
    with pytest.raises(RequestError) as caught:
        RunDirectory(path, {"recipe": changes.get("recipe", "toy")}, resume=changes.get("resume", False))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_directories_that_are_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    directory = RunDirectory(run, {"recipe": "toy"}, resume=False)
    assert "another process works in it" in refused(run, resume=True)
    directory.close()
    assert "holds a run already" in refused(run)
    assert "holds another run: its recipe is 'toy', not 'other'" in refused(run, recipe="other", resume=True)
    (tmp_path / "file").write_text("")
    assert "is a file" in refused(tmp_path / "file")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("")
    assert "holds files but no run" in refused(tmp_path / "full")
    assert "cannot be written" in refused(tmp_path / "file" / "below")
