"""From surveyed regions to every setting's peak: what a survey in the short form of a truth table says.

A survey launch itself predicts every setting from storages (``trial/survey``). Where only its regions were kept, peaks follow
from the measured phases of the base by what each setting drops more or less than the base.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.search.survey import PEAK_ERROR, SAVING_ERROR, SurveyedSetting, SurveyFindings
from autotune.trial.record import TrialRecord

LAYER = "layer"
"""The label of a whole layer's region: full recompute."""
_PARENTS = {"moe_act": "moe", "shared_experts": "moe"}
"""Regions inside another: dropped with it, replayed once more (megatron/core/transformer/moe/moe_layer.py:MoELayer.forward)."""
_ACTIVATIONS_LIVE = ("forward", "loss", "backward", "after_capture")
REGION_PEAK_ERROR = 0.001
REGION_SAVING_ERROR = 0.01
"""Relative standard errors where peaks are put together from regions."""


@dataclass(slots=True)
class _Region:
    """A label over all its layers of the heaviest rank."""

    dropped: float = 0.0
    kept: float = 0.0
    transient: float = 0.0
    forward_ms: float = 0.0
    layers: int = 0


def findings_from_table(
    survey: Mapping[str, Any],
    launch: TrialRecord,
    boundaries: Iterable[Boundary],
    *,
    switched: Sequence[TrialRecord] = (),
) -> SurveyFindings:
    """What a survey launch would have told, from the ``survey`` of a truth table.

    Args:
        survey: ``{"base", "regions", "switchable"}``, and where they were kept ``predicted`` peaks of every setting.
        launch: The record of the base in that launch.
        boundaries: Settings to predict.
        switched: Settings tried in the same process.
    """
    base = launch.boundary
    if survey.get("predicted"):
        settings = tuple(_given(row) for row in survey["predicted"])
        errors = (float(survey.get("peak_error", PEAK_ERROR)), float(survey.get("saving_error", SAVING_ERROR)))
    else:
        phases: dict[str, int] = defaultdict(int)
        for rank in launch.ranks.values():
            for phase, size in (rank.phases or {"backward": rank.allocated_peak_bytes}).items():
                phases[phase] = max(phases[phase], size)
        settings = tuple(_from_regions(survey["regions"], base, phases, boundaries))
        errors = (REGION_PEAK_ERROR, REGION_SAVING_ERROR)
    inert = sorted({str(row["label"]) for row in survey.get("regions", ()) if row.get("inert")})
    return SurveyFindings(
        base=base, settings=settings, switched=tuple(switched), peak_error=errors[0], saving_error=errors[1],
        inert_labels=tuple(inert), base_peak_bytes=max(r.allocated_peak_bytes for r in launch.ranks.values()),
    )  # fmt: skip


def _given(row: Mapping[str, Any]) -> SurveyedSetting:
    fields = {f"recompute_{name}": row.get(name) for name in ("granularity", "modules", "method", "num_layers")}
    peak = int(row["peak_bytes"])
    return SurveyedSetting(
        boundary=Boundary.from_fields(fields),
        peak_bytes=peak,
        phases={str(row["phase"]): peak} if row.get("phase") else {},
        replay_ms=float(row["replay_ms"]),
        replay_error_ms=float(row.get("replay_error_ms", 0.0)),
    )


def _from_regions(
    rows: Iterable[Mapping[str, Any]], base: Boundary, measured: Mapping[str, int], boundaries: Iterable[Boundary]
) -> Iterable[SurveyedSetting]:
    regions: dict[str, _Region] = defaultdict(_Region)
    for row in rows:
        region, layers = regions[str(row["label"])], int(row.get("layers", 1))
        inert = bool(row.get("inert"))
        # An inert region may still keep more than it drops: its sign is true.
        region.dropped += layers * float(row["dropped_bytes"])
        region.kept += layers * float(row.get("kept_bytes", 0.0))
        region.transient = max(region.transient, 0.0 if inert else float(row.get("replay_transient_bytes", 0.0)))
        region.forward_ms += 0.0 if inert else layers * float(row["forward_ms"])
        region.layers += layers
    base_saved, base_transient = _saved(regions, base), _transient(regions, base)
    for boundary in boundaries:
        if boundary.granularity == "full" and LAYER not in regions:
            continue
        saved, transient = _saved(regions, boundary), _transient(regions, boundary)
        phases = dict(measured)
        for phase in _ACTIVATIONS_LIVE:
            if phase in measured:
                phases[phase] = round(measured[phase] + base_saved - saved)
        if "backward" in measured:
            phases["backward"] += round(transient - base_transient)
        prices = _prices(regions, boundary)
        yield SurveyedSetting(
            boundary=boundary,
            peak_bytes=max(phases.values()),
            phases=phases,
            replay_ms=sum(prices.values()),
            replay_ms_by_label=prices,
        )


def _saved(regions: Mapping[str, _Region], boundary: Boundary) -> float:
    """Bytes fewer at the end of forward than without recompute."""
    if boundary.granularity == "full":
        layer = regions.get(LAYER, _Region())
        share = _covered(layer, boundary)
        chunk = max(boundary.num_layers or 1, 1) if boundary.method == "uniform" else 1
        return (layer.dropped + layer.kept - layer.kept / chunk) * share
    active = set(boundary.modules)
    saved = 0.0
    for label, region in regions.items():
        # A joined label (a+b) is what a pair drops only together; it is never nested.
        if all(part in active for part in label.split("+")) and _PARENTS.get(label) not in active:
            saved += region.dropped
    return saved


def _transient(regions: Mapping[str, _Region], boundary: Boundary) -> float:
    if boundary.granularity == "full":
        chunk = max(boundary.num_layers or 1, 1) if boundary.method == "uniform" else 1
        return regions.get(LAYER, _Region()).transient * chunk
    return sum(regions[label].transient for label in boundary.modules if label in regions)


def _prices(regions: Mapping[str, _Region], boundary: Boundary) -> dict[str, float]:
    if boundary.granularity == "full":
        layer = regions[LAYER]
        return {"full": layer.forward_ms * _covered(layer, boundary)}
    return {label: regions[label].forward_ms for label in boundary.modules if label in regions}


def _covered(layer: _Region, boundary: Boundary) -> float:
    """Share of the layers that full recompute covers."""
    if boundary.method != "block" or not layer.layers:
        return 1.0
    return min((boundary.num_layers or 0) / layer.layers, 1.0)
