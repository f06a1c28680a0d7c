"""Tables of what a run rests on: peak of every rank, of every phase, and predictions beside what trials measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.report.run_view import RunView
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, boundary_of, percent, signed_size, size
from autotune.trial.record import TrialRecord

HIGHEST = 8
"""Ranks listed where there are more than twice as many; the page draws them all."""
_ITERATIONS = {"first": "first step", "steady": "steady step", "after_capture": "after graph capture"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One setting that was both predicted and run to its end. Differences are trial minus prediction."""

    name: str
    kind: str
    predicted_bytes: int
    p05_bytes: int | None
    p95_bytes: int | None
    seen_bytes: int

    @property
    def inside(self) -> bool | None:
        """Whether the peak lies between the 5 % and the 95 % bound."""
        if self.p05_bytes is None or self.p95_bytes is None:
            return None
        return self.p05_bytes <= self.seen_bytes <= self.p95_bytes


def comparisons(view: RunView) -> tuple[Comparison, ...]:
    """Every completed trial whose setting has a prediction, by first trial; of repeats the highest peak."""
    if view.plan is None:
        return ()
    predicted = {row.name: row for row in view.plan.candidates if row.peak_bytes is not None}
    highest: dict[str, TrialRecord] = {}
    for trial in view.launches:
        whole = trial.completed and trial.failure is None and trial.ranks
        if whole and trial.boundary.key in predicted:
            known = highest.get(trial.boundary.key)
            if known is None or allocated_peak(trial) > allocated_peak(known):
                highest[trial.boundary.key] = trial
    found = []
    for key, trial in highest.items():
        row = predicted[key]
        assert row.peak_bytes is not None
        found.append(
            Comparison(
                name=boundary_name(trial.boundary),
                kind=trial.kind,
                predicted_bytes=row.peak_bytes,
                p05_bytes=row.peak_p05_bytes,
                p95_bytes=row.peak_p95_bytes,
                seen_bytes=allocated_peak(trial),
            )
        )
    return tuple(found)


def allocated_peak(trial: TrialRecord) -> int:
    """Highest allocated peak over the ranks that reported."""
    return max(rank.allocated_peak_bytes for rank in trial.ranks.values())


def comparison_table(view: RunView) -> Table:
    """Predicted against what trials showed."""
    return Table(
        title="Predicted against measured",
        note="Trials that ran to their end. The difference is the trial's allocated peak minus the predicted one.",
        columns=("setting", "predicted", "5 % to 95 %", "from the trial", "kind", "difference", "", "inside"),
        rows=tuple(
            (
                row.name,
                size(row.predicted_bytes),
                UNKNOWN if row.inside is None else f"{size(row.p05_bytes)} to {size(row.p95_bytes)}",
                size(row.seen_bytes),
                row.kind,
                signed_size(row.seen_bytes - row.predicted_bytes),
                percent(row.seen_bytes / row.predicted_bytes - 1, signed=True),
                {True: "yes", False: "no", None: UNKNOWN}[row.inside],
            )
            for row in comparisons(view)
        ),
    )


def rank_table(view: RunView) -> Table:
    """Peaks of the answer's ranks: all of a small world, the highest and the lowest of a large one."""
    trial = view.answer_trial
    if trial is None:
        return _stage_table(view)
    ranks = sorted(trial.ranks.values(), key=lambda rank: (-rank.allocated_peak_bytes, rank.rank))
    shown, note = ranks, "Highest first."
    if len(ranks) > 2 * HIGHEST:
        shown = [*ranks[:HIGHEST], ranks[-1]]
        note = f"The {HIGHEST} highest and the lowest of {len(ranks)} ranks."
    limit = view.recommendation.mem_target_bytes
    rows = []
    for rank in shown:
        held = rank.reserved_peak_bytes if view.recommendation.mem_metric == "reserved" else rank.allocated_peak_bytes
        mark = "hot rank" if rank.rank == view.recommendation.hot_rank else ""
        room = UNKNOWN if held is None else signed_size(limit - held)
        rows.append((str(rank.rank), size(rank.allocated_peak_bytes), size(rank.reserved_peak_bytes), room, mark))
    return Table(
        title="Peak of every rank",
        note=f"Of {boundary_name(trial.boundary)}, {trial.kind}, trial {trial.number}. {note}",
        columns=("rank", "allocated peak", "reserved peak", "room to the limit", ""),
        rows=tuple(rows),
    )


def stage_peaks(view: RunView) -> tuple[tuple[int, int, int, str], ...]:
    """(stage, first rank, predicted peak in bytes, phase) of the answer; empty without a plan or an answer."""
    if view.plan is None or view.answer is None:
        return ()
    row = next((row for row in view.plan.candidates if row.name == view.answer.key), None)
    return () if row is None else tuple((s.stage, s.rank, s.peak_bytes, s.phase) for s in row.stages)


def _stage_table(view: RunView) -> Table:
    hot = view.recommendation.hot_rank
    limit = view.recommendation.mem_target_bytes
    return Table(
        title="Peak of every pipeline stage",
        note="Predicted, of the answer. Ranks of one stage are predicted alike.",
        columns=("stage", "first rank", "peak", "phase", "room to the limit", ""),
        rows=tuple(
            (str(stage), str(rank), size(peak), phase_name(phase), signed_size(limit - peak), "heaviest" if rank == hot else "")
            for stage, rank, peak, phase in stage_peaks(view)
        ),
    )


def phase_name(phase: str) -> str:
    """``grad sync`` for ``grad_sync``."""
    return phase.replace("_", " ")


def iteration_name(iteration: str) -> str:
    """``steady step`` for ``steady``."""
    return _ITERATIONS.get(iteration, iteration)


def phase_table(view: RunView) -> Table:
    """Highest level of every phase: predicted by iteration, and over all iterations from the trial's hottest rank."""
    rows = []
    for timeline in view.recommendation.timelines:
        seen = _seen_phases(view, boundary_of(timeline.boundary))
        for peak in timeline.phases:
            last = not any(
                other.phase == peak.phase and other.peak_bytes > peak.peak_bytes for other in timeline.phases
            )  # a trial's phase is its highest over all iterations: it stands beside the iteration that sets it
            measured = seen.pop(peak.phase, None) if last else None
            rows.append(
                (
                    boundary_name(boundary_of(timeline.boundary)),
                    iteration_name(peak.iteration),
                    phase_name(peak.phase),
                    size(peak.peak_bytes),
                    size(measured),
                )
            )
    kinds = {trial.kind for trial in view.launches}
    return Table(
        title="Peak of every phase",
        note="Predicted on the heaviest stage"
        + (f"; {' and '.join(sorted(kinds))} on the rank that is highest in that phase." if kinds else "."),
        columns=("setting", "iteration", "phase", "predicted", "from the trial"),
        rows=tuple(rows),
    )


def _seen_phases(view: RunView, boundary: Boundary) -> dict[str, int]:
    """Highest allocated bytes of each phase over ranks and repeats of one setting's trials, spelled as predictions are."""
    found: dict[str, int] = {}
    for trial in view.launches:
        if trial.boundary == boundary:
            for rank in trial.ranks.values():
                for phase, peak_bytes in rank.phases.items():
                    found[phase] = max(found.get(phase, 0), peak_bytes)
    return found


def seen_phases(view: RunView, fields: Mapping[str, Any]) -> Mapping[str, int]:
    """As ``_seen_phases``, for a boundary as JSON holds it."""
    return _seen_phases(view, boundary_of(fields))
