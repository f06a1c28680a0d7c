"""The ledger: bytes and replay time of every boundary of a workload, without a trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.ledger.block import Context
from autotune.ledger.lines import LedgerLine, layer_lines
from autotune.ledger.network import Network
from autotune.ledger.prediction import AFTER_CAPTURE, Coverage, PhasePeak, Prediction, StagePeak
from autotune.ledger.price import Prices
from autotune.ledger.sizes import sizes
from autotune.ledger.spread import Z95, standard_deviation
from autotune.ledger.stack import resolve_stack
from autotune.ledger.timeline import GraphBytes, Iteration, StageModel, Timeline
from autotune.workload.workload import Workload

KNOWN_LABELS = frozenset({"core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"})
"""Labels of Megatron Core 0.19.2 (transformer_config.py); newer ones are shown as not known."""
_NEAR = 0.85
"""Phases and stages below this share of the highest are not looked at for bounds."""
Variant = Literal["te", "stand_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wall:
    """What sets the control's peak, and the floor below which no label goes.

    ``floor_bytes`` is the highest peak of a phase that no boundary lowers (the optimizer step, gradient
    synchronisation) or of the weights, state and layer inputs that full recompute leaves.
    """

    stage: int
    rank: int
    phase: str
    iteration: str
    control_peak_bytes: int
    floor_bytes: int
    floor_phase: str
    floor_stage: int
    floor_boundary: Boundary


class Ledger:
    """Prices boundaries of one workload.

    Args:
        workload: What is trained; its layout has to be valid.
        load_factor: Tokens of the hot expert rank over the balanced share; None takes 1 and leaves imbalance to the spread.
        variant: ``te`` (Transformer Engine on a GPU) or ``stand_in`` (the CPU backend's stand-in for it).

    Example:
        >>> from autotune.workload.catalog import load
        >>> Ledger(load("nemotron3nano")).predict(Boundary.selective(["moe"])).phase
        'optimizer'
    """

    def __init__(self, workload: Workload, *, load_factor: float | None = None, variant: Variant = "te") -> None:
        self.workload = workload
        self.load_factor = load_factor
        self.variant = variant
        self.context = Context(
            workload=workload,
            sizes=sizes(workload, load_factor=load_factor or 1.0),
            stack=resolve_stack(workload),
            stand_in=variant == "stand_in",
        )
        self._network = Network(self.context)
        self._timeline = Timeline(self.context, self._network.stages)
        self._prices = Prices(self._network)
        self._predictions: dict[Boundary, Prediction] = {}

    def predict(self, boundary: Boundary) -> Prediction:
        """Peaks of all phases on all stages, the interval of the peak, and the replay time.

        The point peak is the highest phase peak; its 5 % and 95 % bounds are the highest of the phases' bounds.
        """
        known = self._predictions.get(boundary)
        if known is None:
            known = self._predictions[boundary] = self._predict(boundary, detailed=True)
        return known

    def predict_all(self, boundaries: Iterable[Boundary]) -> tuple[Prediction, ...]:
        """Predictions of many boundaries, for tables: as ``predict``, but a stage lists its binding phase only, and phase and
        bounds only where it is near the heaviest stage."""
        return tuple(self._predictions.get(boundary) or self._predict(boundary, detailed=False) for boundary in boundaries)

    def coverage(self) -> Coverage:
        """Whether the ledger knows everything about the workload; if not, what it does not know."""
        from autotune.ledger.coverage import coverage

        return coverage(self.workload)

    def lines(self, boundary: Boundary) -> tuple[LedgerLine, ...]:
        """Every tensor of every layer kind with its bytes, whether the boundary holds it, and its source."""
        labels = frozenset(boundary.modules) if boundary.granularity == "selective" else frozenset()
        seen: set[int] = set()
        out: list[LedgerLine] = []
        for stage in self._timeline.stages:
            for chunk in stage.chunks:
                for built in chunk:
                    if id(built) in seen:
                        continue
                    seen.add(id(built))
                    out += layer_lines(built, labels, boundary)
        return tuple(out)

    @cached_property
    def _balanced(self) -> bool:
        model = self.workload.model
        return (
            not model.num_moe_experts
            or self.load_factor is not None
            or model.moe_router_force_load_balancing
            or model.moe_router_load_balancing_type == "sinkhorn"
            or model.moe_pad_expert_input_to_capacity
        )

    def wall(self, *others: Boundary) -> Wall:
        """Phase and stage that set the control's peak, and the floor of all boundaries.

        Args:
            others: Boundaries that may be lower than full recompute and the broadest selective set. Peaks do not fall with
                breadth everywhere: what a whole-layer checkpoint keeps between steps can be more than it saves.
        """
        control = self.predict(Boundary.selective())
        top = self._binding(control)
        labels = sorted({label for built in self._network.built.values() for label in built.layer.labels})
        options = [*others, Boundary.selective(labels), Boundary.selective()]
        if self.workload.features.cuda_graph_impl in ("none", "full_iteration"):  # graphs of layers refuse full recompute
            options.append(Boundary.full("uniform", 1))
        best = min(options, key=lambda option: self.predict(option).peak_bytes)
        floor = self.predict(best)
        floor_top = self._binding(floor)
        return Wall(
            stage=control.stage,
            rank=control.rank,
            phase=control.phase,
            iteration=top.iteration,
            control_peak_bytes=control.peak_bytes,
            floor_bytes=floor.peak_bytes,
            floor_phase=floor_top.phase,
            floor_stage=floor.stage,
            floor_boundary=best,
        )

    def graphs(self, boundary: Boundary) -> tuple[GraphBytes, ...]:
        """What CUDA graphs hold on each pipeline stage that captures any."""
        return tuple(self._timeline.graphs(stage, boundary) for stage in self._timeline.stages if stage.captures)

    def states_bytes(self) -> int:
        """Weights, gradients and optimizer state alone, on the heaviest stage: no boundary goes below this."""
        groups = ("weights", "gradients", "optimizer_state")
        return max(
            sum(part.get(group, 0) for part in (stage.static.always, stage.static.after_step) for group in groups)
            for stage in self._timeline.stages
        )

    # ---- inside ----

    @staticmethod
    def _binding(prediction: Prediction) -> PhasePeak:
        return max(prediction.stages[prediction.stage].phases, key=lambda peak: peak.peak_bytes)

    def _predict(self, boundary: Boundary, *, detailed: bool) -> Prediction:
        per_stage = [self._timeline.iterations(stage, boundary, first=detailed) for stage in self._timeline.stages]
        levels = [
            {(index, phase): nbytes for index, iteration in enumerate(iterations) for phase, nbytes in iteration.levels().items()}
            for iterations in per_stage
        ]
        highest = max(max(of_stage.values()) for of_stage in levels)
        # A stage that another one outdoes sets no bound: a deviation grows slower than the bytes it is of.
        outdone = frozenset() if detailed else self._timeline.outdone
        stage_peaks = tuple(
            self._stage_peak(
                stage,
                iterations,
                of_stage,
                detailed=detailed,
                threshold=0.0 if detailed else math.inf if stage.index in outdone else _NEAR * highest,
            )
            for stage, iterations, of_stage in zip(self._timeline.stages, per_stage, levels, strict=True)
        )
        worst = max(stage_peaks, key=lambda peak: peak.peak_bytes)
        captured = [
            level
            for iterations, of_stage in zip(per_stage, levels, strict=True)
            for (index, _), level in of_stage.items()
            if iterations[index].name == AFTER_CAPTURE
        ]
        replay, by_label = self._prices.step_ms(boundary)
        reserved = max((graph.pool_bytes for graph in self.graphs(boundary)), default=0)
        return Prediction(
            peak_bytes=worst.peak_bytes,
            peak_p05_bytes=max(peak.peak_p05_bytes or 0 for peak in stage_peaks),
            peak_p95_bytes=max(peak.peak_p95_bytes or 0 for peak in stage_peaks),
            phase=worst.phase,
            stage=worst.stage,
            rank=worst.rank,
            stages=stage_peaks,
            replay_ms=replay,
            replay_ms_by_label=by_label,
            inert_labels=self._inert(boundary),
            notes=self._notes(boundary, reserved),
            graph_pool_bytes=reserved,
            after_capture_bytes=max(captured, default=None),
        )

    def _stage_peak(
        self,
        stage: StageModel,
        iterations: list[Iteration],
        levels: Mapping[tuple[int, str], int],
        *,
        detailed: bool,
        threshold: float,
    ) -> StagePeak:
        top = max(levels, key=lambda key: levels[key])
        peaks: dict[tuple[int, str], PhasePeak] = {}
        low = high = None
        if levels[top] >= threshold:
            # A phase far below the top cannot set a bound: no deviation is that large.
            wanted = levels if detailed else [key for key in levels if levels[key] >= _NEAR * levels[top]]
            peaks = {key: iterations[key[0]].peak(key[1]) for key in wanted}
            near = [peak for key, peak in peaks.items() if levels[key] >= _NEAR * levels[top]]
            deviations = [Z95 * standard_deviation(peak.terms, balanced=self._balanced) for peak in near]
            low = round(max(peak.peak_bytes - d for peak, d in zip(near, deviations, strict=True)))
            high = round(max(peak.peak_bytes + d for peak, d in zip(near, deviations, strict=True)))
        return StagePeak(
            stage=stage.index,
            rank=stage.rank,
            peak_bytes=levels[top],
            phase=top[1],
            phases=tuple(peaks.values()) if detailed else tuple(peak for key, peak in peaks.items() if key == top),
            peak_p05_bytes=low,
            peak_p95_bytes=high,
        )

    def _inert(self, boundary: Boundary) -> tuple[str, ...]:
        """Labels that change nothing anywhere: no site, an empty region, or only inside captured scopes."""
        inert = []
        for label in boundary.modules:
            acts = False
            for built in self._network.built.values():
                sites = [region for region in built.layer.regions if region.label == label and region.inputs]
                acts = acts or (bool(sites) and (built.graph is None or label in built.graph.acting))
            if not acts:
                inert.append(label)
        return tuple(inert)

    def _notes(self, boundary: Boundary, reserved: int) -> tuple[str, ...]:
        notes = list(self.context.stack.notes)
        notes += [
            f"label {label} is not known to the ledger: priced as without effect"
            for label in boundary.modules
            if label not in KNOWN_LABELS
        ]
        if reserved:
            notes.append(
                f"CUDA graph pools reserve {reserved / 1e9:.1f} GB after capture, not counted in the allocated peak (predicted)"
            )
        return tuple(notes)
