"""Which backend runs, and the line that says why."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from autotune.engine import backends
from autotune.engine.backends import choose
from autotune.engine.request import Request
from autotune.errors import RequestError
from autotune.workload.catalog import load

HAS_CPU = all(importlib.util.find_spec(name) is not None for name in ("ray", "torch", "megatron"))


def ask(recipe: str, **fields: Any) -> backends.Choice:
    return choose(Request(recipe=recipe, mem_target_bytes=10**9, **fields), load(recipe))


@pytest.fixture(autouse=True)
def _no_gpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_no_gpu", lambda *_: "no GPU on this machine")


def test_auto_predicts_where_nothing_can_be_launched_and_says_why() -> None:
    choice = ask("nemotron3nano")
    assert choice.name == "predict"
    assert choice.why.startswith("auto took predict, nothing is launched; not gpu: no GPU on this machine; not cpu: ")
    assert "\n" not in choice.why


@pytest.mark.skipif(not HAS_CPU, reason="the cpu backend is not there")
def test_auto_takes_cpu_for_a_recipe_that_is_sized_for_it() -> None:
    assert ask("llama_tiny").name == "cpu" and "sized for it" in ask("llama_tiny").why
    with pytest.raises(RequestError, match="the recipe is sized for 16 x H100"):
        ask("nemotron3nano", backend="cpu")


def test_auto_takes_gpu_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "_no_gpu", lambda *_: None)
    assert ask("nemotron3nano").name == "gpu"


def test_evidence_means_replay() -> None:
    assert ask("nemotron3nano", evidence="tables.json:x").name == "replay"
    assert ask("nemotron3nano", evidence="tables.json:x").why == "replay: recorded trials of tables.json:x"
    with pytest.raises(RequestError, match="replay reads recorded trials"):
        ask("nemotron3nano", backend="replay")
    with pytest.raises(RequestError, match="no GPU on this machine; use --backend predict"):
        ask("nemotron3nano", backend="gpu")


def test_auto_does_not_take_a_cpu_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("ray", "torch") else found(name))
    choice = ask("llama_tiny")
    assert choice.name == "predict" and choice.why.endswith("not cpu: ray, torch not installed")
