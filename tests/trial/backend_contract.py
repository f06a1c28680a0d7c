"""What every trial backend has to do. A backend's test class inherits ``BackendContract`` and gives its fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.backends.base import TrialBackend, TrialRequest
from autotune.trial.record import TrialRecord


class BackendContract:
    """Give ``backend``, ``fits`` (a boundary that completes), and ``steps`` and ``world_size`` where 4 and 1 are not right."""

    steps = 4
    world_size = 1

    @pytest.fixture
    def backend(self) -> TrialBackend:
        raise NotImplementedError

    @pytest.fixture
    def fits(self) -> Boundary:
        raise NotImplementedError

    def request_of(self, boundary: Boundary, folder: Path, /, **changes: object) -> TrialRequest:
        fields = {
            "number": 3, "boundary": boundary, "workload_digest": "w", "world_size": self.world_size, "steps": self.steps,
            "folder": folder,
        }  # fmt: skip
        return TrialRequest(**{**fields, **changes})  # type: ignore[arg-type]

    def test_record_answers_the_request(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        record = backend.run(self.request_of(fits, tmp_path, repeat_reason="near_limit"))
        assert (record.number, record.boundary, record.kind) == (3, fits, backend.kind)
        assert (record.workload_digest, record.repeat_reason) == ("w", "near_limit")
        assert record.completed and record.failure is None

    def test_record_reads_back_from_json(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        record = backend.run(self.request_of(fits, tmp_path))
        assert from_builtins(to_builtins(record), TrialRecord, setting="record.json") == record

    def test_reported_ranks_belong_to_the_world_and_have_peaks(
        self, backend: TrialBackend, fits: Boundary, tmp_path: Path
    ) -> None:
        record = backend.run(self.request_of(fits, tmp_path))
        assert record.ranks
        for number, rank in record.ranks.items():
            assert rank.rank == number and 0 <= number < record.world_size
            assert rank.allocated_peak_bytes > 0
            assert all(size <= rank.allocated_peak_bytes for size in rank.phases.values())

    def test_a_run_that_it_lacks_is_refused_with_the_reason(self, backend: TrialBackend, fits: Boundary, tmp_path: Path) -> None:
        many = 1000
        reason = backend.lacks(fits, many)
        if reason is None:
            return  # a backend that launches can always launch again
        with pytest.raises(LookupError, match=r".+"):
            backend.run(self.request_of(fits, tmp_path, run_index=many))

    def test_it_can_run_what_it_does_not_lack(self, backend: TrialBackend, fits: Boundary) -> None:
        assert backend.lacks(fits, 0) is None

    def test_close_twice(self, backend: TrialBackend) -> None:
        backend.close()
        backend.close()
