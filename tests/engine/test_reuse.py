"""Earlier runs as evidence, and a run whose revisions changed since."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from toy_space import World, settings, space
from toy_survey import report_of

from autotune.boundary.boundary import Boundary
from autotune.engine.prepare import workload_digest
from autotune.engine.reuse import read_earlier, set_aside, stale, usable_survey
from autotune.engine.run_directory import RunDirectory
from autotune.engine.survey_stage import findings_of
from autotune.errors import RequestError
from autotune.records import dump_json, load_json
from autotune.search.evidence import Evidence
from autotune.search.planner import Planner
from autotune.trial.record import Failure
from autotune.trial.survey.report import Guard, SurveyReport
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

FULL = Boundary.full("uniform", 1)


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


def test_the_record_of_a_survey_launch_is_none_of_its_base(tmp_path: Path, workload: Workload) -> None:
    world = World(limit_gb=70.0)
    earlier_run(tmp_path / "run", workload, world)
    directory = RunDirectory(tmp_path / "run", load_json(tmp_path / "run" / "request.json", dict), resume=True)
    directory.open_trial(2, Boundary.full("uniform", 1))
    directory.save(replace(world.run(Boundary.full("uniform", 1), 2), kind="switched"))
    directory.close()
    earlier = read_earlier(tmp_path / "run", workload, workload_digest(workload), "gpu")
    assert [r.boundary.key for r in earlier.full] == ["[]", "moe"]


def surveyed_run(path: Path, workload: Workload, world: World, report: SurveyReport) -> None:
    """A run whose third trial was a survey; it ended in the setting that was being tried, if there is one."""
    earlier_run(path, workload, world)
    directory = RunDirectory(path, load_json(path / "request.json", dict), resume=True)
    folder = directory.open_trial(2, FULL)
    record = replace(world.run(FULL, 2), kind="switched", step_ms=())
    if report.trying is not None:
        failure = Failure(failure_class="oom_capacity", stage="loss", rank=0, step=8)
        record = replace(record, completed=False, failure=failure)
    directory.save(record)
    (folder / "survey.json").write_text(dump_json(report))
    directory.close()


def test_the_survey_of_a_matching_run_is_taken_in_place_of_a_launch(tmp_path: Path, workload: Workload) -> None:
    world = World(limit_gb=66.0, seed=4, width=0.4)
    surveyed_run(tmp_path / "run", workload, world, report_of(world, limit_gb=66.0))
    earlier = read_earlier(tmp_path / "run", workload, workload_digest(workload), "gpu")
    boundaries = [c.boundary for c in space()]
    taken = usable_survey([earlier], boundaries, 66 * 10**9)
    assert taken is not None and taken[0].number == -3 and taken[0].boundary == FULL
    evidence = Evidence(space(), settings(66.0))
    planner = Planner(space(), evidence, world.lacks, draws=300, survey=True)
    for record in earlier.full:
        planner.tell(record)
    planner.tell_survey(taken[0], findings_of(taken[1], taken[0], to_the_bit=True))
    world.launches.clear()
    for number in range(20):
        if planner.done() is not None:
            break
        (proposal,) = planner.ask(1)
        assert not proposal.survey
        planner.tell(world.run(proposal.boundary, number, proposal.repeat_reason))
    best, optimum = evidence.best(), world.optimum_ms(space())
    assert best is not None and optimum is not None and world.step(best) <= optimum * 1.002
    assert len(world.launches) <= 2 and all(r.number >= 0 for r in evidence.records)


def test_a_survey_of_other_revisions_of_fewer_settings_or_that_guards_refuse_is_not(tmp_path: Path, workload: Workload) -> None:
    world, boundaries = World(limit_gb=66.0), [c.boundary for c in space()]
    digest = workload_digest(workload)
    now = replace(workload, stack=replace(workload.stack, megatron_core="9.9.9"))
    guard = Guard(name="closing_balance", passed=False, detail="3 % of a layer is not explained")
    whole = report_of(world)
    for name, report, later in [
        ("revisions", whole, now),
        ("fewer", replace(whole, predicted=whole.predicted[1:]), workload),
        ("guard", replace(whole, guards=(guard,)), workload),
    ]:
        surveyed_run(tmp_path / name, workload, world, report)
        earlier = read_earlier(tmp_path / name, later, workload_digest(later) if later is now else digest, "gpu")
        assert usable_survey([earlier], boundaries, 66 * 10**9) is None, name


@pytest.mark.parametrize(("limit_gb", "known"), [(70.0, True), (60.0, True), (80.0, False)])
def test_what_ran_out_of_memory_under_a_lower_limit_says_nothing(
    tmp_path: Path, workload: Workload, limit_gb: float, known: bool
) -> None:
    world, over = World(limit_gb=70.0), Boundary.selective(["moe_act"])
    surveyed_run(tmp_path / "run", workload, world, report_of(world, limit_gb=70.0, over=over))
    earlier = read_earlier(tmp_path / "run", workload, workload_digest(workload), "gpu")
    taken = usable_survey([earlier], [c.boundary for c in space()], round(limit_gb * 10**9))
    assert taken is not None
    failed = [r.boundary for r in findings_of(taken[1], taken[0], to_the_bit=True).switched if r.failure is not None]
    assert failed == ([over] if known else [])


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
