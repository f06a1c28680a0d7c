"""Rows behind the charts: numbers to place marks by, and the texts of ``text.py`` to show for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from autotune.report.evidence_tables import allocated_peak, iteration_name, phase_name, seen_phases, stage_peaks
from autotune.report.run_view import RunView
from autotune.report.text import UNKNOWN, Scale, boundary_name, boundary_of, milliseconds, size
from autotune.search.outcome import SettingTimeline
from autotune.trial.record import TrialRecord

Series = Literal["predicted", "from a trial", "switched", "ended early", "chosen"]
GROUPS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights",),
    "gradients": ("gradients", "main_gradients", "deferred_wgrad"),
    "optimizer state": ("optimizer_state",),
    "attention": ("attention", "mla"),
    "experts and MLP": ("moe", "mlp", "shared_experts"),
    "Mamba and GDN": ("mamba", "gdn"),
    "norms and layer inputs": ("norm", "hidden"),
    "graph pools": ("graph_pool",),
    "logits and temporary": ("logits", "transient", "replay_transient"),
    "other": (),
}
"""Tensor categories of the phase chart, in the order they are stacked; term groups that none names are ``other``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak memory against time of every setting.

    ``timed`` says what the time is: a step where trials timed steps, else the predicted replay. ``front`` is that of the
    trials where any was timed, ``predicted_front`` that of the predictions, with its ``replay_ms``.
    """

    rows: tuple[Mapping[str, Any], ...]
    front: tuple[Mapping[str, Any], ...]
    predicted_front: tuple[Mapping[str, Any], ...]
    timed: bool
    front_series: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """One predicted setting: by the survey where one ran, else by the ledger, which alone has an interval."""

    fields: Mapping[str, Any]
    peak_bytes: int
    replay_ms: float
    p05_bytes: int | None = None
    p95_bytes: int | None = None


def priced(view: RunView) -> dict[str, Priced]:
    """Predicted settings by name. A survey's steps are of the machine at hand, so its prices go with the trials' times."""
    if view.survey is not None:
        return {
            one.boundary.key: Priced(fields=one.boundary.to_fields(), peak_bytes=one.peak_bytes, replay_ms=one.price.replay_ms)
            for one in view.survey.predicted
        }
    return {
        row.name: Priced(
            fields=row.boundary,
            peak_bytes=row.peak_bytes,
            replay_ms=row.replay_ms,
            p05_bytes=row.peak_p05_bytes,
            p95_bytes=row.peak_p95_bytes,
        )
        for row in (view.plan.candidates if view.plan is not None else ())
        if row.peak_bytes is not None and row.replay_ms is not None and row.status in ("distinct", "not checkable here")
    }


def memory(view: RunView, scale: Scale) -> Memory:
    """Rows ``x`` (ms), ``y``, ``low``, ``high`` (5 % and 95 % bound), ``series`` and texts."""
    known = priced(view)
    trials = [trial for trial in view.launches if trial.ranks]
    base_ms = _base_ms(trials, known)
    chosen = view.recommendation.name
    by = "predicted by the survey" if view.survey is not None else "predicted"
    rows: list[dict[str, Any]] = []
    for name, one in known.items():
        answer = name == chosen and view.recommendation.kind == "predicted"
        rows.append(
            _row(one.fields, "chosen" if answer else "predicted", one.peak_bytes, scale, (base_ms or 0.0) + one.replay_ms)
            | _bounds(one, scale)
            | {
                "peak": f"{size(one.peak_bytes)}, {by}",
                "replay_ms": round(one.replay_ms, 3),
                "time": f"replay {milliseconds(one.replay_ms, signed=True)}, {by}",
            }
        )
    rows += _switched_rows(view, known, scale, base_ms)
    for trial in trials:
        placed = _trial_row(trial, known.get(trial.boundary.key), scale, base_ms)
        if placed is not None:
            if trial is view.answer_trial and placed["series"] == "from a trial":
                placed["series"] = "chosen"
            rows.append(placed)
    tried = {"from a trial", "chosen"} if base_ms is not None and view.survey is None else set()
    return Memory(
        rows=tuple(sorted(rows, key=lambda row: row["series"] == "chosen")),
        front=_front([row for row in rows if (row["series"] in tried if tried else "replay_ms" in row)]),
        predicted_front=_front([row for row in rows if "replay_ms" in row]),
        timed=base_ms is not None,
        front_series="trials" if tried else "predictions",
    )


def _base_ms(trials: Sequence[TrialRecord], known: Mapping[str, Priced]) -> float | None:
    """Step time that replays are added to: what timed trials leave without their predicted replay; None where none is timed."""
    left = []
    for trial in trials:
        one = known.get(trial.boundary.key)
        if trial.completed and trial.step_ms and one is not None:
            left.append(median(trial.step_ms) - one.replay_ms)
    return median(left) if left else None


def _row(fields: Mapping[str, Any], series: Series, peak_bytes: int, scale: Scale, x: float) -> dict[str, Any]:
    return {
        "x": round(x, 3),
        "y": round(peak_bytes / scale.factor, 4),
        "series": series,
        "setting": boundary_name(boundary_of(fields)),
    }


def _bounds(one: Priced, scale: Scale) -> dict[str, Any]:
    if one.p05_bytes is None or one.p95_bytes is None:
        return {}
    return {
        "low": round(one.p05_bytes / scale.factor, 4),
        "high": round(one.p95_bytes / scale.factor, 4),
        "interval": f"{size(one.p05_bytes)} to {size(one.p95_bytes)}",
    }


def _trial_row(trial: TrialRecord, one: Priced | None, scale: Scale, base_ms: float | None) -> dict[str, Any] | None:
    """A trial where it belongs; one that ended early has no step time and stands where its prediction would."""
    whole = trial.completed and trial.failure is None
    peak = allocated_peak(trial)
    fields = trial.boundary.to_fields()
    if whole and trial.step_ms:
        step = median(trial.step_ms)
        placed = _row(fields, "from a trial", peak, scale, step if base_ms is not None else 0.0)
        return placed | {"peak": f"{size(peak)}, {trial.kind}", "time": f"step {milliseconds(step)}, {trial.kind}"}
    if whole or one is None:
        return None
    why = "ended early" if trial.failure is None else trial.failure.failure_class.replace("_", " ")
    return _row(fields, "ended early", peak, scale, (base_ms or 0.0) + one.replay_ms) | {
        "peak": f"at least {size(peak)}, {trial.kind}",
        "time": f"{why}; placed at its predicted replay",
    }


def _switched_rows(view: RunView, known: Mapping[str, Priced], scale: Scale, base_ms: float | None) -> list[dict[str, Any]]:
    """Settings that a survey launch switched to. Their steps are no launch of their own: they stand at their predicted replay."""
    rows = []
    for one in view.survey.switched if view.survey is not None else ():
        price = known.get(one.boundary.key)
        if price is not None:
            placed = _row(one.boundary.to_fields(), "switched", one.peak_bytes, scale, (base_ms or 0.0) + price.replay_ms)
            step = f"step {milliseconds(median(one.step_ms))}, switched; " if one.step_ms else ""
            rows.append(placed | {"peak": f"{size(one.peak_bytes)}, switched", "time": f"{step}placed at its predicted replay"})
    return rows


def _front(rows: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Settings that no other one beats in both time and peak, by time."""
    found: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["x"], row["y"])):
        if not found or row["y"] < found[-1]["y"]:
            found.append(row)
    return tuple(found)


