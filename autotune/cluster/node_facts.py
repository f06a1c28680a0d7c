"""What one node has for trials: versions, GPUs, compiler, ports, disk. Imports none of what it looks for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autotune.cluster.gpus import Gpu, read_gpus

PACKAGES = ("megatron-autotune", "torch", "megatron-core", "megatron-bridge", "transformer-engine", "ray", "optuna", "ninja")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One node.

    Attributes:
        packages: Version by name; None where it is not installed.
        compiler: The C++ compiler's path, or None.
        ninja: Path of the build tool, or None.
        port: A TCP port that could be bound, or None.
        folder_seen: Whether the run directory's token is visible here; None where no folder was asked for.
    """

    host: str
    address: str
    python: str
    packages: Mapping[str, str | None]
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_bytes: int
    compiler: str | None
    compiler_version: str | None
    ninja: str | None
    port: int | None
    shm_free_bytes: int | None
    tmp_free_bytes: int
    folder_seen: bool | None = None


def read_node(token: str | None = None, *, address: str = "127.0.0.1") -> NodeFacts:
    """Look at this node. ``token`` is a file in the run directory that another node wrote."""
    compiler = next((path for name in ("g++", "c++", "clang++") if (path := shutil.which(name))), None)
    return NodeFacts(
        host=socket.gethostname(),
        address=address,
        python=sys.version.split()[0],
        packages={name: _version(name) for name in PACKAGES},
        gpus=read_gpus(),
        cpus=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        compiler=compiler,
        compiler_version=_first_line([compiler, "--version"]) if compiler else None,
        ninja=shutil.which("ninja") or _beside_python("ninja"),
        port=_port(),
        shm_free_bytes=shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None,
        tmp_free_bytes=shutil.disk_usage("/tmp").free,
        folder_seen=Path(token).exists() if token is not None else None,
    )


def _version(name: str) -> str | None:
    for spelled in (name, f"{name}-cu12", f"{name}-cu13", name.replace("-", "_")):
        try:
            return metadata.version(spelled)
        except metadata.PackageNotFoundError:
            continue
    return None


def _beside_python(name: str) -> str | None:
    path = Path(sys.executable).parent / name
    return str(path) if path.exists() else None


def _first_line(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [""])[0]


def _port() -> int | None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])
    except OSError:
        return None
