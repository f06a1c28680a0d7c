"""What a rank process has to run: one trial, as JSON, read by ``python -m autotune.trial.rank``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autotune.boundary.boundary import Boundary
from autotune.records import dump_json, load_json, write_atomically
from autotune.workload.workload import Workload

Backend = Literal["cpu", "gpu"]
Loop = Literal["bridge", "core"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial of one boundary.

    Attributes:
        steps: Optimizer steps to run, the one that makes the optimizer state among them.
        capacity_bytes: Memory of one rank's device; cpu only (a GPU has its own). None is no limit.
        folder: The trial's folder; each rank writes ``ranks/RRR.jsonl`` in it.
        loop: ``bridge`` is Megatron Bridge's ``pretrain``, ``core`` a short loop over Megatron Core; None takes Bridge
            where it is installed.
        from_recipe: Train the live Bridge recipe that the workload came from, rather than a configuration built from the
            workload's fields; None does so on GPUs.
        master_addr: Where rank 0's rendezvous listens.
        survey: Settings of a region survey in this launch, read by ``autotune.trial.survey``; None runs the boundary plainly.
    """

    number: int
    workload: Workload
    boundary: Boundary
    world_size: int
    steps: int
    seed: int = 1234
    backend: Backend
    capacity_bytes: int | None = None
    folder: str
    loop: Loop | None = None
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    local_world_size: int | None = None
    local_rank: int | None = None
    """Place of the one rank that this spec is for among those of its node; None where every node has as many ranks."""
    program: str = "autotune.trial.rank"
    """The module that a rank runs: ``preload(backend, loop)``, ``main(spec, rank)``, ``revisions()``, and as ``-m`` a command."""
    from_recipe: bool | None = None
    survey: Mapping[str, Any] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables set in every rank over those of the workload, before torch is imported (an allocator setting, say)."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of every rank: the workload's and the trial's own."""
        return {**self.workload.env_vars, **self.environment}

    def rank_file(self, rank: int) -> Path:
        """Where a rank writes its lines."""
        return Path(self.folder) / "ranks" / f"{rank:03d}.jsonl"

    def save(self, name: str = "spec.json") -> Path:
        """Write it into the trial's folder."""
        path = Path(self.folder) / name
        write_atomically(path, dump_json(self))
        return path

    @classmethod
    def load(cls, path: Path) -> TrialSpec:
        """Read a spec.

        Raises:
            RequestError: The file is no such spec.
        """
        return load_json(path, cls)
