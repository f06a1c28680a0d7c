"""The measured truth tables: whole, of one kind, and consistent with themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import dump_json, load_json
from autotune.trial.backends.tables import read_table
from autotune.workload.catalog import load
from benchmarks.truth import Table

TABLES = sorted((Path(__file__).parents[2] / "benchmarks" / "data" / "truth").glob("*.json"))
GATED_SHARED_EXPERT = 1e-4
"""It adds its gradients in another order under a checkpoint: 5e-6 of the norm in the first step, more as training goes on."""


@pytest.fixture(scope="module", params=TABLES, ids=lambda path: path.stem)
def table(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load_json(request.param, dict)


def test_a_table_says_what_measured_it(table: dict[str, Any]) -> None:
    assert read_table(table, name=table["name"], evidence="here").complete
    assert table["measured"]["program"] and table["measured"]["machine"]["cores"] and table["measured"]["began"]
    assert table["revisions"]["megatron_core"] and table["revisions"]["torch"]


def test_every_setting_ran_on_every_rank_and_has_a_price_where_there_are_prices(table: dict[str, Any]) -> None:
    world = table["workload"]["parallel"]["world_size"]
    for row in table["rows"]:
        for run in row["runs"]:
            assert run["outcome"] == "completed" and len(run["ranks"]) == world and run["steps_run"] == len(run["loss"])
        if "prices" in table:
            assert row["true_step_ms"] > 0 and row["true_step_error_ms"] >= 0


def test_every_setting_trains_as_the_control_does(table: dict[str, Any]) -> None:
    """Loss and gradient norm of every step, in fresh processes."""
    control = next(row for row in table["rows"] if row["granularity"] == "selective" and not row["modules"])["runs"][0]
    gated = table["workload"]["model"]["moe_shared_expert_gate"]
    for row in table["rows"]:
        band = GATED_SHARED_EXPERT if gated and "shared_experts" in (row["modules"] or ()) else 0.0
        for run in row["runs"]:
            assert run["loss"] == pytest.approx(control["loss"], rel=band, abs=0), row
            assert run["grad_norm"] == pytest.approx(control["grad_norm"], rel=band, abs=0), row


def test_the_survey_predicted_every_fresh_peak(table: dict[str, Any]) -> None:
    """To half a percent; to one where experts are spread over ranks, whose routing a frozen batch does not have."""
    fresh = {_key(row): max(peak["allocated_peak_bytes"] for peak in row["runs"][0]["ranks"].values()) for row in table["rows"]}
    bound = 0.01 if table["workload"]["parallel"]["expert_model_parallel_size"] > 1 else 0.005
    assert {_key(row) for row in table["survey"]["predicted"]} == set(fresh)
    for row in table["survey"]["predicted"]:
        assert row["peak_bytes"] == pytest.approx(fresh[_key(row)], rel=bound), row


def test_a_table_goes_on_where_it_was_and_with_nothing_else(tmp_path: Path) -> None:
    path, workload = tmp_path / "table.json", load("llama_tiny")
    begun = Table(path, workload)
    run = {"outcome": "completed", "ranks": {"0": {"allocated_peak_bytes": 1000}, "1": {"allocated_peak_bytes": 2000}}}
    begun.row(Boundary.selective(["mlp"]))["runs"].append(run)
    begun.row(Boundary.selective())
    begun.save()
    again = Table(path, workload)
    assert again.rows[Boundary.selective(["mlp"])]["runs"] == [run] and len(again.data["rows"]) == 1, "what never ran is no row"
    assert again.data["mem_targets_bytes"] == [2000] * 10
    with pytest.raises(RequestError, match="another workload"):
        Table(path, load("moonlight_tiny"))
    data = load_json(path, dict)
    del data["workload"]["optimizer"]["fsdp_double_buffer"]  # a field that was not there when the table was begun
    path.write_text(dump_json(data))
    assert Table(path, workload).rows
    data["measured"]["program"] = "older"
    path.write_text(dump_json(data))
    with pytest.raises(RequestError, match="other counting code"):
        Table(path, workload)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["granularity"], tuple(row["modules"] or ()), row["method"], row["num_layers"]
