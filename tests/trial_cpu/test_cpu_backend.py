"""The cpu backend keeps the contract of every backend, over real trials through Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from backend_contract import BackendContract

from autotune.boundary.boundary import Boundary
from autotune.cluster.backend import ClusterBackend
from autotune.errors import RequestError
from autotune.trial.backends.base import TrialBackend
from autotune.workload.catalog import load

pytest.importorskip("megatron.core")


@pytest.fixture(scope="module")
def warm() -> Iterator[ClusterBackend]:
    backend = ClusterBackend(load("llama_tiny"), backend="cpu")
    yield backend
    backend.close()


@pytest.mark.slow
class TestCpuBackend(BackendContract):
    steps = 2
    world_size = 2

    @pytest.fixture
    def backend(self, warm: ClusterBackend) -> TrialBackend:
        return warm

    @pytest.fixture
    def fits(self) -> Boundary:
        return Boundary.selective(["mlp"])

    def test_the_limit_is_the_capacity_of_each_device(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        record = backend.run(self.request_of(fits, tmp_path, limit_bytes=20_000_000))
        assert record.failure is not None and record.failure.failure_class.startswith("oom")
        assert record.details["capacity_bytes"] == 20_000_000

    def test_progress_names_step_phase_and_peak(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        seen: list[Any] = []
        record = backend.run(self.request_of(fits, tmp_path), seen.append)
        assert {"forward", "backward", "optimizer"} <= {line["phase"] for line in seen}
        assert max(line["peak_bytes"] for line in seen) == max(rank.allocated_peak_bytes for rank in record.ranks.values())
        assert {line["rank"] for line in seen} <= {0, 1} and max(line["step"] for line in seen) == 2

    def test_without_a_folder_it_keeps_none(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        assert backend.run(self.request_of(fits, tmp_path, folder=None)).completed


def test_a_workload_without_stand_ins_is_refused_before_anything_starts() -> None:
    with pytest.raises(RequestError, match="has no stand-in on a CPU"):
        ClusterBackend(load("nemotron3nano"), backend="cpu")


def test_nothing_is_started_before_the_first_trial() -> None:
    backend = ClusterBackend(load("llama_tiny"), backend="cpu")
    assert backend.lacks(Boundary.off(), 3) is None
    backend.close()
    backend.close()
