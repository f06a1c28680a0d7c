"""The generator of truths and the plays against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.trial.backends.tables import load_table
from benchmarks.generator import Machine
from benchmarks.played_truth import Truth
from benchmarks.search import main, play, summarise


@pytest.mark.parametrize("seed", range(12))
def test_drawn_tables_are_tables(seed: int, tmp_path: Path) -> None:
    table = Machine(seed).table()
    assert json.dumps(table) == json.dumps(Machine(seed).table())
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    read = load_table(str(path))
    assert read.complete and len(read.runs) == len(table["rows"]) and len(read.mem_targets_bytes) == 3
    truth = Truth(table)
    for boundary, runs in read.runs.items():
        assert all(run.completed and run.ranks for run in runs)
        hottest = max(rank.allocated_peak_bytes for run in runs for rank in run.ranks.values())
        assert hottest == pytest.approx(truth.peak_bytes(boundary), rel=0.03)


def test_a_launch_over_the_limit_is_out_of_memory_and_one_within_is_the_recorded_run() -> None:
    truth = Truth(Machine(4).table())
    boundary = next(iter(truth.rows))
    peak = max(r.allocated_peak_bytes for r in truth.recorded.runs[boundary][0].ranks.values())
    within = truth.launch(boundary, number=0, run_index=0, limit_bytes=peak * 2, seed=0)
    assert within.completed and within.step_ms == truth.recorded.runs[boundary][0].step_ms
    over = truth.launch(boundary, number=0, run_index=0, limit_bytes=peak - 1, seed=0)
    assert not over.completed and over.failure is not None and over.step_ms == ()
    assert max(r.allocated_peak_bytes for r in over.ranks.values()) <= peak - 1


def test_on_one_table_the_planner_finds_in_few_launches_what_the_first_pass_in_order_does_not() -> None:
    table = Machine(1).table()
    limit = table["mem_targets_bytes"][1]
    planner, narrow = (play(Truth(table), limit, 0, name) for name in ("planner", "narrow_first"))
    assert planner.found and not planner.false_pass and planner.launches <= 8 < narrow.launches
    assert narrow.regret_percent_of_step is not None and narrow.regret_percent_of_step > 1
    for p in (planner, narrow):
        assert p.gpu_hours == pytest.approx(p.launches * 16 * 4 / 60, abs=0.001)


def test_the_command_prints_plays_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plays", "2", "--samplers", "narrow_first", "--format", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert len(out["plays"]) == 2 and {"table", "limit_bytes", "launches", "false_pass", "certificate_right"} <= set(
        out["plays"][0]
    )
    assert out["summary"][0]["sampler"] == "narrow_first"


def measured(labels: list[str], peak_gb: float, step_ms: float, error_ms: float) -> dict[str, object]:
    run = {"outcome": "completed", "ranks": {"0": {"allocated_peak_bytes": round(peak_gb * 1e9)}}, "step_ms": [step_ms]}
    return {"modules": labels, "runs": [run], "true_step_ms": step_ms, "true_step_error_ms": error_ms}


def test_boundaries_within_two_standard_errors_of_a_price_tie() -> None:
    """525 against 500 ms with 10 ms each is 1.8 of their standard error: a tie; 535 ms is 2.5 and dearer by 7 %."""
    rows = [measured([], 80.0, 500.0, 10.0), measured(["mlp"], 60.0, 525.0, 10.0), measured(["core_attn"], 60.0, 535.0, 10.0)]
    truth = Truth({"name": "three", "workload": {"gpus": 1}, "rows": rows})
    control, mlp, attention = truth.rows
    assert truth.dearer_ms(mlp, control) == 0.0 and truth.dearer_ms(attention, control) == 35.0
    exact = Truth({"name": "exact", "workload": {"gpus": 1}, "rows": [row | {"true_step_error_ms": 0.0} for row in rows]})
    assert exact.dearer_ms(mlp, control) == 25.0
    assert exact.optimum(70 * 10**9) == mlp and exact.optimum(10**9) is None


def test_tables_of_a_study_are_played_by_their_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed rows fit nowhere, tables that rank nothing are left out, and predictions are those of the table's recipe."""
    rows = [
        {"modules": [], "peak_gb": 66.3, "outcome": "oom"},
        {"modules": ["moe"], "peak_gb": 64.653, "step_ms": 657.42, "outcome": "completed"},
        {"modules": ["moe", "layernorm"], "peak_gb": 63.639, "step_ms": 677.62, "outcome": "completed"},
    ]
    facts = {"recipe": "nemotron_3_nano_pretrain_16gpu_h100_bf16_config", "gpus": 16, "gpu": "H100 80GB"}
    study = {"name": "nemotron_3_nano", "workload": facts, "rows": rows}
    context = {"name": "context", "rows": [{"modules": ["mlp"], "peak_gb": 55.6, "outcome": "completed"}]}
    (tmp_path / "study.json").write_text(json.dumps({"tables": [study, context]}))
    truth = Truth(study)
    assert truth.kind == "seed" and truth.range_bytes == (63.639e9, 64.653e9)
    assert all(c.prediction is not None and c.prediction.peak_bytes > 50e9 for c in truth.candidates)
    control = next(iter(truth.rows))
    assert truth.launch(control, number=0, run_index=0, limit_bytes=10**12, seed=0).failure is not None
    names = {limit: play(truth, round(limit * 1e9), 0, "planner").answer for limit in (66.0, 64.2, 60.0)}
    assert names == {66.0: "moe", 64.2: "layernorm+moe", 60.0: None}
    assert main(["--truths", str(tmp_path), "--plays", "4", "--samplers", "exhaustive,oracle", "--format", "json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert {p["table"] for p in out["plays"]} == {"nemotron_3_nano"} and len(out["plays"]) == 8


def test_the_oracle_launches_the_optimum_and_nothing_where_nothing_fits() -> None:
    truth = Truth(Machine(4).table())
    peaks = sorted(map(truth.peak_bytes, truth.rows))
    limit = round((peaks[-1] + peaks[0]) / 2)
    own = play(truth, limit, 0, "oracle")
    assert own.answer == own.optimum and own.launches <= 2 and not own.false_pass
    none = play(truth, round(peaks[0] * 0.9), 0, "oracle")
    assert (none.launches, none.answer, none.found) == (0, None, True)


def test_a_kind_is_played_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plays", "3", "--kind", "fixed", "--samplers", "oracle", "--format", "json"]) == 0
    plays = json.loads(capsys.readouterr().out)["plays"]
    assert {p["kind"] for p in plays} == {"generator, no switch"}


def test_what_is_left_open_is_not_excluded() -> None:
    """A play whose optimum one launch at the limit fails: the certificate leaves it open, so it is right, and says how many."""
    opened = [play(Truth(Machine(seed).table()), limit, 0, "survey_switch") for seed, limit in at_the_limit()]
    assert any(p.left_open > 0 for p in opened)
    assert all(p.certificate_right for p in opened if p.left_open)


def at_the_limit() -> list[tuple[int, int]]:
    """Tables with free routing and limits just above the cheapest setting's peak."""
    found = []
    for seed in range(30):
        machine = Machine(seed)
        if machine.has_experts and not machine.pool and not machine.by_chance and len(found) < 4:
            control = machine.settings()[0]
            found.append((seed, round(machine.peak(control) * 1.002)))
    return found


def test_plays_are_distinct_and_a_file_of_plays_is_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two limits, six plays: three noise seeds under each. What the file holds is not played again."""
    runs = [measured([], 80.0, 500.0, 0.0), measured(["mlp"], 60.0, 525.0, 0.0)]
    table = {"name": "two", "workload": {"gpus": 1}, "rows": runs, "mem_targets_bytes": [70 * 10**9, 90 * 10**9]}
    (tmp_path / "two.json").write_text(json.dumps(table))
    out = tmp_path / "plays.jsonl"
    command = ["--truths", str(tmp_path), "--samplers", "exhaustive", "--out", str(out), "--format", "json", "--plays"]
    assert main([*command, "4"]) == 0
    first = out.read_text().splitlines()
    assert main([*command, "6"]) == 0
    lines = out.read_text().splitlines()
    assert lines[:4] == first and len(lines) == 6
    assert {(json.loads(line)["limit_bytes"], json.loads(line)["seed"]) for line in lines} == {
        (limit * 10**9, seed) for limit in (70, 90) for seed in range(3)
    }
    capsys.readouterr()


def test_plays_whose_optimum_fails_by_chance_are_scored_apart() -> None:
    """A peak 0.6 % below the limit that scatters by 0.6 % fails in one launch of six; 2 % below, in one of two thousand."""
    rows = [measured([], 80.0, 500.0, 0.0), measured(["mlp"], 60.0, 525.0, 0.0)]
    truth = Truth({"name": "two", "workload": {"gpus": 1}, "rows": rows, "peak_scatter": 0.006})
    control = next(iter(truth.rows))
    assert truth.fail_chance(control, round(80.48e9)) == pytest.approx(0.1587, abs=1e-3)
    assert truth.fail_chance(control, round(81.6e9)) < 0.0006
    near, far = (play(truth, limit, 0, "exhaustive") for limit in (round(80.48e9), round(81.6e9)))
    assert near.by_chance and not far.by_chance
    names = [(row["optimum"], row["plays"]) for row in summarise([near, far])]
    assert names == [("all", 2), ("steady", 1), ("by chance", 1)]
    assert near.answer_fails_percent == pytest.approx(15.9, abs=0.1)


def test_a_sampler_that_begins_with_a_survey_is_not_played_on_a_table_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named and left out, beside what can be played; where nothing is left, one line says so."""
    rows = [measured([], 80.0, 500.0, 0.0), measured(["mlp"], 60.0, 525.0, 0.0)]
    table = {"name": "bare", "workload": {"gpus": 1}, "rows": rows, "mem_targets_bytes": [70 * 10**9]}
    (tmp_path / "bare.json").write_text(json.dumps(table))
    command = ["--truths", str(tmp_path), "--plays", "3", "--format", "json", "--samplers"]
    assert main([*command, "survey_switch,survey_only,oracle"]) == 0
    out = capsys.readouterr()
    assert {p["sampler"] for p in json.loads(out.out)["plays"]} == {"oracle"}
    left_out = out.err.splitlines()
    assert len(left_out) == 2 and all("bare" in line and "has no survey" in line for line in left_out)
    assert "survey_switch" in left_out[0] and "survey_only" in left_out[1]
    with pytest.raises(SystemExit) as ended:
        main([*command, "survey_switch"])
    assert "nothing to play" in str(ended.value) and "\n" not in str(ended.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--samplers", "planer"], "planer"),
        (["--samplers", "planner,,oracle"], "''"),
        (["--plays", "0"], "--plays"),
        (["--truths", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_what_cannot_be_played_is_said_in_one_line(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    text = str(ended.value) if isinstance(ended.value.code, str) else capsys.readouterr().err.splitlines()[-1]
    assert says in text and "\n" not in text
