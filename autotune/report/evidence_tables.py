"""Tables of what a run rests on: peak of every rank, of every phase, and predictions beside what trials measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.report.run_view import RunView
from autotune.report.table import Table
from autotune.report.text import UNKNOWN, boundary_name, boundary_of, off, signed_size, size
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord

HIGHEST = 8
"""Ranks listed where there are more than twice as many; the page draws them all."""
_ITERATIONS = {"first": "first step", "steady": "steady step", "after_capture": "after graph capture"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One trial that ran to its end and whose setting was predicted. Differences are trial minus prediction.

    Attributes:
        surveyed_bytes: What the survey launch predicted of the setting.
        calibrated_bytes: What the ledger predicted with the offsets of all trials before this one.
    """

    number: int
    name: str
    kind: str
    predicted_bytes: int
    p05_bytes: int | None
    p95_bytes: int | None
    seen_bytes: int
    surveyed_bytes: int | None = None
    calibrated_bytes: int | None = None

    @property
    def inside(self) -> bool | None:
        """Whether the peak lies between the 5 % and the 95 % bound."""
        if self.p05_bytes is None or self.p95_bytes is None:
            return None
        return self.p05_bytes <= self.seen_bytes <= self.p95_bytes


def comparisons(view: RunView) -> tuple[Comparison, ...]:
    """Every completed trial whose setting has a prediction, in the order they ran."""
    if view.plan is None:
        return ()
    predicted = {row.name: row for row in view.plan.candidates}
    found = []
    for trial in view.launches:
        row = predicted.get(trial.boundary.key)
        if not (trial.completed and trial.failure is None and trial.ranks) or row is None or row.peak_bytes is None:
            continue
        surveyed = view.survey.prediction(trial.boundary) if view.survey is not None else None
        found.append(
            Comparison(
                number=trial.number,
                name=boundary_name(trial.boundary),
                kind=trial.kind,
                predicted_bytes=row.peak_bytes,
                p05_bytes=row.peak_p05_bytes,
                p95_bytes=row.peak_p95_bytes,
                seen_bytes=allocated_peak(trial),
                surveyed_bytes=surveyed.peak_bytes if surveyed is not None else None,
                calibrated_bytes=(trial.details.get("prediction") or {}).get("calibrated_bytes"),
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
        note="Trials that ran to their end. Off: the trial's allocated peak against what was predicted before it, by the ledger, "
        "by the survey, and by the ledger with the offsets of the trials before (calibrated). Inside: the ledger's 5 % to 95 %.",
        columns=(
            "trial", "setting", "from the trial", "ledger", "off", "inside", "survey", "survey off", "calibrated",
            "calibrated off",
            "5 % to 95 % of the ledger",
        ),
        narrow=("trial", "from the trial", "ledger", "off"),
        rows=tuple(
            (
                str(row.number),
                row.name,
                f"{size(row.seen_bytes)}, {row.kind}",
                size(row.predicted_bytes),
                off(row.seen_bytes, row.predicted_bytes),
                {True: "yes", False: "no", None: UNKNOWN}[row.inside],
                size(row.surveyed_bytes),
                off(row.seen_bytes, row.surveyed_bytes),
                size(row.calibrated_bytes),
                off(row.seen_bytes, row.calibrated_bytes),
                UNKNOWN if row.inside is None else f"{size(row.p05_bytes)} to {size(row.p95_bytes)}",
            )
            for row in comparisons(view)
        ),
    )  # fmt: skip


def calibration_table(recommendation: Recommendation) -> Table:
    """What the trials taught the ledger: an offset for each phase, and the limits that only a device shows."""
    learnt = recommendation.calibration or {}
    rows: list[tuple[str, str]] = []
    if learnt.get("observations"):
        rows += [(f"{phase_name(phase)} phase", signed_size(n)) for phase, n in learnt["phase_offsets_bytes"].items()]
        rows.append(("phases not seen", signed_size(learnt["offset_bytes"])))
    if learnt.get("usable_bytes") is not None:
        rows.append(("memory that tensors can have", size(learnt["usable_bytes"])))
    if learnt.get("load_factor") is not None:
        rows.append(("load of the hottest expert rank", f"{learnt['load_factor']:.3f} x the mean"))
    count = learnt.get("observations", 0)
    return Table(
        title="Calibration",
        note=f"Offsets: measured minus predicted, the median of {count} {'trial' if count == 1 else 'trials'}. They move every "
        "setting's prediction alike, phase by phase; nothing is fitted for a label.",
        columns=("what", "learnt from the trials"),
        rows=tuple(rows),
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
