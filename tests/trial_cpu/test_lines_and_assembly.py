"""What ranks wrote, however it ended, as one record."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.assemble import Ending, assemble
from autotune.trial.failure import Symptom, class_of, stage_of
from autotune.trial.lines import LineFollower, LineWriter, read_lines
from autotune.trial.record import TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.workload.workload import Features, Model, Parallel, Source, Train, Workload


def a_spec(folder: Path, world_size: int = 2, **features: Any) -> TrialSpec:
    workload = Workload(
        name="w",
        source=Source(kind="file", reference="w.json"),
        model=Model(num_layers=2, hidden_size=8, num_attention_heads=2, ffn_hidden_size=16, vocab_size=32),
        parallel=Parallel(world_size=world_size),
        train=Train(seq_length=8, global_batch_size=world_size),
        features=Features(**features),
    )
    boundary = Boundary.selective(["mlp"])
    return TrialSpec(
        number=4, workload=workload, boundary=boundary, world_size=world_size, steps=3, backend="cpu", folder=str(folder)
    )


def write(spec: TrialSpec, rank: int, *lines: dict[str, Any]) -> None:
    path = spec.rank_file(rank)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"t": float(i), **line}) + "\n" for i, line in enumerate(lines)))


def assembled(spec: TrialSpec, ending: Ending) -> TrialRecord:
    return assemble(spec, ending, {rank: read_lines(spec.rank_file(rank)) for rank in range(spec.world_size)})


def iteration(step: int, peak: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "iteration", "step": step, "step_ms": 10.0 * step, "loss": 7.0, "grad_norm": 1.0, "skipped": False,
        "nan": False, "phases": {"forward": peak, "between_steps": 10 * peak}, **more,
    }  # fmt: skip


START = {"event": "start", "host": "here"}
BUILT = {"event": "built", "phases": {"build": 100}}
END = {"event": "end", "completed": True, "steps": 3}
OOM = {
    "event": "failure", "type": "OutOfMemoryError", "types": ["OutOfMemoryError", "RuntimeError"],
    "message": "CUDA out of memory.", "where": [],
    "requested_bytes": 64, "phase": "backward", "step": 2, "phases": {"backward": 900},
}  # fmt: skip
CLOSED = {
    "event": "failure", "type": "RuntimeError", "types": ["RuntimeError"], "message": "Connection closed by peer [127.0.0.1]:1",
    "where": [],
    "requested_bytes": None, "phase": "grad_sync", "step": 2, "phases": {},
}  # fmt: skip


def test_a_trial_that_ran_to_its_end(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    for rank in (0, 1):
        steps = [iteration(step, 200 + 100 * step + rank, tokens_per_expert=[3, 4]) for step in (1, 2, 3)]
        write(spec, rank, START, BUILT, *steps, END)
    record = assembled(spec, Ending(statuses={0: 0, 1: 0}))
    assert record.completed and record.failure is None and record.steps_run == 3
    assert record.ranks[1].allocated_peak_bytes == 501
    assert record.ranks[1].phases == {"build": 100, "forward": 501}, "what lies between steps is no phase"
    assert record.ranks[0].tokens_per_expert == (3, 4) and record.ranks[0].reserved_peak_bytes is None
    assert record.step_ms == (20.0, 30.0), "the first step makes the optimizer state"
    assert from_builtins(to_builtins(record), TrialRecord, setting="r") == record


def test_steady_steps_come_after_the_capture_of_graphs_and_are_those_of_the_slowest_rank(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, cuda_graph_impl="transformer_engine", cuda_graph_warmup_steps=2)
    for rank in (0, 1):
        write(spec, rank, BUILT, *[iteration(step, 200, step_ms=float(step + 5 * rank)) for step in (1, 2, 3, 4, 5)], END)
    assert assembled(spec, Ending(statuses={})).step_ms == (9.0, 10.0)


def test_a_survey_launch_is_of_kind_switched_and_has_no_step_time_of_one_setting(tmp_path: Path) -> None:
    spec = replace(a_spec(tmp_path), survey={"labels": ["mlp"]})
    for rank in (0, 1):
        write(spec, rank, START, BUILT, *[iteration(step, 200) for step in (1, 2, 3)], END)
    record = assembled(spec, Ending(statuses={0: 0, 1: 0}))
    assert (record.kind, record.step_ms, record.steps_run) == ("switched", (), 3)
    assert assembled(replace(spec, survey=None), Ending(statuses={0: 0, 1: 0})).kind == "measured"


def test_the_first_failure_wins_and_later_ones_are_its_consequences(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    write(spec, 0, START, BUILT, iteration(1, 300), {**CLOSED, "t": 5.0})
    write(spec, 1, START, BUILT, iteration(1, 300), {**OOM, "t": 9.0})
    record = assembled(spec, Ending(statuses={0: 13, 1: 13}))
    assert record.failure is not None and not record.completed
    assert (record.failure.failure_class, record.failure.rank, record.failure.step) == ("oom_capacity", 1, 2)
    assert record.failure.requested_bytes == 64 and record.ranks[1].allocated_peak_bytes == 900
    assert record.steps_run == 1


def test_of_two_out_of_memory_the_earlier(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    write(spec, 0, BUILT, {**OOM, "t": 8.0})
    write(spec, 1, BUILT, {**OOM, "t": 7.0, "phase": "optimizer"})
    failure = assembled(spec, Ending(statuses={})).failure
    assert failure is not None and (failure.rank, failure.failure_class, failure.stage) == (1, "oom_optimizer", "optimizer_step")


def test_a_killed_rank_leaves_what_it_knew_with_its_phase(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    write(spec, 0, START, BUILT, iteration(1, 300), {**CLOSED, "t": 99.0})
    write(spec, 1, START, BUILT, iteration(1, 400), {"event": "phase", "phase": "backward", "step": 2, "allocated_bytes": 5})
    with spec.rank_file(1).open("a") as file:
        file.write('{"event": "iteration", "step": 2, "ph')  # the kill came in the middle of a line
    record = assembled(spec, Ending(statuses={0: 13, 1: -9}))
    assert record.failure is not None
    assert (record.failure.failure_class, record.failure.rank, record.failure.stage) == ("rank_killed", 1, "steady(2)")
    assert record.failure.message == "ended by signal 9" and record.ranks[1].allocated_peak_bytes == 400
    assert record.ranks[1].steps_run == 1


def test_a_rank_without_a_word_is_unknown_never_assumed(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, world_size=3)
    write(spec, 0, START, BUILT, iteration(1, 300), END)
    write(spec, 2, START)
    record = assembled(spec, Ending(statuses={0: 0, 1: -9, 2: None}))
    assert set(record.ranks) == {0} and record.steps_run == 0 and not record.completed
    assert record.failure is not None and record.failure.rank == 1


def test_a_hang_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    write(spec, 0, BUILT, iteration(1, 300), {"event": "phase", "phase": "grad_sync", "step": 2})
    write(spec, 1, BUILT, {"event": "phase", "phase": "forward", "step": 1})
    failure = assembled(spec, Ending(statuses={0: None, 1: None}, hung="no progress")).failure
    assert failure is not None
    assert (failure.failure_class, failure.rank, failure.stage) == ("hang", 1, "first_forward")


def test_a_hang_in_teardown_keeps_the_result(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    for rank in (0, 1):
        write(spec, rank, BUILT, iteration(1, 300), END)
    record = assembled(spec, Ending(statuses={0: 0, 1: None}))
    assert record.completed and record.failure is None and record.details["teardown_hang"]


def test_nothing_at_all(tmp_path: Path) -> None:
    record = assembled(a_spec(tmp_path), Ending(statuses={}))
    assert not record.ranks and record.failure is not None and record.failure.failure_class == "launch_error"


@pytest.mark.parametrize(
    ("phase", "step", "stage"),
    [
        ("launch", 0, "launch"), ("build", 0, "model_build"), ("forward", 1, "first_forward"), ("loss", 1, "first_forward"),
        ("backward", 1, "backward"), ("grad_sync", 1, "grad_sync"), ("optimizer", 1, "optimizer_init"),
        ("optimizer", 3, "optimizer_step"), ("forward", 2, "post_optimizer_forward"), ("backward", 4, "steady(4)"),
        ("after_capture", 4, "graph_capture"),
    ],
)  # fmt: skip
def test_stages(phase: str, step: int, stage: str) -> None:
    assert stage_of(phase, step) == stage


@pytest.mark.parametrize(
    ("types", "message", "phase", "step", "failure_class"),
    [
        (["OutOfMemoryError"], "", "forward", 2, "oom_capacity"),
        (["OutOfMemoryError"], "", "loss", 2, "oom_loss_path"),
        (["OutOfMemoryError"], "", "optimizer", 1, "oom_optimizer"),
        (["OutOfMemoryError"], "", "after_capture", 4, "oom_graph_capture"),
        (["AssertionError"], "tp must divide", "build", 0, "config_invalid"),
        (["ValueError"], "", "forward", 1, "config_invalid"),
        (["ValueError"], "", "forward", 3, "other"),
        (["DistNetworkError"], "The server socket has failed ... EADDRINUSE", "build", 0, "port"),
        (["CheckpointError"], "", "backward", 2, "nondeterministic_replay"),
    ],
)
def test_classes(types: list[str], message: str, phase: str, step: int, failure_class: str) -> None:
    symptom = Symptom(types=tuple(types), message=message, phase=phase, step=step)
    assert class_of(symptom) == failure_class


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(0, 400))
def test_lines_cut_anywhere_are_read_up_to_the_cut(numbers: list[int], cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "000.jsonl"
        writer = LineWriter(path)
        for number in numbers:
            writer.write("phase", step=number)
        writer.close()
        whole = path.read_bytes()
        part = whole[: max(0, len(whole) - cut)]
        path.write_bytes(part)
        assert [line["step"] for line in read_lines(path)] == numbers[: part.count(b"\n") + (part[-1:] == b"}")]
        follower = LineFollower(path)
        seen = follower.read()
        path.write_bytes(whole)
        assert [line["step"] for line in seen + follower.read()] == numbers
        assert follower.read() == []


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "no") == [] and LineFollower(tmp_path / "no").read() == []


def test_a_spec_reads_back(tmp_path: Path) -> None:
    spec = a_spec(tmp_path)
    assert TrialSpec.load(spec.save()) == spec


def test_graphs_count_as_captured_where_every_rank_came_to_it(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, cuda_graph_impl="transformer_engine", cuda_graph_modules=("attn",))
    capture = {"event": "phase", "phase": "after_capture", "step": 3}
    for ranks, captured in (((0, 1), True), ((0,), False), ((), False)):
        for rank in (0, 1):
            write(spec, rank, START, BUILT, iteration(1, 200), *([capture] if rank in ranks else []), END)
        assert assembled(spec, Ending(statuses={0: 0, 1: 0})).details["graphs_captured"] is captured
    plain = a_spec(tmp_path)
    assert "graphs_captured" not in assembled(plain, Ending(statuses={0: 0, 1: 0})).details
