"""Workload files that cannot be used: one line that names file or field, status 2."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.records import to_builtins
from autotune.workload.resolve import resolve_workload

Invoke = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def good() -> dict[str, Any]:
    found: dict[str, Any] = to_builtins(resolve_workload("nemotron3nano"))
    return found


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def without(workload: dict[str, Any], section: str, name: str) -> None:
    del workload[section][name]


def with_value(workload: dict[str, Any], section: str, name: str, value: Any) -> None:
    workload[section][name] = value


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "missing field": (
        lambda w: without(w, "model", "hidden_size"),
        "w.json: Object missing required field `hidden_size` - at `$.model`; give a valid Workload",
    ),
    "impossible value": (
        lambda w: with_value(w, "model", "num_layers", -52),
        "model.num_layers=-52: has to be positive; give model.num_layers=N with N of at least 1",
    ),
    "wrong type": (
        lambda w: with_value(w, "model", "hidden_size", "x"),
        "w.json: Expected `int`, got `str` - at `$.model.hidden_size`; give a valid Workload",
    ),
    "unknown field": (
        lambda w: with_value(w, "model", "hiden_size", 3),
        "w.json='model.hiden_size': no such field in a workload; did you mean model.hidden_size?",
    ),
    "impossible layout": (
        lambda w: with_value(w, "parallel", "world_size", 24),
        "train.global_batch_size=16: is no multiple of micro batch 1 x dp 24 = 24; use 24, or change the layout",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_field(name: str, good: dict[str, Any], invoke: Invoke, tmp_path: Path) -> None:
    change, message = CHANGES[name]
    workload = copy.deepcopy(good)
    change(workload)
    (tmp_path / "w.json").write_text(json.dumps(workload))
    for command in (["plan"], ["run", "--mem-target", "75GB", "--out", "run"]):
        assert invoke(*command, "--recipe", "w.json") == (2, "", f"autotune: {message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["w.json"]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("{", "is no valid JSON"),
        ('{"name": "x"}', "is neither a workload (model, parallel, train ...) nor a Hugging Face config"),
    ],
    ids=["absent", "no JSON", "something else"],
)
def test_file(content: str | None, part: str, invoke: Invoke, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "w.json").write_text(content)
    status, out, err = invoke("plan", "--recipe", "w.json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("autotune: ")
    assert "w.json" in err
    assert part in err


def test_good_file_is_the_recipe(good: dict[str, Any], invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(json.dumps(good))
    from_file = json.loads(invoke("plan", "--recipe", "w.json", "--format", "json")[1])
    from_alias = json.loads(invoke("plan", "--recipe", "nemotron3nano", "--format", "json")[1])
    assert from_file["candidates"] == from_alias["candidates"]
