"""The study: constraints with signs, parameters both ways, and a journal that other tools can open."""

from __future__ import annotations

import math
from pathlib import Path

import optuna
import pytest
from toy_space import GB, World, boundaries, settings, space

from autotune.boundary.boundary import Boundary
from autotune.search.evidence import Evidence
from autotune.search.proposal import Proposal
from autotune.search.study import STUDY_NAME, StudyLog, constraints, distributions, parameters
from autotune.trial.record import Failure, TrialRecord


def told(log: StudyLog, evidence: Evidence, record: TrialRecord) -> None:
    number = log.begin(Proposal(boundary=record.boundary, why="test"))
    assert number == record.number
    log.finish(record, evidence.add(record), evidence, place=f"trials/{number:03d}/record.json")


def test_out_of_memory_is_complete_with_a_positive_finite_violation(tmp_path: Path) -> None:
    world, candidates = World(limit_gb=60.0), space()
    evidence = Evidence(candidates, settings(60.0))
    log = StudyLog(tmp_path / "study.journal", boundaries())
    told(log, evidence, world.run(Boundary.selective(), 0))
    told(log, evidence, world.run(Boundary.full("uniform", 1), 1))

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal")))
    first, second = optuna.load_study(study_name=STUDY_NAME, storage=storage).trials
    assert first.state == second.state == optuna.trial.TrialState.COMPLETE
    assert 0 < first.constraints["memory"] < math.inf and second.constraints["memory"] <= 0
    assert first.value is not None and math.isfinite(first.value)
    assert second.user_attrs["result"]["verdict"] == "pass" and second.user_attrs["result"]["record"] == "trials/001/record.json"
    assert second.params["granularity"] == "full" and second.params["full"] == "full/uniform/1"
    assert second.value == pytest.approx(world.step(Boundary.full("uniform", 1)))


@pytest.mark.parametrize(("failure", "ranks"), [("oom_capacity", False), ("oom_fragmentation", True), ("hang", True)])
def test_every_failure_is_infeasible_with_finite_numbers(failure: str, ranks: bool) -> None:
    run = World(limit_gb=90.0).run(Boundary.selective(), 0)
    failed = TrialRecord(
        number=0, kind="measured", boundary=run.boundary, workload_digest="toy", world_size=2, completed=False,
        ranks=run.ranks if ranks else {}, failure=Failure(failure_class=failure, stage="backward"),
    )  # fmt: skip
    evidence = Evidence(space(), settings(90.0))
    values = constraints(failed, evidence.add(failed), evidence)
    assert max(values.values()) > 0 and all(math.isfinite(v) for v in values.values())


def test_parameters_name_every_boundary_once() -> None:
    known = distributions(boundaries())
    seen = {tuple(sorted(parameters(b, known).items())) for b in boundaries()}
    assert len(seen) == len(boundaries())
    assert all(known[name].to_internal_repr(value) >= 0 for b in boundaries() for name, value in parameters(b, known).items())


def test_a_cut_last_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    log = StudyLog(path, boundaries())
    log.begin(Proposal(boundary=Boundary.selective(["moe"]), why="first"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"op_code": 4, "work')
    again = StudyLog(path, boundaries())
    assert path.read_bytes()[: len(whole)] == whole
    (left,) = again.unfinished()
    assert (left.number, left.proposal.boundary, left.proposal.why) == (0, Boundary.selective(["moe"]), "first")


def test_telling_a_result_twice_changes_nothing(tmp_path: Path) -> None:
    world = World(limit_gb=60.0)
    evidence = Evidence(space(), settings(60.0))
    log = StudyLog(tmp_path / "study.journal", boundaries())
    record = world.run(Boundary.full("uniform", 1), 0)
    told(log, evidence, record)
    before = (tmp_path / "study.journal").read_bytes()
    log.finish(record, evidence.verdicts[record.boundary], evidence, place="x")
    assert (tmp_path / "study.journal").read_bytes() == before
    assert record.ranks[0].allocated_peak_bytes < 60 * GB
