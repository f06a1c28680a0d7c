"""The protocol of every trial backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from autotune.boundary.boundary import Boundary
from autotune.trial.record import Kind, RepeatReason, TrialRecord

OnProgress = Callable[[Mapping[str, Any]], None]
"""Takes figures of a running trial by name: ``step``, ``peak_bytes``, ``phase``, ``rank``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial to run.

    Attributes:
        number: Number of the trial in its run, from 0.
        run_index: How many runs of this boundary went before (0 for the first).
        steps: Steps to run, optimizer initialisation and graph capture among them.
        limit_bytes: The memory limit; a simulated device takes it as its capacity.
        folder: Where the trial keeps its files; None keeps none.
        survey: A SurveyPlan as builtins: the launch is a region survey under this boundary.
    """

    number: int
    boundary: Boundary
    workload_digest: str
    world_size: int
    run_index: int = 0
    steps: int = 4
    limit_bytes: int | None = None
    repeat_reason: RepeatReason | None = None
    folder: Path | None = None
    survey: Mapping[str, Any] | None = None


class TrialBackend(Protocol):
    """Runs boundaries. A boundary that fails is a record with a failure, never an exception.

    ``kind`` is the kind of every record it makes. ``to_the_bit`` says that two runs of one boundary give the same loss
    and the same peaks.
    ``free`` says that a run costs nothing (a table, a formula), so that nothing has to be left out.
    """

    name: str
    kind: Kind
    to_the_bit: bool
    free: bool

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        """Why this backend cannot run the boundary for the ``run_index``-th time; None where it can."""
        ...

    def run(self, request: TrialRequest, on_progress: OnProgress | None = None) -> TrialRecord:
        """Run one boundary.

        Raises:
            LookupError: ``lacks`` names a reason.
        """
        ...

    def close(self) -> None:
        """Give back what is held between trials (processes, placement groups). May be called twice."""
        ...
