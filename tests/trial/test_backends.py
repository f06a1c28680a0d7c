"""The backends that need no machine: predict and replay, and the tables that replay reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from backend_contract import BackendContract
from hypothesis import given
from hypothesis import strategies as st
from seed_facts import TABLES

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak
from autotune.trial.backends.base import TrialBackend, TrialRequest
from autotune.trial.backends.predict import PredictBackend
from autotune.trial.backends.replay import ReplayBackend
from autotune.trial.backends.tables import load_table, read_table


def a_prediction(boundary: Boundary) -> Prediction:
    size = 60 * 10**9 - len(boundary.modules) * 10**9
    stages = tuple(
        StagePeak(
            stage=s,
            rank=4 * s,
            peak_bytes=size - s,
            phase="loss",
            phases=(PhasePeak(iteration="steady", phase="loss", peak_bytes=size - s, terms={"weights": size - s}),),
        )
        for s in range(2)
    )
    return Prediction(
        peak_bytes=size, peak_p05_bytes=size - 10**9, peak_p95_bytes=size + 10**9, phase="loss", stage=0, rank=0, stages=stages,
        replay_ms=3.0, replay_ms_by_label={},
    )  # fmt: skip


class TestPredict(BackendContract):
    world_size = 8

    @pytest.fixture
    def backend(self) -> TrialBackend:
        return PredictBackend(a_prediction)

    @pytest.fixture
    def fits(self) -> Boundary:
        return Boundary.selective(["moe"])

    def test_one_entry_a_stage_and_never_a_measurement(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        record = backend.run(self.request_of(fits, tmp_path))
        assert record.kind == "predicted" and set(record.ranks) == {0, 4} and record.step_ms == ()
        assert record.details["peak_p95_bytes"] == 60 * 10**9


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(TABLES))
    return path


class TestReplay(BackendContract):
    world_size = 8

    @pytest.fixture
    def backend(self, tables: Path) -> TrialBackend:
        return ReplayBackend(load_table(f"{tables}:moonlight_16b"))

    @pytest.fixture
    def fits(self) -> Boundary:
        return Boundary.selective(["moe_act"])

    def test_unreported_ranks_stay_unreported(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        record = backend.run(self.request_of(fits, tmp_path))
        assert set(record.ranks) == {0} and record.world_size == 8
        assert (record.ranks[0].allocated_peak_bytes, record.step_ms, record.steps_run) == (35_941_000_000, (466.26,), 20)


def test_replay_answers_the_control_by_either_spelling(tables: Path) -> None:
    backend = ReplayBackend(load_table(f"{tables}:moonlight_16b"))
    assert backend.lacks(Boundary.off(), 0) is None and backend.lacks(Boundary.selective(), 0) is None
    assert backend.lacks(Boundary.full("uniform", 1), 0) == "table moonlight_16b has no row for it"
    assert backend.lacks(Boundary.selective(), 1) == "table moonlight_16b holds 1 run of it"


def test_failures_keep_iteration_and_rank(tables: Path) -> None:
    nemotron = load_table(f"{tables}:nemotron_3_nano")
    (control,) = nemotron.runs[Boundary.selective()]
    assert not control.completed and control.failure is not None
    assert (control.failure.failure_class, control.failure.step, control.failure.rank) == ("oom_capacity", 2, None)
    (core,) = nemotron.runs[Boundary.selective(["core_attn"])]
    assert core.ranks == {} and core.failure is not None and core.failure.step == 1
    llama = load_table(f"{tables}:llama3_70b_sft")
    (first,) = llama.runs[Boundary.selective(["core_attn"])]
    assert first.failure is not None and first.failure.rank == 0
    assert llama.context_only and not nemotron.context_only


TRUTH: dict[str, Any] = {
    "name": "toy", "workload": {"recipe": "llama_tiny", "overrides": []}, "mem_targets_bytes": [10**9],
    "rows": [
        {"recompute_granularity": "selective", "recompute_modules": [], "recompute_method": None, "recompute_num_layers": None,
         "runs": [
             {"outcome": "completed", "step_ms": [10.0, 11.0], "ranks": {
"0": {"allocated_peak_bytes": 900, "phases": {"loss": 900}},
                                                                         "1": {"allocated_peak_bytes": 950}}},
             {"outcome": "oom", "failed": {"rank": 1, "phase": "backward", "step": 2, "requested_bytes": 64},
              "ranks": {"0": {"allocated_peak_bytes": 800}}}]},
        {"granularity": "full", "modules": [], "method": "uniform", "num_layers": 1,
         "runs": [{"outcome": "completed", "step_ms": [12.0], "ranks": {"0": {"allocated_peak_bytes": 500}}}]},
    ],
}  # fmt: skip


def test_truth_table_plays_the_next_run_of_a_boundary(tmp_path: Path) -> None:
    path = tmp_path / "toy.json"
    path.write_text(json.dumps(TRUTH))
    table = load_table(str(path))
    assert table.complete and table.mem_targets_bytes == (10**9,)
    backend = ReplayBackend(table)

    def play(run_index: int) -> Any:
        return backend.run(
            TrialRequest(number=0, boundary=Boundary.selective(), workload_digest="w", world_size=2, run_index=run_index)
        )

    first, second = play(0), play(1)
    assert first.completed and first.step_ms == (10.0, 11.0) and first.ranks[1].allocated_peak_bytes == 950
    assert not second.completed and second.failure.requested_bytes == 64 and second.failure.stage == "backward"
    assert set(second.ranks) == {0}
    assert table.runs[Boundary.full("uniform", 1)][0].ranks[0].allocated_peak_bytes == 500


@pytest.mark.parametrize(("content", "message"), [
    ("{", "is no valid JSON"),
    ("[1]", "holds no table with rows"),
    ('{"rows": 3}', "holds no table with rows"),
    ('{"rows": [3]}', "row 0 is no mapping"),
    ('{"rows": [{"outcome": "completed"}]}', "names no boundary"),
    ('{"rows": [{"modules": [], "outcome": "completed", "peak_gb": -1}]}', "peak_gb -1 is no positive number"),
    ('{"rows": [{"modules": [], "outcome": "completed", "peak_gb": "75"}]}', "peak_gb '75' is no positive number"),
    ('{"rows": [{"modules": []}]}', "'outcome'"),
    ('{"rows": [{"modules": [], "outcome": "completed", "step_ms": [0]}]}', "step_ms [0] is no positive time"),
    ('{"rows": [{"granularity": "half", "outcome": "completed"}]}', "granularity 'half'"),
])  # fmt: skip
def test_bad_tables_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(RequestError) as caught:
        load_table(str(path))
    assert message in str(caught.value) and "\n" not in str(caught.value) and str(caught.value).startswith("--evidence")


def test_absent_file_and_unknown_table(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        load_table(str(tmp_path / "none.json"))
    with pytest.raises(RequestError, match=r"several tables and none named.*moonlight_16b"):
        load_table(str(tables))
    with pytest.raises(RequestError, match="no table 'gemma'"):
        load_table(f"{tables}:gemma")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(
    [
        "modules",
        "granularity",
        "method",
        "num_layers",
        "outcome",
        "peak_gb",
        "step_ms",
        "ranks",
        "runs",
        "failed",
        "rank",
        "steps_run",
    ]
)


@given(st.lists(st.dictionaries(fields, json_values, max_size=6), max_size=3), json_values)
def test_any_rows_are_read_or_refused_as_a_request(rows: list[dict[str, Any]], workload: Any) -> None:
    try:
        table = read_table({"rows": rows, "workload": workload}, name="t", evidence="f.json")
    except RequestError as error:
        assert "\n" not in str(error)
    else:
        assert all(runs for runs in table.runs.values())
