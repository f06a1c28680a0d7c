"""The replay backend: plays recorded trials. Ranks that were not reported are not reported here either."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.trial.backends.base import OnProgress, TrialRequest
from autotune.trial.backends.tables import RecordedRun, RecordedTable
from autotune.trial.record import Kind, TrialRecord


class ReplayBackend:
    """Plays a recorded table; the n-th request of a boundary plays its n-th recorded run.

    Granularity None and selective with no modules have the same effect, so either row answers for both.
    """

    name = "replay"
    kind: Kind = "replayed"
    to_the_bit = False
    free = True

    def __init__(self, table: RecordedTable) -> None:
        self.table = table

    def runs(self, boundary: Boundary) -> tuple[RecordedRun, ...]:
        """Recorded runs of a boundary, in the order of the file."""
        found = self.table.runs.get(boundary, ())
        if not found and boundary.is_control:
            found = self.table.runs.get(Boundary.selective() if boundary.granularity is None else Boundary.off(), ())
        return found

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        """No row, or no further run in it."""
        count = len(self.runs(boundary))
        if run_index < count:
            return None
        return f"table {self.table.name} has no row for it" if count == 0 else f"table {self.table.name} holds {count} run of it"

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        """Play the next recorded run of a boundary."""
        reason = self.lacks(request.boundary, request.run_index)
        if reason is not None:
            raise LookupError(reason)
        run = self.runs(request.boundary)[request.run_index]
        details: dict[str, str | int] = {"table": self.table.name}
        if run.steps_planned is not None:
            details |= {"steps_planned": run.steps_planned}
        return TrialRecord(
            number=request.number,
            kind=self.kind,
            boundary=request.boundary,
            workload_digest=request.workload_digest,
            world_size=self.table.world_size or request.world_size,
            completed=run.completed,
            ranks=run.ranks,
            step_ms=run.step_ms,
            steps_run=run.steps_run,
            failure=run.failure,
            repeat_reason=request.repeat_reason,
            revisions=self.table.revisions,
            details=details,
        )

    def close(self) -> None:
        """Nothing is held."""
