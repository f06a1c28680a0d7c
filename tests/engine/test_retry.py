"""Infrastructure fails: one retry, then the run stops; resumed after that, it tries again and gets to the same answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from toy_space import World, settings, space

from autotune.boundary.boundary import Boundary
from autotune.engine.events import ignore
from autotune.engine.run_directory import RunDirectory
from autotune.engine.search_loop import SearchLoop
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.planner import Planner
from autotune.search.proposal import Stop
from autotune.search.study import StudyLog
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.record import Failure, Kind, TrialRecord

LIMIT_GB = 81.0


@dataclass
class Cluster:
    """The toy world on nodes that are lost whenever the broken boundary runs, so many times."""

    losses: int
    broken: Boundary = field(default_factory=Boundary.off)
    world: World = field(default_factory=lambda: World(limit_gb=LIMIT_GB, seed=5, width=0.4))
    runs: Counter[Boundary] = field(default_factory=Counter)
    name, to_the_bit, free = "toy", False, False
    kind: Kind = "measured"

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        return None

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        self.runs[request.boundary] += 1
        record = self.world.run(request.boundary, request.number, request.repeat_reason)
        if request.boundary != self.broken or self.losses == 0:
            return record
        self.losses -= 1
        failure = Failure(failure_class="node_lost", stage="launch", rank=0)
        return replace(record, completed=False, ranks={}, step_ms=(), steps_run=0, failure=failure)

    def close(self) -> None:
        pass


def sitting(path: Path, cluster: Cluster, sampler: str, *, resume: bool) -> tuple[Stop, Evidence]:
    candidates = space(2)
    evidence = Evidence(candidates, settings(LIMIT_GB))
    directory = RunDirectory(path, {"recipe": "toy"}, resume=resume)
    try:
        loop = SearchLoop(
            backend=cluster,
            sampler=(
                ExhaustiveSampler(candidates, evidence, cluster.lacks)
                if sampler == "exhaustive"
                else Planner(candidates, evidence, cluster.lacks, draws=200)
            ),
            evidence=evidence,
            study=StudyLog(directory.journal, [c.boundary for c in candidates]),
            directory=directory,
            workload_digest="toy",
            world_size=2,
            on_event=ignore,
        )
        return loop.run(), evidence
    finally:
        directory.close()


@pytest.mark.parametrize("sampler", ["exhaustive", "planner"])
def test_one_retry_is_enough_for_one_loss(tmp_path: Path, sampler: str) -> None:
    whole, right = sitting(tmp_path / "whole", Cluster(losses=0), sampler, resume=False)
    first = right.records[0].boundary
    cluster = Cluster(losses=1, broken=first)
    stop, evidence = sitting(tmp_path / "run", cluster, sampler, resume=False)
    assert (stop.outcome, evidence.best()) == (whole.outcome, right.best())
    assert cluster.runs[first] == 2 and not evidence.verdicts[first].infrastructure
    assert [r.repeat_reason for r in evidence.of(first)] == [None, "infrastructure"]


@pytest.mark.parametrize("sampler", ["exhaustive", "planner"])
def test_a_second_loss_stops_the_run_and_a_resumed_one_tries_again(tmp_path: Path, sampler: str) -> None:
    _, right = sitting(tmp_path / "whole", Cluster(losses=0), sampler, resume=False)
    first = right.records[0].boundary
    cluster = Cluster(losses=3, broken=first)
    stop, evidence = sitting(tmp_path / "run", cluster, sampler, resume=False)
    assert (stop.outcome, stop.text, stop.open_boundaries) == ("open", "a retry failed by infrastructure too", (first,))
    assert cluster.runs[first] == 2 and evidence.verdicts[first].infrastructure
    before = dict(cluster.runs)

    stop, _ = sitting(tmp_path / "run", cluster, sampler, resume=True)  # still broken: one try of this sitting, then it stops
    assert stop.outcome == "open" and cluster.runs[first] == 3

    stop, evidence = sitting(tmp_path / "run", cluster, sampler, resume=True)  # mended
    assert stop.outcome == "answer" and cluster.runs[first] == 4
    assert evidence.best() == right.best() and not evidence.verdicts[first].infrastructure
    assert all(cluster.runs[boundary] == count for boundary, count in before.items() if boundary != first)
