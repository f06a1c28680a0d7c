"""Whole runs through the engine: predicted, and replayed from recorded tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from seed_facts import LLAMA_70B, TABLES

from autotune.engine.events import Event
from autotune.engine.plan import plan
from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.errors import ExitStatus, NoBoundaryError, RequestError
from autotune.records import load_json
from autotune.search.outcome import Recommendation
from autotune.units import parse_size_bytes


def ask(recipe: str, target: str, out: Path, **fields: Any) -> Request:
    return Request(recipe=recipe, mem_target_bytes=parse_size_bytes(target), out=out, **fields)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evidence") / "tables.json"
    path.write_text(json.dumps(TABLES))
    return path


def row(answer: Recommendation, name: str) -> Any:
    return next(r for r in answer.certificate if r.name == name)


def test_predicted_answer_of_nemotron(tmp_path: Path) -> None:
    events: list[Event] = []
    answer = run(ask("nemotron3nano", "75GB", tmp_path / "run", backend="predict"), events.append)
    assert (answer.kind, answer.verdict, answer.exit_status) == ("predicted", "unproven", ExitStatus.OK)
    assert answer.peak_p95_bytes is not None and answer.peak_p95_bytes <= answer.mem_target_bytes
    assert answer.ranks_measured == 0 and answer.step_ms is None
    assert answer.name == "moe" or row(answer, "moe_act").fit_probability is not None
    for name in ("[]", "moe_act", "layernorm+moe_act"):
        found = row(answer, name)
        assert found.basis == "predicted" and found.peak_bytes > answer.mem_target_bytes
        assert "ruled out by prediction" in found.reason and "fail" not in found.reason
    risky = {r.name for r in answer.at_risk}
    for r in answer.at_risk:
        assert r.peak_bytes <= answer.mem_target_bytes < r.peak_p95_bytes
    assert risky <= {r.name for r in answer.certificate}
    steps = answer.breakpoints
    assert all(a.from_bytes < b.from_bytes and a.replay_ms > b.replay_ms for a, b in pairwise(steps))
    assert steps[-1].name == "[]"
    assert any("Nothing was launched" in claim for claim in answer.claims)
    # What is on disk is what was returned, and nothing is called measured.
    on_disk = load_json(tmp_path / "run" / "recommendation.json", Recommendation)
    assert (on_disk.boundary, on_disk.peak_bytes) == (answer.boundary, answer.peak_bytes)
    assert "measured" not in {r.kind for r in answer.trials}
    assert [e.kind for e in events][:2] == ["workload", "backend"] and events[-1].kind == "finished"
    assert (tmp_path / "run" / "trials" / "000" / "record.json").exists()


MOONLIGHT = {"37GB": "[]", "36.615GB": "moe_act", "36.0GB": "moe_act", "35.93GB": "mla_up_proj", "35.91GB": "mla_up_proj"}


@pytest.mark.parametrize(("target", "sampler"), [
    *((target, "planner") for target in MOONLIGHT), ("35.90GB", "planner"), ("36.0GB", "exhaustive"), ("35.90GB", "exhaustive"),
])  # fmt: skip
def test_moonlight_table(tmp_path: Path, tables: Path, target: str, sampler: Any) -> None:
    """Case P12."""
    request = ask("moonlight16b", target, tmp_path / "run", backend="replay", evidence=f"{tables}:moonlight_16b", sampler=sampler)
    answer = run(request)
    name = MOONLIGHT.get(target)
    assert (answer.name, answer.exit_status, answer.kind) == (name, 0 if name else 4, "replayed")
    assert answer.verdict == "unproven" and len(answer.trials) == 6
    if name is None:
        assert "open: full" in answer.verdict_reason and answer.boundary is None
        assert any(key.startswith("full/") for key in answer.open)
    else:
        assert answer.verdict_reason.startswith("rank 0 only, of 8")
        assert (answer.ranks_measured, answer.world_size) == (1, 8)
        assert answer.peak_bytes is not None and answer.peak_bytes <= answer.mem_target_bytes
    if target == "36.615GB":
        assert row(answer, "[]").reason.startswith("over the limit") and row(answer, "core_attn").reason.startswith("dearer")
    if name == "[]":
        assert answer.replay_cost is not None and (answer.replay_cost.ms, answer.replay_cost.basis) == (0.0, "recorded steps")


@pytest.mark.parametrize(("target", "name", "status"), [("65GB", "moe", 0), ("64GB", "layernorm+moe", 0), ("63GB", None, 4)])
def test_nemotron_table(tmp_path: Path, tables: Path, target: str, name: str | None, status: int) -> None:
    """Case P13."""
    answer = run(ask("nemotron3nano", target, tmp_path / "run", backend="replay", evidence=f"{tables}:nemotron_3_nano"))
    assert (answer.name, answer.exit_status) == (name, status)
    if name is None:
        assert "open: full" in answer.verdict_reason
    else:
        assert answer.verdict == "unproven" and "rank 0 only" in answer.verdict_reason
    control = row(answer, "[]")
    assert control.basis == "replayed" and "oom_capacity in iteration 2" in control.reason
    assert "66.297 GB is a lower bound" in control.reason


def test_all_ranks_supplied_is_a_pass(tmp_path: Path) -> None:
    """Case P13: unproven only while ranks are missing."""
    table = {
        "name": "whole",
        "workload": {"gpus": 2, "steps": 12},
        "rows": [
            {"modules": ["moe"], "outcome": "completed", "step_ms": 657.42,
             "ranks": {"0": {"peak_gb": 64.653}, "1": {"peak_gb": 64.1}}},
            {"modules": [], "outcome": "oom on rank 1", "peak_gb": 66.297, "failed_iteration": 2},
        ],
    }  # fmt: skip
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(table))
    answer = run(ask("nemotron3nano", "66GB", tmp_path / "run", backend="replay", evidence=str(path)))
    assert (answer.name, answer.verdict, answer.ranks_measured) == ("moe", "pass", 2)
    assert any("2 GPUs" in warning for warning in answer.warnings)


def test_context_is_not_a_ranking(tmp_path: Path, tables: Path) -> None:
    """Case P16: no control, no step times, two rows out of memory."""
    answer = run(ask("llama3_70b_sft", "75GB", tmp_path / "run", backend="replay", evidence=f"{tables}:{LLAMA_70B['name']}"))
    assert answer.boundary is None and answer.exit_status == ExitStatus.STOPPED
    assert "context only: no matched control" in answer.verdict_reason
    assert "lower bound" in row(answer, "core_attn").reason and "58.800 GB" in row(answer, "core_attn").reason
    reasons = {name: row(answer, name).reason for name in ("mlp", "core_attn+mlp")}
    assert not any(word in reason for reason in reasons.values() for word in ("better", "dearer", "cheaper", "faster"))
    layernorm = row(answer, "layernorm")
    assert layernorm.basis in ("no effect", "same effect") and "norm" in layernorm.reason
    both = row(answer, "core_attn+layernorm")
    assert both.basis == "same effect" and "59.600 GB is a lower bound" in both.reason
    assert all(point.kind == "predicted" for point in answer.breakpoints)


SIX_ROWS = [
    {"modules": [], "outcome": "oom", "peak_gb": 66.3},
    {"modules": ["moe_act"], "outcome": "completed", "peak_gb": 62.1, "step_ms": 640.0, "steps_run": 12},
    {"modules": ["layernorm"], "outcome": "completed", "peak_gb": 64.0, "step_ms": 650.0, "steps_run": 12},
    {"modules": ["moe"], "outcome": "completed", "peak_gb": 55.0, "step_ms": 700.0, "steps_run": 12},
    {"modules": ["layernorm", "moe_act"], "outcome": "completed", "peak_gb": 61.0, "step_ms": 660.0, "steps_run": 12},
    {"modules": ["layernorm", "moe"], "outcome": "completed", "peak_gb": 54.0, "step_ms": 720.0, "steps_run": 12},
]
SITTING = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from autotune.engine.request import Request
    from autotune.engine.run import run
    from autotune.trial.backends.replay import ReplayBackend

    out, evidence, block_at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    play = ReplayBackend.run

    def slow(self, request, on_progress=None):
        print(f"launched {request.number} {request.boundary.key}", flush=True)
        if request.number == block_at:
            time.sleep(600)
        return play(self, request, on_progress)

    ReplayBackend.run = slow
    answer = run(Request(recipe="nemotron3nano", mem_target_bytes=65 * 10**9, out=out, backend="replay", evidence=evidence,
                         sampler="exhaustive", resume=True))
    print("answer", answer.name, len(answer.trials), flush=True)
    """
)


