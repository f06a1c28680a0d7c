"""The main job through the public command: from a recipe to a patch with its reasons."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.cli.main import main

Invoke = Callable[..., tuple[int, str, str]]
TARGET = 75 * 10**9


@pytest.fixture(scope="module")
def nemotron(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The run of the README and its answer; tests only read it."""
    folder = tmp_path_factory.mktemp("nemotron") / "run"
    arguments = ["run", "--recipe", "nemotron3nano", "--mem-target", "75GB", "--backend", "predict", "--out", str(folder)]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as left:
        main([*arguments, "--format", "json", "--quiet"])
    assert left.value.code == 0
    assert printed.getvalue() == (folder / "recommendation.json").read_text()
    return folder, json.loads(printed.getvalue())


def test_nemotron_is_predicted_and_unproven(nemotron: tuple[Path, dict[str, Any]]) -> None:
    _, answer = nemotron
    assert (answer["kind"], answer["verdict"], answer["exit_status"]) == ("predicted", "unproven", 0)
    assert answer["mem_target_bytes"] == TARGET
    assert answer["peak_p95_bytes"] <= TARGET
    assert answer["ranks_measured"] == 0
    assert answer["world_size"] == 16
    assert answer["step_ms"] is None


def test_nemotron_answer_is_moe(nemotron: tuple[Path, dict[str, Any]]) -> None:
    """Whole-MoE recompute is the narrowest setting whose 95 % peak is under 75 GB; the hand study chose it too."""
    _, answer = nemotron
    assert answer["boundary"] == {
        "recompute_granularity": "selective",
        "recompute_modules": ["moe"],
        "recompute_method": None,
        "recompute_num_layers": None,
    }


