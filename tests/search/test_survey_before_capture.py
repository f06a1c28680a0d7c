"""A survey ends before graphs are captured: what comes after it is the ledger's, with its errors, until a launch tells."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from test_survey_in_the_search import surveyed, switched
from toy_space import GB, World, predict, settings, space

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import PhasePeak, Prediction
from autotune.ledger.spread import standard_deviation
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence
from autotune.search.held import ALLOCATOR_GAP, held_prediction
from autotune.search.planner import Planner
from autotune.search.survey import SurveyFindings, candidates_after_survey

CONTROL, BASE = Boundary.selective(), Boundary.selective(space()[63].boundary.modules)


def captured(prediction: Prediction, wall_gb: float, pool_gb: float) -> Prediction:
    """With the capture of graphs: the states, and pools that no label here lowers."""
    terms = {"weights": round((wall_gb - pool_gb) * GB), "graph_pool": round(pool_gb * GB)}
    peak = sum(terms.values())
    point = PhasePeak(iteration="after_capture", phase="after_capture", peak_bytes=peak, terms=terms)
    (stage,) = prediction.stages
    higher = max(prediction.peak_bytes, peak)
    stage = replace(stage, phases=(*stage.phases, point), peak_bytes=higher)
    return replace(prediction, stages=(stage,), peak_bytes=higher, peak_p95_bytes=round(higher * 1.03))


def captured_space(wall_gb: float, pool_gb: float) -> list[Candidate]:
    """Without full recompute, which is not valid beside captured scopes."""
    kept = [c for c in space() if c.boundary.granularity == "selective"]
    return [replace(c, prediction=captured(predict(c.boundary), wall_gb, pool_gb)) for c in kept]


@dataclass
class CapturingWorld(World):
    """A toy world whose fresh launches capture graphs."""

    wall_gb: float = 0.0

    def peak_bytes(self, boundary: Boundary) -> int:
        return max(super().peak_bytes(boundary), round(self.wall_gb * GB))

    def eager_bytes(self, boundary: Boundary) -> int:
        return super().peak_bytes(boundary)


def findings_of(world: World) -> SurveyFindings:
    eager = World(limit_gb=200.0, seed=world.seed)
    kept = tuple(s for s in surveyed(eager) if s.boundary.granularity == "selective")
    return SurveyFindings(base=BASE, settings=kept, switched=(switched(Boundary.selective(["moe"]), eager),))


def test_peaks_after_capture_stay_the_ledgers_and_the_prediction_says_so() -> None:
    after = {
        c.boundary: c.prediction for c in candidates_after_survey(captured_space(66.0, 8.0), findings_of(World(limit_gb=70)))
    }
    narrow, wide = after[CONTROL], after[BASE]
    assert narrow is not None and wide is not None
    assert narrow.phase == "loss" and narrow.peak_bytes > 66 * GB  # eager steps set it
    assert (wide.phase, wide.peak_bytes) == ("after_capture", 66 * GB)
    assert narrow.notes == wide.notes == ("surveyed", "after capture: predicted by the ledger")
    deviation = standard_deviation({"weights": 58 * GB, "graph_pool": 8 * GB}, balanced=False)
    assert wide.peak_p95_bytes == pytest.approx(66 * GB + 1.645 * deviation, rel=1e-4)
    by_phase = {p.phase: p.terms for p in wide.stages[0].phases}
    assert set(by_phase["loss"]) == {"surveyed"} and set(by_phase["after_capture"]) == {"weights", "graph_pool"}


def test_reserved_bytes_after_capture_are_held_once() -> None:
    candidates = [
        replace(c, prediction=held_prediction(replace(c.prediction, graph_pool_bytes=2 * GB), "reserved"))
        for c in captured_space(66.0, 8.0)
        if c.prediction is not None
    ]
    after = candidates_after_survey(candidates, findings_of(World(limit_gb=70)), metric="reserved")
    wide = next(c.prediction for c in after if c.boundary == BASE)
    assert wide is not None and wide.peak_bytes == pytest.approx(66 * GB * (1 + ALLOCATOR_GAP) + 2 * GB, rel=1e-6)


def test_a_survey_far_below_the_wall_says_nothing_of_the_wall() -> None:
    world = CapturingWorld(limit_gb=75.0, wall_gb=66.0)
    candidates = captured_space(66.0, 8.0)
    planner = Planner(candidates, Evidence(candidates, settings(75.0)), world.lacks, draws=1500, survey=True)
    (proposal,) = planner.ask(1)
    assert proposal.survey and proposal.boundary == BASE
    eager = world.eager_bytes(BASE)
    assert eager < 61 * GB
    launch = world.run(BASE, 0)
    ranks = {rank: replace(of_rank, allocated_peak_bytes=eager) for rank, of_rank in launch.ranks.items()}
    planner.tell_survey(replace(launch, kind="switched", ranks=ranks, step_ms=()), findings_of(world))
    assert planner.posterior is not None
    mean, deviation = planner.posterior.peak(BASE)
    terms = {"weights": 58 * GB, "graph_pool": 8 * GB}
    assert mean == pytest.approx(66 * GB, rel=0.01)
    assert 0.4 * standard_deviation(terms, balanced=False) < deviation < 3 * standard_deviation(terms, balanced=False)
    # Where eager steps set the peak it is known as well as any surveyed one.
    assert planner.posterior.peak(CONTROL)[1] < 0.006 * planner.posterior.peak(CONTROL)[0]


@pytest.mark.parametrize(("limit_gb", "wall_gb"), [(76.0, 66.0), (70.0, 66.0), (66.5, 65.0), (63.5, 65.0)])
def test_the_answer_is_right_however_high_the_wall_turns_out(limit_gb: float, wall_gb: float) -> None:
    """The ledger puts the wall at 65 GB, give or take; a fresh launch alone shows it."""
    world = CapturingWorld(limit_gb=limit_gb, wall_gb=wall_gb, seed=2)
    candidates = captured_space(65.0, 8.0)
    evidence = Evidence(candidates, settings(limit_gb))
    planner = Planner(candidates, evidence, world.lacks, draws=600, survey=True)
    for number in range(20):
        if planner.done() is not None:
            break
        (proposal,) = planner.ask(1)
        if proposal.survey:
            eager = CapturingWorld(limit_gb=limit_gb, seed=2)
            planner.tell_survey(replace(eager.run(proposal.boundary, number), kind="switched", step_ms=()), findings_of(eager))
        else:
            planner.tell(world.run(proposal.boundary, number, proposal.repeat_reason))
    else:
        raise AssertionError("never done")
    best, optimum = evidence.best(), world.optimum_ms(candidates)
    if optimum is None:
        assert best is None
    else:
        assert best is not None and world.step(best) <= optimum * 1.005
        assert len(evidence.records) <= 4