def sitting(out: Path, evidence: Path, block_at: int, environment: dict[str, str]) -> list[str]:
    """One process of a run; killed with SIGKILL once the trial it blocks at is under way."""
    command = [sys.executable, "-c", SITTING, str(out), str(evidence), str(block_at)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(f"launched {block_at} "):
            time.sleep(0.05)
            os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    return lines


def test_resume_after_sigkill(tmp_path: Path, command_environment: dict[str, str]) -> None:
    """Case P15: six candidates; killed during the third; then resumed, then run a third time."""
    import optuna

    evidence, out = tmp_path / "six.json", tmp_path / "run"
    evidence.write_text(json.dumps({"name": "six", "workload": {"gpus": 16}, "rows": SIX_ROWS}))
    first = sitting(out, evidence, 2, command_environment)
    assert [line.split()[1] for line in first] == ["0", "1", "2"]
    second = sitting(out, evidence, -1, command_environment)
    assert [line.split()[1] for line in second[:-1]] == ["2", "3", "4", "5"]
    assert second[0].split()[2] == first[2].split()[2]
    third = sitting(out, evidence, -1, command_environment)
    assert third == [second[-1]] == ["answer moe_act 6"]

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(out / "study.journal")))
    (summary,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=summary.study_name, storage=storage).trials
    assert len(trials) == 6 == len({t.user_attrs["boundary"] for t in trials})
    assert all(t.state == optuna.trial.TrialState.COMPLETE for t in trials)
    assert 0 < trials[0].constraints["memory"] < float("inf")
    assert all(t.constraints["memory"] <= 0 for t in trials[1:])