def test_nemotron_certificate_names_every_cheaper_setting(nemotron: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = nemotron
    rows = {row["name"]: row for row in answer["certificate"]}
    assert {"[]", "core_attn", "moe_act", "layernorm+moe_act"} <= set(rows)
    plan = json.loads((folder / "candidates.json").read_text())
    chosen = next(row for row in plan["candidates"] if row["name"] == "moe")
    cheaper = [row for row in plan["candidates"] if row["status"] == "distinct" and row["replay_ms"] < chosen["replay_ms"]]
    assert len(cheaper) >= 8
    for candidate in cheaper:
        row = rows[candidate["name"]]
        assert row["basis"] == "predicted"
        assert row["peak_bytes"] == candidate["peak_bytes"]
        assert row["peak_p95_bytes"] > TARGET
        assert row["reason"]
        assert "fail" not in row["reason"], "a prediction is never called a failure"


def test_nemotron_near_misses_are_to_be_launched_first(nemotron: tuple[Path, dict[str, Any]]) -> None:
    """The set that the hand study never ran is within 5 % of the limit."""
    folder, answer = nemotron
    at_risk = {row["name"]: row for row in answer["at_risk"]}
    row = at_risk["layernorm+moe_act+shared_experts"]
    assert row["peak_bytes"] <= TARGET < row["peak_p95_bytes"]
    assert abs(row["peak_bytes"] - TARGET) < 0.05 * TARGET
    assert "At risk, launch these first" in (folder / "report.md").read_text()


def test_nemotron_breakpoints_cover_every_limit(nemotron: tuple[Path, dict[str, Any]]) -> None:
    """One run tells the answer for all limits: dearer replay for a lower limit, none above the control's."""
    _, answer = nemotron
    points = answer["breakpoints"]
    limits = [point["from_bytes"] for point in points]
    replays = [point["replay_ms"] for point in points]
    assert limits == sorted(limits)
    assert replays == sorted(replays, reverse=True)
    assert points[-1]["name"] == "[]"
    below = [point for point in points if point["from_bytes"] <= TARGET]
    assert below[-1]["name"] == "moe"


def test_nemotron_names_wall_and_floor(nemotron: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = nemotron
    wall = answer["wall"]
    assert wall["floor_bytes"] <= answer["peak_bytes"] <= wall["control_peak_bytes"]
    assert "no recompute setting goes below" in (folder / "report.md").read_text()


def test_nemotron_outputs_are_all_there(nemotron: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = nemotron
    names = {
        "request.json",
        "workload.json",
        "candidates.json",
        "study.journal",
        "recommendation.json",
        "patch.py",
        "overrides.txt",
    }
    assert names | {"report.md", "report.html"} <= {path.name for path in folder.iterdir()}
    cfg = SimpleNamespace(model=SimpleNamespace())
    runpy.run_path(str(folder / "patch.py"))["apply"](cfg)
    assert vars(cfg.model) == answer["boundary"]


def test_report_shows_the_same_answer_again(nemotron: tuple[Path, dict[str, Any]], invoke: Invoke, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nemotron[0], tmp_path / "copy"))
    answer = nemotron[1]
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for name in ("patch.py", "overrides.txt", "report.md", "report.html"):
        (folder / name).unlink()
    status, out, err = invoke("report", str(folder))
    assert (status, err) == (0, "")
    assert "nemotron3nano under 75.000 GB (69.849 GiB): recompute moe" in out
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert json.loads(invoke("report", str(folder), "--format", "json")[1]) == answer


def test_events_say_where_the_workload_and_the_backend_came_from(invoke: Invoke, tmp_path: Path) -> None:
    arguments = ["run", "--recipe", "nemotron3nano", "--mem-target", "75GB", "--backend", "predict"]
    _, out, err = invoke(*arguments, "--out", str(tmp_path / "a"))
    assert "catalog nemotron3nano" in err
    assert "predict" in err
    assert "cfg.model.recompute_modules" in out
    status, _, err = invoke(*arguments, "--out", str(tmp_path / "b"), "--quiet")
    assert (status, err) == (0, "")


def test_no_boundary_fits_is_status_3_with_the_wall(invoke: Invoke, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    status, out, _ = invoke(
        "run", "--recipe", "nemotron3nano", "--mem-target", "60GB", "--backend", "predict", "--out", str(folder)
    )
    assert status == 3
    assert "no recompute setting passes" in out
    assert "Levers outside recompute" in out
    assert json.loads((folder / "recommendation.json").read_text())["boundary"] is None
    assert not (folder / "patch.py").exists()


@pytest.mark.parametrize("recipe", ["nemotron3nano", "moonlight16b"])
def test_plan_prints_candidates(recipe: str, invoke: Invoke) -> None:
    status, out, err = invoke("plan", "--recipe", recipe, "--format", "json")
    assert (status, err) == (0, "")
    plan = json.loads(out)
    assert {"candidates", "architecture", "wall", "breakpoints", "revisions"} <= plan.keys()
    control = next(row for row in plan["candidates"] if row["name"] == "[]")
    assert control["status"] == "distinct"
    assert control["replay_ms"] == 0
    assert control["peak_p05_bytes"] <= control["peak_bytes"] <= control["peak_p95_bytes"]
    assert max(stage["peak_bytes"] for stage in control["stages"]) == control["peak_bytes"]
    for row in plan["candidates"]:
        assert re.fullmatch(r"distinct|same as .+|no effect|invalid|not checkable here", row["status"])
        assert row["reason"] or row["status"] == "distinct"


def test_plan_text_shows_choice_and_what_is_not_offered(invoke: Invoke) -> None:
    status, out, _ = invoke("plan", "--recipe", "nemotron3nano", "--mem-target", "75GB")
    assert status == 0
    for part in (
        "cheapest that fits",
        "at risk",
        "Breakpoints",
        "Not offered",
        "mlp has no effect",
        "predicted; nothing was launched",
    ):
        assert part in " ".join(out.split()), part


def test_plan_verbose_lists_every_setting(invoke: Invoke) -> None:
    short = invoke("plan", "--recipe", "moonlight16b")[1]
    whole = invoke("plan", "--recipe", "moonlight16b", "--verbose")[1]
    assert len(whole.splitlines()) > len(short.splitlines()) + 20


def test_recipes_lists_the_catalog(invoke: Invoke) -> None:
    status, out, _ = invoke("recipes")
    assert status == 0
    listed = json.loads(invoke("recipes", "--format", "json")[1])
    assert {"nemotron3nano", "moonlight16b"} <= {entry["alias"] for entry in listed}
    assert all(entry["alias"] in out for entry in listed)
