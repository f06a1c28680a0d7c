"""``plan --trace``: the real model's peaks beside the ledger's, for one rank of every pipeline stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.engine.plan import PlanResult
from autotune.errors import RequestError
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import StagePeak
from autotune.trial.trace.adapt import traceable
from autotune.trial.trace.launch import Traced, trace
from autotune.units import format_gb
from autotune.workload.workload import Workload

APART = 0.02
"""A difference to the ledger that is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One boundary on one stage. ``kind`` is ``traced``: the model's own allocations, no kernel, no measurement.

    Attributes:
        ledger_bytes: The ledger's peak of the same steps, with the stand-in's kernels.
        difference_ratio: The ledger's peak against the traced one.
        apart: Phases (and ``peak``) that differ by more than two percent, with their ratio.
    """

    name: str
    stage: int
    rank: int
    kind: str = "traced"
    peak_bytes: int | None = None
    phase: str | None = None
    phases: Mapping[str, int] | None = None
    ledger_bytes: int | None = None
    difference_ratio: float | None = None
    apart: Mapping[str, float] | None = None
    seconds: float = 0.0
    error: str | None = None

    @property
    def text(self) -> str:
        """For the terminal."""
        head = f"traced {self.name}, stage {self.stage} (rank {self.rank})"
        if self.peak_bytes is None or self.ledger_bytes is None or self.difference_ratio is None:
            return f"{head}: {self.error}"
        far = ", ".join(f"{phase} {100 * ratio:+.1f} %" for phase, ratio in (self.apart or {}).items())
        return (
            f"{head}: {format_gb(self.peak_bytes)} at {str(self.phase).replace('_', ' ')}, ledger {format_gb(self.ledger_bytes)} "
            f"({100 * self.difference_ratio:+.2f} %){f'; apart: {far}' if far else ''} [{self.seconds:.0f} s]"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """All rows, and what the traced workload has other than the one asked for."""

    rows: tuple[TraceRow, ...]
    differences: tuple[str, ...]


def trace_plan(
    result: PlanResult, workload: Workload, labels: str | None, on_text: Callable[[str], None] = lambda _: None
) -> TraceReport:
    """Trace the settings of a plan.

    Args:
        result: The plan; without ``labels`` its control, its single labels and its full settings are traced.
        workload: What it plans.
        labels: Settings of the user's own, comma-separated; ``+`` joins the labels of one (``layernorm,moe_act+moe``).
        on_text: Called with a line for each setting when it is done.

    Raises:
        RequestError: The tracer cannot run here, or cannot run the workload.
    """
    from autotune.trial.config_builder import refuse_on_cpu

    adapted, differences = traceable(workload)
    refuse_on_cpu(adapted)
    ledger = Ledger(adapted, variant="stand_in")
    boundaries = chosen(labels) if labels is not None else default_boundaries(result)
    for text in differences:
        on_text(f"traced with a difference: {text}")
    rows: list[TraceRow] = []

    def take(found: Traced) -> None:
        rows.append(_row(found, ledger))
        on_text(rows[-1].text)

    trace(adapted, boundaries, on_found=take)
    return TraceReport(rows=tuple(rows), differences=differences)


def default_boundaries(result: PlanResult) -> tuple[Boundary, ...]:
    """The control, every single label that does something, and full recompute of single layers."""
    found: list[Boundary] = [Boundary.selective()]
    for row in result.candidates:
        modules = row.boundary.get("recompute_modules") or ()
        if row.status == "distinct" and row.boundary.get("recompute_granularity") == "selective" and len(modules) == 1:
            found.append(Boundary.selective(modules))
    return (*found, Boundary.full("uniform", 1))


def chosen(labels: str) -> tuple[Boundary, ...]:
    """Boundaries of ``--trace-labels``. Labels are not checked: the installed Megatron says which it accepts.

    Raises:
        RequestError: An empty setting.
    """
    out: list[Boundary] = []
    for setting in labels.split(","):
        names = [name.strip() for name in setting.split("+")]
        if names != ["[]"] and not all(names):
            raise RequestError(
                "--trace-labels", labels, "a setting is labels joined by +", "write for example layernorm,moe_act+moe"
            )
        if names[0].startswith("full/"):
            parts = names[0].split("/")
            if len(names) > 1 or len(parts) != 3 or parts[1] not in ("uniform", "block") or not parts[2].isdigit():
                raise RequestError("--trace-labels", setting, "full recompute is full/METHOD/LAYERS", "write full/uniform/1")
            out.append(Boundary.full(parts[1], int(parts[2])))  # type: ignore[arg-type]
        else:
            out.append(Boundary.selective([] if names == ["[]"] else names))
    return tuple(out)


def _row(found: Traced, ledger: Ledger) -> TraceRow:
    name = found.boundary.key
    if found.error is not None or not found.steady:
        return TraceRow(name=name, stage=found.stage, rank=found.rank, error=found.error or "nothing was traced")
    said = _steady(ledger.predict(found.boundary).stages[found.stage])
    traced = {phase: size for phase, size in found.steady.items() if phase in said}
    phase = max(traced, key=lambda name: traced[name])
    peak, expected = traced[phase], max(said[phase] for phase in traced)
    ratios = {"peak": expected / peak - 1, **{phase: said[phase] / size - 1 for phase, size in traced.items()}}
    return TraceRow(
        name=name,
        stage=found.stage,
        rank=found.rank,
        peak_bytes=peak,
        phase=phase,
        phases=traced,
        ledger_bytes=expected,
        difference_ratio=expected / peak - 1,
        apart={phase: ratio for phase, ratio in ratios.items() if abs(ratio) > APART},
        seconds=found.seconds,
    )


def _steady(stage: StagePeak) -> dict[str, int]:
    return {peak.phase: peak.peak_bytes for peak in stage.phases if peak.iteration == "steady"}


__all__: Sequence[str] = ["APART", "TraceReport", "TraceRow", "chosen", "default_boundaries", "trace_plan"]