def test_late_out_of_memory_through_the_engine(tmp_path: Path) -> None:
    """Case P14 a (its figures are made up): a whole earlier run, and a matched one that dies at iteration 6."""
    rows = [
        {"modules": ["layernorm", "moe_act"], "outcome": "completed", "peak_gib": 69.9, "step_ms": 600.0, "steps_run": 10},
        {"modules": ["layernorm", "moe_act"], "outcome": "oom", "peak_gib": 69.9, "failed_iteration": 6},
        {
            "modules": ["moe"],
            "outcome": "completed",
            "peak_gib": 64.1,
            "reserved_peak_gib": 71.5,
            "step_ms": 636.0,
            "steps_run": 10,
        },
    ]
    path = tmp_path / "late.json"
    path.write_text(json.dumps({"name": "late", "workload": {"gpus": 1}, "rows": rows}))
    tight = run(ask("nemotron3nano", "75GB", tmp_path / "a", backend="replay", evidence=str(path)))
    assert tight.name == "moe" and row(tight, "layernorm+moe_act").reason.startswith("over the limit: allocated peak 75.055 GB")
    assert any(warning.startswith("reserved peak 76.773 GB") for warning in tight.warnings)
    loose = run(ask("nemotron3nano", "76.5GB", tmp_path / "b", backend="replay", evidence=str(path)))
    assert loose.name == "moe" and row(loose, "layernorm+moe_act").reason == "flaky: 1 pass, 1 OOM"
    assert [t.repeat_reason for t in loose.trials if t.name == "layernorm+moe_act"] == [None, "near_limit"]


def test_max_slowdown_without_a_boundary_names_the_cheapest_that_passes(tmp_path: Path) -> None:
    rows = [
        {"modules": [], "outcome": "completed", "peak_gb": 66.0, "step_ms": 600.0, "steps_run": 12},
        {"modules": ["moe"], "outcome": "completed", "peak_gb": 55.0, "step_ms": 700.0, "steps_run": 12},
    ]
    path = tmp_path / "slow.json"
    path.write_text(json.dumps({"name": "slow", "workload": {"gpus": 1}, "rows": rows}))
    fields: dict[str, Any] = {"backend": "replay", "evidence": str(path)}
    strict = run(ask("nemotron3nano", "60GB", tmp_path / "a", max_slowdown=0.05, **fields))
    assert (strict.exit_status, strict.boundary) == (ExitStatus.NO_BOUNDARY, None)
    assert strict.verdict_reason == "nothing within --max-slowdown 5%; the cheapest that passes is moe, 700.00 ms a step"
    loose = run(ask("nemotron3nano", "60GB", tmp_path / "b", max_slowdown=0.2, **fields))
    assert loose.name == "moe" and loose.replay_cost is not None
    assert loose.replay_cost.ratio == pytest.approx(1 / 6) and loose.replay_cost.reference == "[]"


