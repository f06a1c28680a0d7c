from __future__ import annotations

from typing import Any

import pytest

from autotune.errors import RequestError
from autotune.workload import catalog, resolve
from autotune.workload.bridge_recipe import LiveRecipeError


def at_bridge(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(resolve, "installed_bridge", lambda: version)


@pytest.mark.parametrize(
    ("version", "words"), [(None, "megatron-bridge is not installed here"), ("0.6.2", "the installed revision")]
)
def test_snapshot_serves_without_bridge_and_at_its_revision(
    monkeypatch: pytest.MonkeyPatch, version: str | None, words: str
) -> None:
    at_bridge(monkeypatch, version)
    source = resolve.resolve_workload("llama3_8b").source
    assert (source.kind, source.revision) == ("catalog", "0.6.2")
    assert words in source.notes[-1]


def test_another_bridge_is_asked_for_the_live_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    at_bridge(monkeypatch, "9.9.9")
    asked: dict[str, Any] = {}

    def load_live(reference: str, **keywords: Any) -> Any:
        asked.update(reference=reference, **keywords)
        return catalog.load("nemotron3nano")

    monkeypatch.setattr(resolve, "load_live", load_live)
    workload = resolve.resolve_workload("nemotron3nano", overrides=["world_size=32", "hardware.gpu=H200", "stack.torch=2.9"])
    assert asked["reference"] == "nemotron_3_nano_pretrain_16gpu_h100_bf16_config"
    assert asked["overrides"] == ["train.global_batch_size=16"]
    assert (asked["world_size"], asked["gpu"]) == (32, "H200")
    assert workload.stack.torch == "2.9"
    assert workload.source.overrides[0] == "train.global_batch_size=16"
    assert workload.source.notes[-1] == "live recipe of Bridge 9.9.9: the catalog's snapshot is of 0.6.2"


def test_stale_snapshot_says_so_where_the_live_recipe_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    at_bridge(monkeypatch, "9.9.9")

    def load_live(reference: str, **_: Any) -> Any:
        raise LiveRecipeError("import", f"{reference} could not be loaded live: no module")

    monkeypatch.setattr(resolve, "load_live", load_live)
    source = resolve.resolve_workload("llama3_8b").source
    assert source.kind == "catalog"
    assert "stale for Bridge 9.9.9" in source.notes[-1]


def test_recipe_of_this_project_needs_no_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    own = next((entry.alias for entry in catalog.recipes() if entry.bridge_function is None), None)
    if own is None:
        pytest.skip("the catalog has no recipe of this project")
    at_bridge(monkeypatch, None)
    assert resolve.resolve_workload(own).source.notes[-1] == "a recipe of this project"


def test_module_function_without_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    at_bridge(monkeypatch, None)
    with pytest.raises(RequestError) as caught:
        resolve.resolve_workload("my.recipes:tuned")
    assert str(caught.value) == (
        "--recipe='my.recipes:tuned': needs megatron-bridge, which is not installed here; install megatron-autotune[bridge]"
    )


def test_what_bridge_would_overwrite_is_refused_live_too(monkeypatch: pytest.MonkeyPatch) -> None:
    at_bridge(monkeypatch, "9.9.9")
    with pytest.raises(RequestError, match=r"write mixed_precision\.fp8_recipe=delayed"):
        resolve.resolve_workload("llama3_8b", overrides=["optimizer.fp8_recipe=delayed"])


def test_absent_module_is_refused_before_bridge_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    at_bridge(monkeypatch, "9.9.9")
    monkeypatch.setattr(resolve, "load_live", lambda *_, **__: pytest.fail("Bridge was loaded"))
    with pytest.raises(RequestError) as caught:
        resolve.resolve_workload("no_such_module.recipes:tuned")
    assert str(caught.value) == (
        "--recipe='no_such_module.recipes:tuned': no module 'no_such_module' here; install it, or go to the folder that holds it"
    )
