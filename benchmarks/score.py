"""Predictions of measured rows, and the figures made of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from autotune.errors import AutotuneError
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import Prediction, StagePeak
from benchmarks.rows import Row

PAIR_BYTES = 50_000_000
"""Settings closer than this are noise to each other (the seed's own tables differ by as much between equal settings)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One row with its prediction, or the reason why it has none. Kind "predicted" against "measured"."""

    row: Row
    predicted_bytes: int | None = None
    p05_bytes: int | None = None
    p95_bytes: int | None = None
    phase: str | None = None
    stage: int | None = None
    reason: str | None = None
    first_bytes: int | None = None
    """Predicted peak of the first iteration alone."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus one."""
        if self.predicted_bytes is None or not self.row.measured_bytes:
            return None
        return self.predicted_bytes / self.row.measured_bytes - 1

    @property
    def counts(self) -> bool:
        """Whether the row takes part in the figures."""
        return self.error is not None and not self.row.marks


def score_row(row: Row) -> Scored:
    """Predict one row, or say why not."""
    if row.workload is None or row.boundary is None or row.reason is not None:
        return Scored(row=row, reason=row.reason or "no workload")
    try:
        ledger = Ledger(row.workload)
        coverage = ledger.coverage()
        if not coverage.covered:
            return Scored(row=row, reason="not covered: " + ", ".join(coverage.reasons))
        prediction = ledger.predict(row.boundary)
    except AutotuneError as error:
        return Scored(row=row, reason=str(error))
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        # One row that the ledger stumbles over must not hide the others; it counts as not covered.
        return Scored(row=row, reason=f"a defect of the ledger: {type(error).__name__}: {' '.join(str(error).split())}")
    return _scored(row, prediction)


def stages_of(row: Row, prediction: Prediction) -> tuple[StagePeak, ...]:
    """The stages whose peak a row reports."""
    chosen = {
        "last stage": prediction.stages[-1:],
        "first stage": prediction.stages[:1],
        "any stage": prediction.stages,
    }
    return chosen[row.reports]


def peak_of(stage: StagePeak, iterations: Sequence[str], *, without: str | None = None) -> tuple[int, str]:
    """Highest phase of one stage over some iterations, in bytes, and its name; ``without`` leaves a term group out."""
    levels = {
        f"{phase.iteration} {phase.phase}": phase.peak_bytes - (phase.terms.get(without, 0) if without else 0)
        for phase in stage.phases
        if phase.iteration in iterations
    }
    name = max(levels, key=lambda key: levels[key])
    return levels[name], name


def _first(stage: StagePeak) -> tuple[str, ...]:
    """The iteration that comes first: one after capture where graphs are captured before any step."""
    names = {phase.iteration for phase in stage.phases}
    return ("first",) if "first" in names else tuple(names)


def _scored(row: Row, prediction: Prediction) -> Scored:
    stages = stages_of(row, prediction)
    peaks = {stage.stage: peak_of(stage, row.iterations) for stage in stages}
    stage = max(stages, key=lambda item: peaks[item.stage][0])
    peak, phase = peaks[stage.stage]
    # The interval is the stage's own where the ledger gives one, else that of the whole prediction, scaled.
    low = stage.peak_p05_bytes or prediction.peak_p05_bytes * stage.peak_bytes // prediction.peak_bytes
    high = stage.peak_p95_bytes or prediction.peak_p95_bytes * stage.peak_bytes // prediction.peak_bytes
    return Scored(
        row=row,
        predicted_bytes=peak,
        p05_bytes=low * peak // stage.peak_bytes,
        p95_bytes=high * peak // stage.peak_bytes,
        phase=phase,
        stage=stage.stage,
        first_bytes=peak_of(stage, _first(stage))[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Figures over scored rows; shares and errors in percent of rows that count."""

    rows: int
    covered: int
    coverage: float
    """Covered share of the rows that have a peak and are not marked doubtful or incomplete, 0 to 1."""
    mape_percent: float | None
    median_percent: float | None
    bias_percent: float | None
    within_1_percent: float | None
    within_5_percent: float | None
    max_percent: float | None
    inside_interval_percent: float | None
    """Rows whose measured peak lies between the 5 % and the 95 % prediction."""


def summarize(scored: Iterable[Scored]) -> Summary:
    """The figures of some rows."""
    eligible = [item for item in scored if item.row.measured_bytes is not None and not item.row.marks]
    counted = [item for item in eligible if item.error is not None]
    errors = [100 * item.error for item in counted if item.error is not None]
    sizes = [abs(error) for error in errors]
    inside = [
        item.p05_bytes <= item.row.measured_bytes <= item.p95_bytes
        for item in counted
        if item.p05_bytes is not None and item.p95_bytes is not None and item.row.measured_bytes is not None
    ]
    return Summary(
        rows=len(eligible),
        covered=len(counted),
        coverage=len(counted) / len(eligible) if eligible else 0.0,
        mape_percent=statistics.fmean(sizes) if sizes else None,
        median_percent=statistics.median(sizes) if sizes else None,
        bias_percent=statistics.fmean(errors) if errors else None,
        within_1_percent=share(size <= 1 for size in sizes),
        within_5_percent=share(size <= 5 for size in sizes),
        max_percent=max(errors, key=abs) if errors else None,
        inside_interval_percent=share(inside),
    )


def share(flags: Iterable[bool]) -> float | None:
    """Percent of true flags; None of none."""
    found = list(flags)
    return 100 * sum(found) / len(found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two settings of one workload: measured and predicted difference, second minus first."""

    first: str
    second: str
    measured_bytes: int
    predicted_bytes: int

    @property
    def ordered(self) -> bool:
        """Whether the prediction puts them in the measured order."""
        return (self.measured_bytes > 0) == (self.predicted_bytes > 0) and self.predicted_bytes != 0


def setting_pairs(scored: Iterable[Scored]) -> tuple[Pair, ...]:
    """Pairs of settings of one workload, measured over the same iterations, more than 50 MB apart."""
    counted = [item for item in scored if item.counts and item.row.group is not None]
    return tuple(
        pair
        for first, second in combinations(counted, 2)
        if first.row.group == second.row.group
        and first.row.iterations == second.row.iterations
        and first.row.boundary != second.row.boundary
        and abs((pair := _pair(first, second)).measured_bytes) > PAIR_BYTES
    )


def deltas(scored: Iterable[Scored]) -> tuple[Pair, ...]:
    """Every setting against the first row of its group that was measured over the same iterations."""
    found: list[Pair] = []
    base: dict[tuple[str, tuple[str, ...]], Scored] = {}
    for item in scored:
        if not item.counts or item.row.group is None:
            continue
        first = base.setdefault((item.row.group, item.row.iterations), item)
        if first.row.boundary != item.row.boundary:
            found.append(_pair(first, item))
    return tuple(found)


def after_offset(scored: Sequence[Scored]) -> dict[str, float]:
    """Absolute error in percent of every seed-form row after one offset from its table's first counted row, by id.

    The offset is what one control trial tells: measured minus predicted, added to every other row of the table.
    """
    errors: dict[str, float] = {}
    offsets: dict[str, int] = {}
    for item in scored:
        if not item.counts or item.row.group != item.row.table:
            continue
        assert item.predicted_bytes is not None and item.row.measured_bytes is not None
        offset = offsets.setdefault(item.row.table, item.row.measured_bytes - item.predicted_bytes)
        errors[item.row.id] = 100 * abs((item.predicted_bytes + offset) / item.row.measured_bytes - 1)
    return errors


def _pair(first: Scored, second: Scored) -> Pair:
    assert first.row.measured_bytes is not None and second.row.measured_bytes is not None
    assert first.predicted_bytes is not None and second.predicted_bytes is not None
    return Pair(
        first=first.row.id,
        second=second.row.id,
        measured_bytes=second.row.measured_bytes - first.row.measured_bytes,
        predicted_bytes=second.predicted_bytes - first.predicted_bytes,
    )