def ranks(view: RunView, scale: Scale) -> tuple[Mapping[str, Any], ...]:
    """Rows ``rank``, ``y`` and ``reserved`` of the answer's trial, or of every predicted stage (``stage``)."""
    hot = view.recommendation.hot_rank
    trial = view.answer_trial
    if trial is None:
        return tuple(
            {
                "rank": rank,
                "stage": f"stage {stage}",
                "y": round(peak / scale.factor, 4),
                "peak": f"{size(peak)}, predicted, {phase_name(phase)}",
                "hot": rank == hot,
            }
            for stage, rank, peak, phase in stage_peaks(view)
        )
    return tuple(
        {
            "rank": rank.rank,
            "y": round(rank.allocated_peak_bytes / scale.factor, 4),
            "peak": f"{size(rank.allocated_peak_bytes)}, {trial.kind}",
            "held": UNKNOWN if rank.reserved_peak_bytes is None else size(rank.reserved_peak_bytes),
            "hot": rank.rank == hot,
        }
        for rank in sorted(trial.ranks.values(), key=lambda rank: rank.rank)
    )


def phases(view: RunView, timeline: SettingTimeline, scale: Scale) -> tuple[Mapping[str, Any], ...]:
    """One row for each phase and tensor category that is not empty, in the order of the step."""
    seen = dict(seen_phases(view, timeline.boundary))
    kind = next((trial.kind for trial in view.launches if trial.boundary == boundary_of(timeline.boundary)), "")
    rows: list[Mapping[str, Any]] = []
    for peak in timeline.phases:
        place = f"{iteration_name(peak.iteration)}, {phase_name(peak.phase)}"
        highest = all(other.peak_bytes <= peak.peak_bytes for other in timeline.phases if other.phase == peak.phase)
        measured = seen.pop(peak.phase, None) if highest else None
        sums = dict.fromkeys(GROUPS, 0)
        for term, nbytes in peak.terms.items():
            sums[_group(term)] += nbytes
        start = 0
        for group, nbytes in sums.items():
            if nbytes <= 0:
                continue
            rows.append(
                {
                    "phase": place,
                    "group": group,
                    "from": round(start / scale.factor, 4),
                    "to": round((start + nbytes) / scale.factor, 4),
                    "bytes": f"{size(nbytes)}, predicted",
                    "total": f"{size(peak.peak_bytes)}, predicted",
                }
            )
            start += nbytes
        if measured is not None:
            rows.append(
                {
                    "phase": place,
                    "seen": round(measured / scale.factor, 4),
                    "total": f"{size(measured)}, {kind}",
                    "group": "trial",
                }
            )
    return tuple(rows)


def _group(term: str) -> str:
    return next((name for name, terms in GROUPS.items() if term in terms), "other")
