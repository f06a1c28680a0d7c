"""The network of a workload as priced layers: what each pipeline stage holds, built once per layer kind."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from autotune.ledger.block import Context, Param
from autotune.ledger.graphs import steps_before_capture
from autotune.ledger.head import cross_entropy_ops, embedding_ops, embedding_params, head_ops, head_params, mtp_ops, mtp_params
from autotune.ledger.layers import BuiltLayer, build_layer
from autotune.ledger.ops import Layer
from autotune.ledger.peft import frozen_with_adapters, with_adapters
from autotune.ledger.schedule import moments, stage_tensors
from autotune.ledger.static import static_bytes
from autotune.ledger.timeline import StageModel
from autotune.workload.architecture import HYBRID_SYMBOLS, LayerKind, classify
from autotune.workload.pipeline import Stage, stages


class Network:
    """Builds the layers and stages of ``ctx.workload``.

    Attributes:
        layers: Kind of every decoder layer.
        built: The layer kinds that stages hold, priced.
        stages: Pipeline stages in order.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.layers = classify(ctx.workload).layers
        self.built: dict[LayerKind, BuiltLayer] = {}
        self._unquantized: dict[LayerKind, BuiltLayer] = {}
        self.stages = tuple(self._stage_model(stage) for stage in stages(ctx.workload))

    def _layer(self, kind: LayerKind, *, bf16: bool) -> BuiltLayer:
        if kind not in self.built:
            self.built[kind] = build_layer(self.ctx, kind)
        if not bf16:
            return self.built[kind]
        if kind not in self._unquantized:
            precision = replace(self.ctx.workload.precision, fp8=None, fp4=None)
            context = replace(self.ctx, workload=replace(self.ctx.workload, precision=precision))
            built = build_layer(context, kind)
            graph = built.graph
            if graph is not None:
                # Megatron asks config.fp8, whatever precision a layer runs in.
                whole = self.built[kind].graph
                graph = replace(graph, acting=whole.acting if whole is not None else graph.acting)
            self._unquantized[kind] = replace(built, params=tuple(replace(p, quantized=False) for p in built.params), graph=graph)
        return self._unquantized[kind]

    def _stays_bf16(self, index: int) -> bool:
        """Whether a layer is kept out of FP8 (fp8_utils.py:is_first_last_bf16_layer at 24bad8e6)."""
        precision = self.ctx.workload.precision
        if not (precision.fp8 or precision.fp4) or not precision.first_last_layers_bf16:
            return False
        last = self.ctx.workload.model.num_layers - precision.num_layers_at_end_in_bf16
        return index < precision.num_layers_at_start_in_bf16 or index >= last

    @cached_property
    def _embedding(self) -> BuiltLayer:
        return self._frozen(BuiltLayer(None, Layer("embedding", embedding_ops(self.ctx)), embedding_params(self.ctx)))

    def _head(self, *, tied_here: bool) -> BuiltLayer:
        ops, params = head_ops(self.ctx), head_params(self.ctx, shares_with_embedding=tied_here)
        return self._frozen(BuiltLayer(None, Layer("head", ops), params, loss=True))

    def _frozen(self, built: BuiltLayer) -> BuiltLayer:
        """Embedding and head, which have no weight gradient where adapters train beside frozen weights."""
        if not self.ctx.workload.features.peft:
            return built
        ops = [replace(op, backward_bytes=0) if op.name == "embedding" else op for op in with_adapters(self.ctx, built.layer.ops)]
        return replace(built, layer=Layer(built.layer.name, ops), params=frozen_with_adapters(self.ctx, built.params))

    def _mtp(self, depth: int) -> list[BuiltLayer]:
        """One multi-token prediction depth: what goes before its layers, the layers, its output layer and cross entropy.

        With ``mtp_use_repeated_layer`` all depths run the parameters of the first
        (multi_token_prediction.py:MultiTokenPredictionBlock at 24bad8e6).
        """
        before = BuiltLayer(None, Layer(f"mtp{depth}", mtp_ops(self.ctx, depth)), mtp_params(self.ctx, depth))
        after = BuiltLayer(None, Layer(f"mtp{depth}.head", cross_entropy_ops(self.ctx, f"mtp{depth}.")), (), loss=True)
        precision = self.ctx.workload.precision
        bf16 = precision.keep_mtp_spec_in_bf16 and (precision.fp8 or precision.fp4) is not None
        found = [before, *(self._layer(kind, bf16=bf16) for kind in self._mtp_kinds(depth)), after]
        if depth and self.ctx.workload.model.mtp_use_repeated_layer:
            return [replace(built, params=()) for built in found]
        return found

    def _mtp_kinds(self, depth: int) -> tuple[LayerKind, ...]:
        """The layers of one depth: as a hybrid pattern spells them, else one more of the decoder's last."""
        model = self.ctx.workload.model
        spelled = (model.hybrid_layer_pattern or "").split("/")[1:]
        pattern = spelled[min(depth, len(spelled) - 1)] if spelled else model.mtp_hybrid_override_pattern
        if not pattern:
            return (self.layers[-1],)
        return tuple(LayerKind(*HYBRID_SYMBOLS[symbol]) for symbol in pattern if symbol in HYBRID_SYMBOLS)

    def _stage_model(self, stage: Stage) -> StageModel:
        workload, parallel = self.ctx.workload, self.ctx.workload.parallel
        pp, vpp = parallel.pipeline_model_parallel_size, len(stage.chunks)
        tied = workload.model.share_embeddings_and_output_weights
        chunks: list[list[BuiltLayer]] = [
            [self._layer(self.layers[index], bf16=self._stays_bf16(index)) for index in chunk] for chunk in stage.chunks
        ]
        extra: list[Param] = []
        if stage.has_embedding:
            chunks[0].insert(0, self._embedding)
        for depth in range(stage.mtp_layers):
            chunks[-1] += self._mtp(depth)
        if stage.mtp_layers and not stage.has_embedding:
            extra += [param for param in embedding_params(self.ctx) if param.name == "embedding.word"]
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
                self.ctx,
                params,
                has_head=stage.has_loss,
                has_moe=has_moe,
                tied_copy=tied and stage.has_loss,
                in_flight_deferred=deferred,
                largest=max(
                    (sum(p.numel for p in built.params) for chunk in chunks for built in chunk if built.kind is not None),
                    default=0,
                ),
            ),
            moments=when,
            tensors=stage_tensors(stage.index, pp, vpp, microbatches, first_chunks=int(stage.has_embedding)),
            captures=any(built.graph is not None for chunk in chunks for built in chunk),
            eager_steps=steps_before_capture(self.ctx.workload),
            last=stage.index == pp - 1,
            first_backward_before_peak=microbatches * vpp > in_flight,
        )