def test_budget_spent_names_what_is_open(tmp_path: Path, tables: Path) -> None:
    fields: dict[str, Any] = {"backend": "replay", "evidence": f"{tables}:moonlight_16b", "sampler": "exhaustive"}
    none = run(ask("moonlight16b", "35.95GB", tmp_path / "a", max_trials=1, **fields))
    assert none.exit_status == ExitStatus.STOPPED and "stopped after --max-trials 1; open: " in none.verdict_reason
    best = run(ask("moonlight16b", "36.7GB", tmp_path / "b", max_trials=1, **fields))
    assert best.name == "[]" and best.exit_status == ExitStatus.OK and best.open
    assert any("not certified" in warning for warning in best.warnings)
    more = run(ask("moonlight16b", "35.95GB", tmp_path / "a", resume=True, **fields))
    assert more.exit_status == ExitStatus.OK and len(more.trials) == 6


def test_a_limit_below_the_states_alone_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(NoBoundaryError) as caught:
        run(ask("nemotron3nano", "20GB", tmp_path / "run", backend="predict"))
    text = str(caught.value)
    assert "\n" not in text and text.startswith(
        "--mem-target=20.000 GB (18.626 GiB): weights, gradients and optimizer states alone"
    )
    assert "levers outside recompute: " in text and caught.value.exit_status == ExitStatus.NO_BOUNDARY
    assert not (tmp_path / "run").exists()


def test_a_limit_that_nothing_fits_ends_without_a_boundary(tmp_path: Path) -> None:
    result = plan(Request(recipe="nemotron3nano", mem_target_bytes=10**9))
    lowest = min(c.peak_p05_bytes for c in result.candidates if c.peak_p05_bytes)
    answer = run(Request(recipe="nemotron3nano", mem_target_bytes=round(lowest * 0.97), out=tmp_path / "run", backend="predict"))
    assert answer.exit_status == ExitStatus.NO_BOUNDARY and answer.boundary is None and answer.remedies
    assert answer.verdict_reason == "every candidate's predicted 5 % peak is over the limit"


@pytest.mark.parametrize(("fields", "message"), [
    ({"mem_target_bytes": None}, "--mem-target"),
    ({"backend": "replay"}, "--backend='replay': replay reads recorded trials"),
    ({"backend": "gpu"}, "--backend='gpu'"),
    ({"backend": "replay", "evidence": "/nowhere.json"}, "cannot be read"),
    ({"recipe": "nemotron3nanoo"}, "nemotron3nano"),
])  # fmt: skip
def test_wrong_requests_write_nothing(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {"recipe": "nemotron3nano", "mem_target_bytes": 75 * 10**9, "out": tmp_path / "run"}
    with pytest.raises(RequestError) as caught:
        run(Request(**{**base, **fields}))
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_another_recipe_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    run(ask("nemotron3nano", "75GB", tmp_path / "run", backend="predict"))
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*"))
    for request in (
        ask("moonlight16b", "37GB", tmp_path / "run", backend="predict", resume=True),
        ask("nemotron3nano", "74GB", tmp_path / "run", backend="predict", resume=True),
        ask("nemotron3nano", "75GB", tmp_path / "run", backend="predict"),
    ):
        with pytest.raises(RequestError, match="--out"):
            run(request)
    assert sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "run").rglob("*")) == before


def test_plan_gives_every_candidate_one_status_and_its_stages() -> None:
    result = plan(Request(recipe="nemotron3nano", mem_target_bytes=75 * 10**9))
    names = {c.name: c for c in result.candidates}
    assert len(names) == len(result.candidates)
    assert (
        names["off"].status == "same as []" and names["mlp"].status == "no effect" and names["full/uniform/1"].status == "invalid"
    )
    assert names["[]"].fits is False and names["[]"].stages and names["moe"].fits is True
    assert result.architecture["class"] == "hybrid" and result.breakpoints and result.remedies
    unlimited = plan(Request(recipe="nemotron3nano"))
    assert all(c.fits is None and c.fit_probability is None for c in unlimited.candidates)
