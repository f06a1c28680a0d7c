"""Records go to JSON and back; files are whole or absent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import digest, dump_json, from_builtins, load_json, to_builtins, write_atomically
from autotune.trial.record import Failure, RankRecord, TrialRecord

boundaries = st.one_of(
    st.just(Boundary.off()),
    st.lists(st.sampled_from(["moe", "moe_act", "layernorm", "mlp"])).map(Boundary.selective),
    st.builds(Boundary.full, st.sampled_from(["uniform", "block"]), st.integers(1, 99)),
)
ranks = st.builds(
    RankRecord,
    rank=st.integers(0, 1023),
    allocated_peak_bytes=st.integers(0, 2**40),
    reserved_peak_bytes=st.none() | st.integers(0, 2**40),
    phases=st.dictionaries(st.sampled_from(["forward", "backward"]), st.integers(0, 2**40)),
)
trials = st.builds(
    TrialRecord,
    number=st.integers(0, 99),
    kind=st.sampled_from(["measured", "switched", "predicted", "replayed"]),
    boundary=boundaries,
    workload_digest=st.text("0123456789abcdef", min_size=16, max_size=16),
    world_size=st.integers(1, 1024),
    completed=st.booleans(),
    ranks=st.lists(ranks, max_size=3).map(lambda found: {rank.rank: rank for rank in found}),
    step_ms=st.lists(st.floats(0, 1e6, allow_nan=False)).map(tuple),
    failure=st.none()
    | st.builds(Failure, failure_class=st.just("oom_capacity"), stage=st.just("backward"), rank=st.integers(0, 9)),
)


@given(trials)
def test_trial_record_round_trip(record: TrialRecord) -> None:
    assert from_builtins(to_builtins(record), TrialRecord, setting="x") == record


@given(st.dictionaries(st.text(), st.integers()))
def test_digest_ignores_key_order(mapping: dict[str, int]) -> None:
    assert digest(mapping) == digest(dict(reversed(mapping.items())))


def test_digest_of_different_records_differs() -> None:
    assert digest(Boundary.off()) != digest(Boundary.selective())


def test_load_json_reads_what_dump_json_wrote(tmp_path: Path) -> None:
    path = tmp_path / "boundary.json"
    write_atomically(path, dump_json(Boundary.full("block", 4)))
    assert load_json(path, Boundary) == Boundary.full("block", 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read (No such file or directory); give a readable JSON file"),
        ("{", "is no valid JSON (Input data was truncated); mend or replace the file"),
        ("{}", "Object missing required field `granularity`; give a valid Boundary"),
        ('{"granularity": "half"}', "Invalid enum value 'half' - at `$.granularity`; give a valid Boundary"),
    ],
)
def test_load_json_refuses_in_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "boundary.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RequestError) as caught:
        load_json(path, Boundary)
    assert str(caught.value) == f"{path}: {message}"


def test_write_atomically_keeps_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")

    def refuse(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file.json"]


def test_json_keeps_field_order_and_ends_with_a_newline() -> None:
    text = dump_json(Boundary.selective(["moe"]))
    fields: list[Any] = [line.split('"')[1] for line in text.splitlines() if ":" in line]
    assert fields == ["granularity", "modules", "method", "num_layers"]
    assert text.endswith("}\n")


def test_json_nested_beyond_the_interpreter_is_no_valid_json(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000)
    with pytest.raises(RequestError, match=r"is no valid JSON \(nested too deeply\); mend or replace the file"):
        load_json(deep, dict)
