"""What is wrong with nodes, and what is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autotune.cli.doctor import doctor
from autotune.cluster import doctor as module
from autotune.cluster.doctor import Check, checks_of, examine
from autotune.cluster.gpus import Gpu
from autotune.cluster.node_facts import NodeFacts, read_node
from autotune.errors import RequestError, StoppedError

GPU = Gpu(
    index=0, uuid="GPU-a", name="H100", total_bytes=80 * 10**9, used_bytes=10**6, driver="550", clock_mhz=1980, throttled=None
)


def node(host: str = "a", **changes: Any) -> NodeFacts:
    packages = {"torch": "2.14", "megatron-core": "0.19.2", "megatron-bridge": "0.6.2", "ray": "2.60"}
    packages["transformer-engine"] = "2.17.1"
    whole = NodeFacts(
        host=host, address="10.0.0.1", python="3.12.1", packages=packages, gpus=(GPU,) * 8, cpus=64, memory_bytes=10**12,
        compiler="/usr/bin/g++", compiler_version="g++ 13", ninja="/usr/bin/ninja", port=4000, shm_free_bytes=10**11,
        tmp_free_bytes=10**12,
    )  # fmt: skip
    return replace(whole, **changes)


def levels(*nodes: NodeFacts) -> dict[str, Check]:
    return {check.name: check for check in checks_of(nodes)}


def test_nothing_wrong() -> None:
    assert {check.level for check in checks_of([node("a"), node("b")])} == {"fine"}
    assert levels(node("a"), node("b"))["GPUs"].text == "16 on 2 nodes, H100, at least 79.999 GB free"


def test_each_thing_that_lacks_is_named_with_its_node() -> None:
    found = levels(node("a"), node("b", compiler=None, ninja=None, port=None, folder_seen=False))
    assert [found[name].level for name in ("compiler", "ninja", "port", "run directory")] == ["missing"] * 4
    assert all("b" in found[name].text and found[name].way_out for name in ("compiler", "ninja", "port", "run directory"))


def test_versions_have_to_be_the_same_everywhere() -> None:
    other = node("b", packages={**node().packages, "megatron-core": "0.18"}, python="3.11.9")
    found = levels(node("a"), other)
    assert found["megatron-core"].level == "missing" and "b 0.18" in found["megatron-core"].text
    assert found["python"].level == "missing"


def test_transformer_engine_is_looked_for_where_there_are_gpus() -> None:
    without = {**node().packages, "transformer-engine": None}
    assert levels(node(packages=without))["transformer-engine"].level == "missing"
    differs = levels(node("a"), node("b", packages=without))["transformer-engine"]
    assert (differs.level, differs.text) == ("missing", "differs: a 2.17.1; b none")
    assert "transformer-engine" not in levels(node(packages=without, gpus=()))


def test_no_gpu_and_no_bridge_are_warnings() -> None:
    found = levels(node(gpus=(), packages={**node().packages, "megatron-bridge": None}))
    assert (found["GPUs"].level, found["megatron-bridge"].level) == ("warning", "warning")


def test_memory_in_use_names_the_gpu() -> None:
    busy = replace(GPU, index=3, used_bytes=20 * 10**9)
    assert "a:3" in levels(node(gpus=(GPU, busy)))["GPUs"].text


def test_this_machine(tmp_path: Path) -> None:
    found = read_node(str(tmp_path))
    assert found.cpus > 0 and found.memory_bytes > 0 and found.port and found.folder_seen


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_node", lambda token: node(folder_seen=Path(token).exists()))
    done = CliRunner().invoke(doctor, ["--out", str(tmp_path / "runs"), "--format", "json"], standalone_mode=False)
    told = json.loads(done.output)
    assert done.return_value == 0 and told["examination"]["nodes"][0]["host"] == "a"
    assert not list((tmp_path / "runs").iterdir())  # the token is gone
    monkeypatch.setattr(module, "read_node", lambda token: node(ninja=None))
    done = CliRunner().invoke(doctor, [], standalone_mode=False)
    assert done.return_value == 4 and "missing  ninja" in done.output


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match="cannot be written"):
        module.examine(None, tmp_path / "file" / "runs")


def test_a_node_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from autotune.cluster import connection

    def get(calls: object, timeout: float) -> None:
        raise ray.exceptions.GetTimeoutError("Get timed out: some object(s) not ready.\nmore")

    monkeypatch.setattr(connection, "connect", lambda address, local_cpus: {})
    monkeypatch.setattr(connection, "disconnect", lambda: None)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(
        StoppedError, match=r"a node of the cluster has not said what it has \(Get timed out: some obj"
    ) as stopped:
        examine("10.0.0.1:6379", None)
    assert "\n" not in str(stopped.value)
