"""A recipe with captured scopes from request to answer: the survey in eager steps, then fresh launches; capture itself is absent.

A CPU has no CUDA graphs: the survey runs on the workload as it is, and ends before Megatron would capture; the launches after it
run the same workload without graphs, so their peaks are those of eager steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.backends import Choice
from autotune.engine.events import Event
from autotune.engine.prepare import prepare
from autotune.engine.request import Request
from autotune.engine.run import search
from autotune.records import load_json
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import Kind, TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.launch import read_report
from autotune.workload.workload import Workload

pytestmark = pytest.mark.slow
OVERRIDES = (
    "world_size=1", "model.expert_model_parallel_size=1", "train.global_batch_size=2",
    "model.cuda_graph_impl=transformer_engine", "model.cuda_graph_modules=[attn,mamba]",
)  # fmt: skip


class WithoutCapture:
    """Launches on this machine's CPU, one at a time."""

    name, to_the_bit, free = "cpu", True, False
    kind: Kind = "measured"

    def __init__(self, workload: Workload, zygote: Zygote) -> None:
        self._zygote = zygote
        self._captured = workload
        plain = replace(workload.features, cuda_graph_impl="none", cuda_graph_modules=())
        self._plain = replace(workload, features=plain)

    def lacks(self, boundary: object, run_index: int) -> str | None:
        return None

    def drive(self, source: Any, folder: Path) -> None:
        while (request := source.next_request()) is not None:
            source.accept(request, self.run(request))

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        spec = TrialSpec(
            number=request.number, workload=self._plain if request.survey is None else self._captured,
            boundary=request.boundary, world_size=1, steps=request.steps, backend="cpu", capacity_bytes=request.limit_bytes,
            folder=str(request.folder), survey=request.survey,
        )  # fmt: skip
        return replace(run_trial(spec, zygote=self._zygote), workload_digest=request.workload_digest)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    pytest.importorskip("megatron.core")
    made = Zygote("cpu", log=tmp_path_factory.mktemp("zygote") / "log")
    yield made
    made.close()


def test_survey_of_captured_scopes_and_the_launches_after_it(tmp_path: Path, zygote: Zygote) -> None:
    request = Request(recipe="nemotron_tiny", mem_target_bytes=52_500_000, overrides=OVERRIDES, out=tmp_path, backend="cpu")
    prepared = prepare(request, variant="stand_in")
    told: list[Event] = []
    answer = search(request, prepared, WithoutCapture(prepared.workload, zygote), Choice(name="cpu", why="a test"), told.append)
    assert (answer.verdict, answer.exit_status) == ("pass", 0), answer.verdict_reason
    assert any(event.text.startswith("core_attn is left out of the survey: core_attn acts only before") for event in told)
    paths = sorted(tmp_path.glob("trials/*/record.json"))
    survey, *fresh = [load_json(path, TrialRecord) for path in paths]
    assert (survey.kind, survey.boundary.modules) == ("switched", ("layernorm", "moe", "moe_act", "shared_experts"))
    assert survey.completed and survey.details["graphs_captured"] is False
    report = read_report(paths[0].parent)
    assert report is not None and report.trustworthy, report
    assert report.after_capture == "not measured" and set(report.captured_labels) == {"core_attn"}
    assert {setting.boundary.granularity for setting in report.predicted} == {"selective"}
    assert len(report.predicted) == 2 ** len(report.labels) and report.inert_labels == ()
    assert report.switched and all(abs(setting.error_fraction) < 0.005 for setting in report.switched)
    # The cheapest that fits passes by a launch of its own; peaks are those that the survey predicted.
    assert 1 <= len(fresh) <= 3 and {record.kind for record in fresh} == {"measured"}
    for record in fresh:
        predicted = report.prediction(record.boundary)
        assert predicted is not None and predicted.peak_bytes == pytest.approx(record.ranks[0].allocated_peak_bytes, rel=0.005)
    assert answer.name == "moe_act+shared_experts"
