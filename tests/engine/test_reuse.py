"""Earlier runs as evidence, and a run whose revisions changed since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_space import World, settings, space

from autotune.boundary.boundary import Boundary
from autotune.engine.prepare import workload_digest
from autotune.engine.reuse import read_earlier, set_aside, stale
from autotune.engine.run_directory import RunDirectory
from autotune.errors import RequestError
from autotune.records import load_json
from autotune.search.evidence import Evidence
from autotune.search.planner import Planner
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload


@pytest.fixture(scope="module")
def workload() -> Workload:
    return resolve_workload("nemotron3nano", overrides=())


def earlier_run(path: Path, workload: Workload, world: World) -> None:
    """A finished run of two launches, one of which passed."""
    digest = workload_digest(workload)
    directory = RunDirectory(path, {"recipe": "toy", "workload": digest, "backend": "gpu"}, resume=False)
    directory.write("workload.json", workload)
    for number, boundary in enumerate([Boundary.selective(), Boundary.selective(["moe"])]):
        directory.open_trial(number, boundary)
        directory.save(world.run(boundary, number))
    directory.write("recommendation.json", {"boundary": Boundary.selective(["moe"]).to_fields()})
    directory.close()


def test_the_same_workload_and_revisions_count_fully_and_are_not_launched_again(tmp_path: Path, workload: Workload) -> None:
    world = World(limit_gb=70.0)
    earlier_run(tmp_path / "run", workload, world)
    earlier = read_earlier(tmp_path / "run", workload, workload_digest(workload), "gpu")
    assert [r.number for r in earlier.full] == [-1, -2] and earlier.prior == ()
    assert earlier.note.startswith("2 trials of ") and earlier.note.endswith("count fully: same workload and revisions")
    evidence = Evidence(space(), settings(70.0))
    planner = Planner(space(), evidence, world.lacks, draws=200)
    for record in earlier.full:
        planner.tell(record)
    assert evidence.records == () and evidence.best() == Boundary.selective(["moe"])
    asked = {p.boundary for p in planner.ask(8) if p.repeat_reason is None}
    assert not asked & {Boundary.selective(), Boundary.selective(["moe"])}


def test_a_survey_launch_is_not_taken_over(tmp_path: Path, workload: Workload) -> None:
    world = World(limit_gb=70.0)
    earlier_run(tmp_path / "run", workload, world)
    directory = RunDirectory(tmp_path / "run", load_json(tmp_path / "run" / "request.json", dict), resume=True)
    directory.open_trial(2, Boundary.full("uniform", 1))
    directory.save(replace(world.run(Boundary.full("uniform", 1), 2), kind="switched"))
    directory.close()
    earlier = read_earlier(tmp_path / "run", workload, workload_digest(workload), "gpu")
    assert [r.boundary.key for r in earlier.full] == ["[]", "moe"]


def test_other_revisions_are_prior_only_and_the_old_answer_comes_first(tmp_path: Path, workload: Workload) -> None:
    world = World(limit_gb=70.0)
    earlier_run(tmp_path / "run", workload, world)
    now = replace(workload, stack=replace(workload.stack, megatron_core="9.9.9"))
    assert stale(tmp_path / "run", workload) == []
    assert stale(tmp_path / "run", now) == [f"megatron_core {workload.stack.megatron_core}, now 9.9.9"]
    kept = set_aside(tmp_path / "run")
    assert kept.name == "run.stale.1" and not (tmp_path / "run").exists()
    earlier = read_earlier(kept, now, workload_digest(now), "gpu")
    assert earlier.full == () and len(earlier.prior) == 2 and "prior only: megatron_core" in earlier.note
    evidence = Evidence(space(), settings(70.0))
    planner = Planner(space(), evidence, world.lacks, draws=200, first=earlier.answer)
    assert planner.posterior is not None
    before = planner.posterior.peak(Boundary.selective(["moe"]))[1]
    for record in earlier.prior:
        planner.hint(record)
    assert planner.posterior.peak(Boundary.selective(["moe"]))[1] < before and not evidence.verdicts
    (proposal,) = planner.ask(1)
    assert proposal.boundary == Boundary.selective(["moe"]) and "validated again" in proposal.why


def test_another_workload_or_backend_is_said_and_a_folder_without_a_run_refused(tmp_path: Path, workload: Workload) -> None:
    earlier_run(tmp_path / "run", workload, World(limit_gb=70.0))
    note = read_earlier(tmp_path / "run", workload, workload_digest(workload), "cpu").note
    assert note.endswith("count as prior only: trials on gpu, now cpu")
    other = replace(workload, name="other", parallel=replace(workload.parallel, world_size=workload.parallel.world_size * 2))
    assert "another workload" in read_earlier(tmp_path / "run", other, workload_digest(other), "gpu").note
    assert stale(tmp_path / "run", other) == []
    with pytest.raises(RequestError, match="holds no run"):
        read_earlier(tmp_path, workload, workload_digest(workload), "gpu")
