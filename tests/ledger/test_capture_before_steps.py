"""Graphs that are captured before the first or the second step: what ran eagerly by then, and what the capture found."""

from __future__ import annotations

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import Prediction


def predicted(warmup: int, impl: str = "transformer_engine") -> Prediction:
    graphs = {"cuda_graph_impl": impl, "cuda_graph_modules": ("attn",), "cuda_graph_warmup_steps": warmup}
    return Ledger(small(features=graphs)).predict(Boundary.selective())


def iterations(prediction: Prediction) -> set[str]:
    return {phase.iteration for stage in prediction.stages for phase in stage.phases}


def test_an_eager_step_with_optimizer_state_is_the_second() -> None:
    assert iterations(predicted(3)) == iterations(predicted(2)) == {"first", "steady", "after_capture"}
    assert iterations(predicted(1)) == {"first", "after_capture"}
    assert iterations(predicted(0)) == {"after_capture"}
    assert iterations(predicted(3, "local")) == {"first", "after_capture"}  # recorded in the first step, whatever the setting


def test_the_fewer_eager_steps_the_lower_the_peak() -> None:
    peaks = [predicted(steps).peak_bytes for steps in (0, 1, 2, 3)]
    assert peaks == sorted(peaks)
    assert peaks[1] < peaks[2] == peaks[3]  # a step after capture may hold as much as a first one


def test_before_the_first_step_the_capture_finds_no_optimizer_state() -> None:
    def capture(warmup: int) -> dict[str, int]:
        (stage,) = predicted(warmup).stages
        return next(dict(phase.terms) for phase in stage.phases if phase.phase == "after_capture")

    early, late = capture(0), capture(1)
    assert early["optimizer_state"] < late["optimizer_state"]
    assert early["graph_pool"] == late["graph_pool"]


@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_tables_and_details_agree(warmup: int) -> None:
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",), "cuda_graph_warmup_steps": warmup}
    workload = small(features=graphs)
    for boundary in (Boundary.selective(), Boundary.selective(["mlp"])):
        (table,) = Ledger(workload).predict_all([boundary])
        assert table.peak_bytes == Ledger(workload).predict(boundary).peak_bytes
