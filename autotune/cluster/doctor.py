"""What ``autotune doctor`` finds: each node's facts, what is wrong with them, and what ``auto`` would take."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune.cluster.node_facts import NodeFacts, read_node
from autotune.cluster.rays_words import first_line
from autotune.errors import RequestError, StoppedError
from autotune.units import format_gb

Level = Literal["fine", "warning", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing looked at on all nodes. ``missing`` rules a backend out, ``warning`` does not."""

    name: str
    level: Level
    text: str
    way_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """All of it."""

    scope: str
    nodes: tuple[NodeFacts, ...]
    checks: tuple[Check, ...]


def examine(address: str | None, folder: Path | None) -> Examination:
    """Look at this machine, or at every node of a cluster.

    Raises:
        RequestError: No cluster answers at the address, or the folder cannot be written.
        StoppedError: A node of it does not answer.
    """
    token = _token(folder)
    try:
        if address is None:
            nodes: tuple[NodeFacts, ...] = (read_node(str(token) if token else None),)
            scope = "this machine"
        else:
            nodes = _of_cluster(address, str(token) if token else None)
            scope = f"cluster at {address}"
    finally:
        if token is not None:
            token.unlink(missing_ok=True)
    return Examination(scope=scope, nodes=nodes, checks=tuple(checks_of(nodes)))


def _token(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    token = folder.resolve() / f".autotune-doctor-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        token.touch()
    except OSError as error:
        rule = f"cannot be written ({error.strerror})"
        raise RequestError("--out", str(folder), rule, "name a directory that you can write") from None
    return token


def _of_cluster(address: str, token: str | None) -> tuple[NodeFacts, ...]:
    from autotune.cluster.connection import connect, disconnect

    connect(address, local_cpus=1)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    try:
        look: Any = ray.remote(num_cpus=0)(read_node)
        calls = [
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                token, address=node["NodeManagerAddress"]
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        found: list[NodeFacts] = ray.get(calls, timeout=120)
        return tuple(sorted(found, key=lambda node: (node.address, node.host)))
    except ray.exceptions.RayError as error:
        raise StoppedError(
            f"a node of the cluster has not said what it has ({first_line(error)}); see Ray's logs, then look again"
        ) from error
    finally:
        disconnect()


def checks_of(nodes: Sequence[NodeFacts]) -> list[Check]:
    """What is to be said of the nodes together."""
    return [
        *_versions(nodes),
        *_transformer_engine(nodes),
        _gpus(nodes),
        _everywhere(
            "compiler",
            nodes,
            [node.compiler for node in nodes],
            "install g++: Megatron Core compiles an extension to recompute norms or moe_act, the cpu backend its allocator",
        ),
        _everywhere("ninja", nodes, [node.ninja for node in nodes], "pip install ninja: torch builds such extensions with it"),
        _everywhere("port", nodes, [str(node.port) if node.port else None for node in nodes], "no TCP port could be bound"),
        *_space(nodes),
        *_folder(nodes),
    ]


def _versions(nodes: Sequence[NodeFacts]) -> list[Check]:
    checks = []
    for name in ("torch", "megatron-core", "megatron-bridge", "ray"):
        found = {node.packages.get(name) for node in nodes}
        if len(found) > 1:
            text = "; ".join(f"{node.host} {node.packages.get(name) or 'none'}" for node in nodes)
            checks.append(Check(name=name, level="missing", text=f"differs: {text}", way_out="use one container on all nodes"))
        elif found == {None}:
            level: Level = "warning" if name == "megatron-bridge" else "missing"
            way_out = (
                "the gpu backend needs it; the cpu backend runs without" if name == "megatron-bridge" else f"pip install {name}"
            )
            checks.append(Check(name=name, level=level, text="not installed", way_out=way_out))
        else:
            checks.append(Check(name=name, level="fine", text=str(next(iter(found)))))
    pythons = {node.python.rpartition(".")[0] for node in nodes}
    if len(pythons) > 1:
        text = f"differs: {', '.join(sorted(pythons))}"
        checks.append(Check(name="python", level="missing", text=text, way_out="Ray needs one version on all nodes"))
    else:
        checks.append(Check(name="python", level="fine", text=nodes[0].python))
    return checks


def _transformer_engine(nodes: Sequence[NodeFacts]) -> list[Check]:
    """Of nodes with GPUs: on a CPU it is stood in for."""
    name = "transformer-engine"
    found = {node.host: node.packages.get(name) for node in nodes if node.gpus}
    if not found:
        return []
    if len(set(found.values())) > 1:
        text = "; ".join(f"{host} {version or 'none'}" for host, version in found.items())
        return [Check(name=name, level="missing", text=f"differs: {text}", way_out="use one container on all nodes")]
    version = next(iter(found.values()))
    if version is None:
        way_out = "Bridge's recipes need it: take an NGC container that has it"
        return [Check(name=name, level="missing", text="not installed", way_out=way_out)]
    return [Check(name=name, level="fine", text=version)]


def _gpus(nodes: Sequence[NodeFacts]) -> Check:
    total = sum(len(node.gpus) for node in nodes)
    if not total:
        return Check(name="GPUs", level="warning", text="none", way_out="the gpu backend needs one for each rank")
    kinds = sorted({gpu.name for node in nodes for gpu in node.gpus})
    busy = [f"{node.host}:{gpu.index}" for node in nodes for gpu in node.gpus if gpu.used_bytes > 0.02 * gpu.total_bytes]
    free_bytes = min(gpu.total_bytes - gpu.used_bytes for node in nodes for gpu in node.gpus)
    text = f"{total} on {sum(bool(node.gpus) for node in nodes)} nodes, {', '.join(kinds)}, at least {format_gb(free_bytes)} free"
    if busy:
        return Check(
            name="GPUs",
            level="warning",
            text=f"{text}; memory in use on {', '.join(busy[:8])}",
            way_out="end what runs there first",
        )
    if len(kinds) > 1:
        return Check(name="GPUs", level="warning", text=text, way_out="peaks and times of mixed kinds cannot be compared")
    return Check(name="GPUs", level="fine", text=text)


def _everywhere(name: str, nodes: Sequence[NodeFacts], values: Sequence[str | None], way_out: str) -> Check:
    lacking = [node.host for node, value in zip(nodes, values, strict=True) if value is None]
    if lacking:
        return Check(name=name, level="missing", text=f"not found on {', '.join(lacking)}", way_out=way_out)
    return Check(name=name, level="fine", text=", ".join(sorted({value for value in values if value})[:3]))


def _space(nodes: Sequence[NodeFacts]) -> list[Check]:
    low = [node.host for node in nodes if node.tmp_free_bytes < 5 * 10**9]
    if low:
        return [
            Check(
                name="/tmp", level="warning", text=f"less than 5 GB free on {', '.join(low)}", way_out="Ray keeps its logs there"
            )
        ]
    return [Check(name="/tmp", level="fine", text=f"{min(node.tmp_free_bytes for node in nodes) / 1e9:.0f} GB free")]


def _folder(nodes: Sequence[NodeFacts]) -> list[Check]:
    if all(node.folder_seen is None for node in nodes):
        return []
    blind = [node.host for node in nodes if not node.folder_seen]
    if blind:
        text = f"not the same on {', '.join(blind)}"
        return [Check(name="run directory", level="missing", text=text, way_out="put --out on storage that all nodes share")]
    return [Check(name="run directory", level="fine", text="seen by every node")]
