"""``plan``: every candidate with its prediction, and nothing run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.boundary.notes import boundary_notes
from autotune.engine.backends import runs_on_cpu
from autotune.engine.prepare import Prepared, prepare, revisions
from autotune.engine.request import Request
from autotune.errors import NoBoundaryError
from autotune.ledger.prediction import Coverage
from autotune.records import to_builtins
from autotune.search.breakpoints import breakpoints, predicted_points
from autotune.search.candidate import Candidate
from autotune.search.fit import fit_probability
from autotune.search.outcome import Breakpoint
from autotune.units import format_gb, format_gb_and_gib

if TYPE_CHECKING:
    from autotune.ledger.ledger import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """Predicted peak of one pipeline stage."""

    stage: int
    rank: int
    peak_bytes: int
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One candidate. ``status`` reads ``distinct``, ``same as NAME``, ``no effect``, ``invalid`` or ``not checkable here``.

    ``fits`` says whether the predicted 95 % peak is within the limit; None without a limit or without a prediction.
    """

    name: str
    boundary: Mapping[str, Any]
    order: int
    status: str
    reason: str
    rule: str | None = None
    peak_bytes: int | None = None
    peak_p05_bytes: int | None = None
    peak_p95_bytes: int | None = None
    phase: str | None = None
    stage: int | None = None
    rank: int | None = None
    replay_ms: float | None = None
    replay_ms_by_label: Mapping[str, float] = field(default_factory=dict)
    fits: bool | None = None
    at_risk: bool | None = None
    """The point fits and the 95 % peak does not."""
    fit_probability: float | None = None
    stages: tuple[StageRow, ...] = ()
    notes: tuple[str, ...] = ()
    after_capture_bytes: int | None = None
    """Highest predicted peak from the capture of CUDA graphs on; None where none are captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """``candidates.json``."""

    recipe: str
    kind: str
    architecture: Mapping[str, Any]
    mem_target_bytes: int | None
    kernels: str
    """Whose are priced: ``te`` (Transformer Engine on a GPU) or ``stand_in`` (those of trials on a CPU)."""
    candidates: tuple[PlanRow, ...]
    wall: Any
    breakpoints: tuple[Breakpoint, ...]
    remedies: tuple[Any, ...]
    coverage: Coverage
    workload_source: Mapping[str, Any]
    revisions: Mapping[str, str | None]
    boundary_notes: tuple[str, ...] = ()
    """Where labels and rules come from, older switches that were read, sub-models that the patch does not reach."""
    trace: Any | None = None
    """With ``--trace``: engine/trace.py:TraceReport, the real model's peaks beside the ledger's."""


def plan(request: Request) -> PlanResult:
    """Predict every candidate of a request.

    Raises:
        RequestError: The request is wrong.
    """
    variant: Variant = "stand_in" if runs_on_cpu(request) else "te"
    return plan_of(prepare(request, variant=variant, detailed=False), request.mem_target_bytes)


def plan_of(prepared: Prepared, limit_bytes: int | None) -> PlanResult:
    """The plan of prepared candidates."""
    architecture = prepared.architecture
    return PlanResult(
        recipe=prepared.workload.name,
        kind="predicted",
        architecture={"class": architecture.class_, "title": architecture.title, "facts": dict(architecture.facts)},
        mem_target_bytes=limit_bytes,
        kernels=prepared.ledger.variant,
        candidates=tuple(_row(c, limit_bytes) for c in sorted(prepared.candidates, key=lambda c: c.order)),
        wall=prepared.wall,
        breakpoints=breakpoints(predicted_points(prepared.candidates)),
        remedies=prepared.remedies,
        coverage=prepared.coverage,
        workload_source=to_builtins(prepared.workload.source),
        revisions=revisions(prepared.workload),
        boundary_notes=boundary_notes(prepared.workload),
    )


def refuse_when_nothing_fits(result: PlanResult) -> None:
    """End with the status that a run under this limit would end with.

    Raises:
        NoBoundaryError: There is a limit, predictions, and no predicted peak is within it.
    """
    peaks = [(row.peak_bytes, row.name) for row in result.candidates if row.peak_bytes is not None]
    if result.mem_target_bytes is None or not peaks or min(peaks)[0] <= result.mem_target_bytes:
        return
    peak_bytes, name = min(peaks)
    raise NoBoundaryError(
        f"--mem-target={format_gb_and_gib(result.mem_target_bytes)}: no recompute setting fits; the smallest peak is "
        f"{format_gb(peak_bytes)} with {name} (predicted); raise the limit, or take a lever outside recompute"
    )


def _status(candidate: Candidate) -> str:
    if candidate.status == "same_as":
        return f"same as {candidate.same_as.key}" if candidate.same_as is not None else "same as another"
    return {"no_effect": "no effect", "not_checkable": "not checkable here"}.get(candidate.status, candidate.status)


def _row(candidate: Candidate, limit_bytes: int | None) -> PlanRow:
    prediction = candidate.prediction
    row = PlanRow(
        name=candidate.boundary.key,
        boundary=candidate.boundary.to_fields(),
        order=candidate.order,
        status=_status(candidate),
        reason=candidate.reason,
        rule=candidate.rule,
    )
    if prediction is None:
        return row
    known = limit_bytes is not None
    limit = limit_bytes or 0
    return PlanRow(
        name=row.name,
        boundary=row.boundary,
        order=row.order,
        status=row.status,
        reason=row.reason,
        rule=row.rule,
        peak_bytes=prediction.peak_bytes,
        peak_p05_bytes=prediction.peak_p05_bytes,
        peak_p95_bytes=prediction.peak_p95_bytes,
        phase=prediction.phase,
        stage=prediction.stage,
        rank=prediction.rank,
        replay_ms=round(prediction.replay_ms, 4),
        replay_ms_by_label=prediction.replay_ms_by_label,
        fits=prediction.peak_p95_bytes <= limit if known else None,
        at_risk=prediction.peak_bytes <= limit < prediction.peak_p95_bytes if known else None,
        fit_probability=round(fit_probability(prediction, limit), 4) if known else None,
        stages=tuple(StageRow(stage=s.stage, rank=s.rank, peak_bytes=s.peak_bytes, phase=s.phase) for s in prediction.stages),
        notes=prediction.notes,
        after_capture_bytes=prediction.after_capture_bytes,
    )
