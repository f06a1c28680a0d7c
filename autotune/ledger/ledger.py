"""The ledger: bytes and replay time of every boundary of a workload, without a trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.ledger.block import Context, Param
from autotune.ledger.head import cross_entropy_ops, embedding_ops, embedding_params, head_ops, head_params, mtp_ops, mtp_params
from autotune.ledger.layers import BuiltLayer, build_layer
from autotune.ledger.ops import Layer
from autotune.ledger.prediction import Coverage, PhasePeak, Prediction, StagePeak
from autotune.ledger.replay import Rates, forward_ms, label_ms
from autotune.ledger.schedule import moments, stage_tensors
from autotune.ledger.sizes import sizes
from autotune.ledger.spread import Z95, standard_deviation
from autotune.ledger.stack import resolve_stack
from autotune.ledger.static import static_bytes
from autotune.ledger.timeline import Iteration, StageModel, Timeline
from autotune.workload.architecture import LayerKind, classify
from autotune.workload.gpu import gpu_names, load_gpu
from autotune.workload.pipeline import Stage, stages
from autotune.workload.workload import Workload

KNOWN_LABELS = frozenset({"core_attn", "gdn_norm_out", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"})
"""Labels of Megatron Core 0.19.2 (transformer_config.py); newer ones are shown as not known."""
_NEAR = 0.85
"""Phases and stages below this share of the highest are not looked at for bounds."""
Variant = Literal["te", "stand_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One tensor of one layer kind."""

    name: str
    category: str
    layer_kind: str
    bytes_per_layer: int
    held: bool
    dropped_by: tuple[str, ...]
    """Labels that drop it when set alone."""
    formula: str
    source: str


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
        'loss'
    """

    def __init__(self, workload: Workload, *, load_factor: float | None = None, variant: Variant = "te") -> None:
        self.workload = workload
        self.load_factor = load_factor
        self.context = Context(
            workload=workload,
            sizes=sizes(workload, load_factor=load_factor or 1.0),
            stack=resolve_stack(workload),
            stand_in=variant == "stand_in",
        )
        self._architecture = classify(workload)
        self._built: dict[LayerKind, BuiltLayer] = {}
        self._unquantized: dict[LayerKind, BuiltLayer] = {}
        self._timeline = Timeline(self.context, [self._stage_model(stage) for stage in stages(workload)])
        self._predictions: dict[Boundary, Prediction] = {}
        self._label_prices: dict[LayerKind, Mapping[str, float]] = {}

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
                    out += self._layer_lines(built, labels, boundary)
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

    def wall(self) -> Wall:
        """Phase and stage that set the control's peak, and the floor of all boundaries: that of full recompute and of the
        broadest selective set, whichever is lower."""
        control = self.predict(Boundary.selective())
        top = self._binding(control)
        labels = sorted({label for built in self._built.values() for label in built.layer.labels})
        options = [Boundary.full("uniform", 1), Boundary.selective(labels), Boundary.selective()]
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
        stage_peaks = tuple(
            self._stage_peak(stage, iterations, of_stage, detailed=detailed, threshold=0.0 if detailed else _NEAR * highest)
            for stage, iterations, of_stage in zip(self._timeline.stages, per_stage, levels, strict=True)
        )
        worst = max(stage_peaks, key=lambda peak: peak.peak_bytes)
        replay, by_label = self._replay(boundary)
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
            notes=self._notes(boundary),
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

    @cached_property
    def _rates(self) -> Rates:
        name = self.workload.hardware.gpu.upper()
        known = max((gpu for gpu in gpu_names() if name.startswith(gpu.split("-")[0])), key=len, default="H100")
        gpu = load_gpu(known)
        flop = gpu.fp8_flop_per_s if self.workload.precision.fp8 and gpu.fp8_flop_per_s else gpu.bf16_flop_per_s
        return Rates.of(flop_per_s=flop, hbm_bytes_per_s=gpu.hbm_bytes_per_s, nvlink_bytes_per_s=gpu.nvlink_bytes_per_s)

    def _replay(self, boundary: Boundary) -> tuple[float, Mapping[str, float]]:
        """Extra milliseconds of a step on the stage that replays longest, and their shares by label."""
        best: dict[str, float] = {}
        best_ms = 0.0
        for counts in self._layer_counts:
            shares: dict[str, float] = {}
            for kind, chunks in counts.items():
                built = self._built[kind]
                if boundary.granularity == "full":
                    ms = self._full_ms(built) * sum(_covered(depths, boundary) for depths in chunks)
                    shares["full"] = shares.get("full", 0.0) + ms
                    continue
                layers = sum(map(len, chunks))
                for label, ms in self._label_ms(built).items():
                    if label in boundary.modules:
                        shares[label] = shares.get(label, 0.0) + ms * layers
            total = sum(shares.values())
            if total > best_ms:
                best, best_ms = shares, total
        microbatches = self.workload.num_microbatches
        return best_ms * microbatches, {label: ms * microbatches for label, ms in best.items() if ms}

    @cached_property
    def _layer_counts(self) -> tuple[Mapping[LayerKind, list[list[int]]], ...]:
        """For each stage and layer kind, the depths at which it stands in each chunk."""
        out = []
        for stage in self._timeline.stages:
            counts: dict[LayerKind, list[list[int]]] = {}
            for chunk in stage.chunks:
                here: dict[LayerKind, list[int]] = {}
                for depth, built in enumerate(layer for layer in chunk if layer.kind is not None):
                    assert built.kind is not None
                    here.setdefault(built.kind, []).append(depth)
                for kind, depths in here.items():
                    counts.setdefault(kind, []).append(depths)
            out.append(counts)
        return tuple(dict(counts) for counts in out)

    def _label_ms(self, built: BuiltLayer) -> Mapping[str, float]:
        """Replay time of each label in one layer; labels are independent, a nested one runs once more."""
        assert built.kind is not None
        if built.kind not in self._label_prices:
            labels = built.layer.labels
            if built.captured:
                labels = frozenset(region.label for region in built.layer.regions if region.discards_output)
            self._label_prices[built.kind] = label_ms(built.layer, labels, self._rates)
        return self._label_prices[built.kind]

    def _full_ms(self, built: BuiltLayer) -> float:
        return forward_ms(built.layer.ops, self._rates, host=not built.captured, checkpoints=1)

    def _inert(self, boundary: Boundary) -> tuple[str, ...]:
        """Labels that change nothing anywhere: no site, an empty region, or only inside captured scopes."""
        inert = []
        for label in boundary.modules:
            acts = False
            for built in self._built.values():
                sites = [region for region in built.layer.regions if region.label == label and region.inputs]
                acts = acts or any(not built.captured or region.discards_output for region in sites)
            if not acts:
                inert.append(label)
        return tuple(inert)

    def _notes(self, boundary: Boundary) -> tuple[str, ...]:
        notes = list(self.context.stack.notes)
        notes += [
            f"label {label} is not known to the ledger: priced as without effect"
            for label in boundary.modules
            if label not in KNOWN_LABELS
        ]
        return tuple(notes)

    def _layer_lines(self, built: BuiltLayer, labels: frozenset[str], boundary: Boundary) -> list[LedgerLine]:
        layer = built.layer
        out: list[LedgerLine] = []
        for tensor in layer.tensors.values():
            if not tensor.nbytes or not (layer.is_held(tensor.name, frozenset()) or layer.is_held(tensor.name, labels)):
                continue
            full = boundary.granularity == "full" and built.kind is not None and not tensor.name.endswith(".x")
            out.append(
                LedgerLine(
                    name=tensor.name,
                    category=tensor.group,
                    layer_kind=layer.name,
                    bytes_per_layer=tensor.nbytes,
                    held=not full and layer.is_held(tensor.name, labels),
                    dropped_by=tuple(
                        label for label in sorted(layer.labels) if not layer.is_held(tensor.name, frozenset({label}))
                    ),
                    formula=tensor.formula,
                    source=tensor.source,
                )
            )
        return out

    # ---- building ----

    def _layer(self, kind: LayerKind, index: int | None = None) -> BuiltLayer:
        if kind not in self._built:
            self._built[kind] = build_layer(self.context, kind)
        if index is None or not self._stays_bf16(index):
            return self._built[kind]
        if kind not in self._unquantized:
            precision = replace(self.workload.precision, fp8=None, fp4=None)
            context = replace(self.context, workload=replace(self.workload, precision=precision))
            built = build_layer(context, kind)
            self._unquantized[kind] = replace(built, params=tuple(replace(p, quantized=False) for p in built.params))
        return self._unquantized[kind]

    def _stays_bf16(self, index: int) -> bool:
        """Whether a layer is kept out of FP8 (fp8_utils.py:is_first_last_bf16_layer at 24bad8e6)."""
        precision = self.workload.precision
        if not precision.fp8 or not precision.first_last_layers_bf16:
            return False
        last = self.workload.model.num_layers - precision.num_layers_at_end_in_bf16
        return index < precision.num_layers_at_start_in_bf16 or index >= last

    @cached_property
    def _embedding(self) -> BuiltLayer:
        return BuiltLayer(None, Layer("embedding", embedding_ops(self.context)), embedding_params(self.context))

    def _head(self, *, tied_here: bool) -> BuiltLayer:
        return BuiltLayer(
            None, Layer("head", head_ops(self.context)), head_params(self.context, shares_with_embedding=tied_here), loss=True
        )

    def _mtp(self, depth: int) -> tuple[BuiltLayer, BuiltLayer, BuiltLayer]:
        """One multi-token prediction depth: what goes before its layer, the layer, its output layer and cross entropy."""
        kind = self._architecture.layers[-1]
        before = BuiltLayer(None, Layer(f"mtp{depth}", mtp_ops(self.context, depth)), mtp_params(self.context, depth))
        after = BuiltLayer(None, Layer(f"mtp{depth}.head", cross_entropy_ops(self.context, f"mtp{depth}.")), (), loss=True)
        return before, self._layer(kind), after

    def _stage_model(self, stage: Stage) -> StageModel:
        workload, parallel = self.workload, self.workload.parallel
        pp, vpp = parallel.pipeline_model_parallel_size, len(stage.chunks)
        tied = workload.model.share_embeddings_and_output_weights
        chunks: list[list[BuiltLayer]] = [
            [self._layer(self._architecture.layers[index], index) for index in chunk] for chunk in stage.chunks
        ]
        extra: list[Param] = []
        if stage.has_embedding:
            chunks[0].insert(0, self._embedding)
        for depth in range(stage.mtp_layers):
            chunks[-1] += self._mtp(depth)
        if stage.mtp_layers and not stage.has_embedding:
            extra += [param for param in embedding_params(self.context) if param.name == "embedding.word"]
        if stage.has_loss:
            chunks[-1].append(self._head(tied_here=tied and (stage.has_embedding or bool(stage.mtp_layers))))
        params = [param for chunk in chunks for built in chunk for param in built.params] + extra
        has_moe = any(built.kind is not None and built.kind.mlp == "moe" for chunk in chunks for built in chunk)
        microbatches = workload.num_microbatches
        group = parallel.microbatch_group_size_per_vp_stage or pp
        features = workload.features
        deferred = 0
        if features.defer_embedding_wgrad_compute and stage.has_loss:
            # layers.py:LinearWithGradAccumulationAndAsyncCommunication.backward: the limit counts micro batches, 0 means all
            deferred = min(features.wgrad_deferral_limit or microbatches, microbatches - 1)
        when = moments(stage.index, pp, vpp, microbatches, group, overlap_ep=features.overlap_moe_expert_parallel_comm)
        in_flight = max(sum(moment.in_flight) for moment in when if not moment.backward) + 1
        return StageModel(
            index=stage.index,
            rank=stage.rank,
            chunks=tuple(tuple(chunk) for chunk in chunks),
            static=static_bytes(
                self.context,
                params,
                has_head=stage.has_loss,
                has_moe=has_moe,
                tied_copy=tied and stage.has_loss,
                in_flight_deferred=deferred,
            ),
            moments=when,
            tensors=stage_tensors(stage.index, pp, vpp, microbatches, first_chunks=int(stage.has_embedding)),
            captures=features.cuda_graph_impl in ("transformer_engine", "local") and any(b.captured for c in chunks for b in c),
            first_backward_before_peak=microbatches * vpp > in_flight,
        )


def _covered(depths: list[int], boundary: Boundary) -> int:
    """How many layers at these depths of a chunk full recompute covers."""
    if boundary.method == "uniform":
        return len(depths)
    return sum(depth < (boundary.num_layers or 0) for depth in depths)
