"""What CUDA graphs of layers hold, and where it is counted.

Sources: Megatron-LM 24bad8e6 transformer/cuda_graphs.py:TECudaGraphHelper (_get_sample_arguments, create_cudagraphs) and
transformer_layer.py:_te_cuda_graph_capture, get_layer_static_inputs; Transformer Engine 2.17.1
pytorch/graph.py:_make_graphed_callables.

One graph is captured for each layer and micro batch in flight, in the order of the pipeline schedule, all in one private pool.
While a graph is captured, autograd keeps its saved tensors in the pool as it would eagerly. Capturing its backward frees them,
and from Transformer Engine 2.7 on the outputs become weak references. So when everything is captured the pool's blocks are
free ones: reserved, no longer allocated, and replays allocate nothing. What stays allocated are the static inputs of the
callables in flight (their storages are made before the capture), one set of output gradients, and one input gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.boundary.captured import checkpoints_in_capture
from autotune.ledger.block import Context
from autotune.ledger.ops import Layer, Op, Region
from autotune.workload.architecture import LayerKind
from autotune.workload.workload import Workload

_MIXER_SCOPES = {"attention": "attn", "mla": "attn", "dsa": "attn", "gdn": "attn", "mamba": "mamba"}
_ROUTER_OPS = ("moe.norm", "moe.router")


@dataclass(frozen=True, slots=True)
class CapturedPart:
    """A layer cut in what CUDA graphs capture and what still runs eagerly."""

    inside: Layer
    """The captured operations; the static input is not among their tensors."""
    eager: Layer
    """The others; tensors that live in the pool or in static inputs have no bytes here."""
    acting: frozenset[str]
    """Labels that act after capture: those of eager regions, and those that a capture records with their replay."""
    input_bytes: int
    """Static inputs of one callable."""
    output_bytes: int
    """Outputs that the callable does not save itself; in the pool from the capture of its forward to that of its backward."""
    gradient_bytes: int
    """Static output gradients, one set for all callables of equal outputs."""

    def pool(self, labels: frozenset[str]) -> int:
        """Bytes that one micro batch keeps in the pool from the capture of its forward to that of its backward."""
        return self.inside.cost(labels & self.acting).held_bytes + self.output_bytes

    def pool_peak(self, labels: frozenset[str]) -> int:
        """The highest level in the pool while this callable is captured, forward or backward, above the level before it."""
        cost = self.inside.cost(labels & self.acting)
        return max(cost.forward_peak, cost.backward_peak) + self.output_bytes


def captures_layers(ctx: Context) -> bool:
    """Whether graphs of single layers are captured (an iteration captured whole has the peaks of an eager one)."""
    features = ctx.workload.features
    return features.cuda_graph_impl in ("transformer_engine", "local") and "full_iteration" not in features.cuda_graph_modules


def steps_before_capture(workload: Workload) -> int:
    """Training steps that run eagerly before graphs are captured.

    Source: training/training.py:train at 24bad8e6: Transformer Engine's graphs when ``iteration - start_iteration`` is
    ``cuda_graph_warmup_steps``, 0 for before the first; cuda_graphs.py:CudaGraphManager at 24bad8e6 records ``local`` ones in the
    first step whatever the setting, and captures them when it has ended.
    """
    features = workload.features
    return features.cuda_graph_warmup_steps if features.cuda_graph_impl == "transformer_engine" else 1


def captured_part(
    ctx: Context, kind: LayerKind, name: str, ops: Sequence[Op], regions: Sequence[Region], *, residual_bytes: int
) -> CapturedPart | None:
    """Cut a layer; None where nothing of it is captured."""
    if not captures_layers(ctx):
        return None
    scopes = set(ctx.workload.features.cuda_graph_modules)
    inside = {op.name for op in ops if _is_inside(ctx, kind, op.name, scopes)}
    if not inside:
        return None
    # Saved or made by a captured operation: in the pool, or the static input.
    gone = {tensor.name for op in ops if op.name in inside for tensor in op.saves}
    entries = [tensor.name for op in ops for tensor in op.saves if tensor.name.endswith(".x")]
    static_input = next(name for name in entries if name in gone)
    first, last = ops[0].name in inside, ops[-1].name in inside
    # The output of a captured mixer is the residual of the other half; that of a whole layer the next layer's input.
    gone |= set(entries[1:]) | ({entries[0]} if first or last else set())
    router_only = kind.mlp == "moe" and not last and "moe.router" in inside
    hidden = ctx.sizes.hidden_bytes
    outputs = 0 if router_only else hidden
    gradients = hidden
    if router_only:
        extra = _preprocessed_bytes(ctx) if "moe_preprocess" in scopes else 0
        shared = hidden if any(op.name.startswith("moe.shared") for op in ops if op.name in inside) else 0
        outputs += extra + shared
        gradients += (extra or hidden) + shared
    part = CapturedPart(
        inside=_layer(f"{name} captured", ops, regions, inside, {static_input}, residual_bytes=residual_bytes),
        eager=_layer(f"{name} eager", ops, regions, {op.name for op in ops} - inside, gone, residual_bytes=residual_bytes),
        acting=_acting(ctx, regions, inside, ops),
        input_bytes=hidden + (_mask_bytes(ctx) if first and kind.mixer in ("attention", "mla", "dsa", "gdn") else 0),
        output_bytes=outputs,
        gradient_bytes=gradients,
    )
    if ctx.workload.features.cuda_graph_impl == "local":
        # CudaGraphManager makes static inputs in the pool as well, and keeps weak references of them
        return replace(part, input_bytes=0, output_bytes=part.output_bytes + part.input_bytes)
    return part


def _is_inside(ctx: Context, kind: LayerKind, op: str, scopes: set[str]) -> bool:
    """Whether a captured scope covers an operation; no scope names at all mean whole layers."""
    if not scopes:
        return True
    half = op.partition(".")[0]
    if half == "mlp":
        return "mlp" in scopes
    if half != "moe":
        return _MIXER_SCOPES[kind.mixer] in scopes
    if "moe" in scopes:
        return True
    if "moe_router" not in scopes:
        return False
    shared = op.startswith("moe.shared") and not ctx.workload.model.moe_shared_expert_overlap
    return op in _ROUTER_OPS or shared or (op == "moe.latent_down" and "moe_preprocess" in scopes)


def _preprocessed_bytes(ctx: Context) -> int:
    """What ``moe_preprocess`` hands out of the graph: for alltoall the permuted tokens (MoEAlltoAllTokenDispatcher
    .dispatch_preprocess), for latent experts their input; otherwise the norm's output, which the router keeps."""
    s, model = ctx.sizes, ctx.workload.model
    if model.moe_token_dispatcher_type == "alltoall":
        return s.width * s.shard_tokens * s.topk * s.moe_width
    return s.width * s.shard_tokens * s.moe_width if model.moe_latent_size else 0


def _mask_bytes(ctx: Context) -> int:
    """A dense mask of bools is a static input of every captured attention (transformer_layer.py:get_layer_static_inputs)."""
    return ctx.sizes.batch * ctx.sizes.sequence * ctx.workload.train.seq_length


def _acting(ctx: Context, regions: Sequence[Region], inside: set[str], ops: Sequence[Op]) -> frozenset[str]:
    """Labels that act after capture.

    ``CheckpointWithoutOutput`` is skipped in graph warm-up only (tensor_parallel/random.py:CheckpointWithoutOutput.checkpoint
    at 24bad8e6); which checkpoints are captured with their replay: boundary/captured.py.
    """
    replayed = checkpoints_in_capture(ctx.workload)
    eager = {label for op in ops if op.name not in inside for label in op.regions}
    return frozenset(
        region.label for region in regions if region.discards_output or region.label in replayed or region.label in eager
    )


def _layer(
    name: str, ops: Sequence[Op], regions: Sequence[Region], kept: set[str], gone: set[str], *, residual_bytes: int
) -> Layer:
    """A layer of some of the operations, with tensors that are counted elsewhere emptied."""
    saved = {tensor.name for op in ops if op.name in kept for tensor in op.saves} - gone
    here = [
        replace(
            op,
            saves=tuple(replace(tensor, nbytes=0) if tensor.name in gone else tensor for tensor in op.saves),
            names=tuple(tensor for tensor in op.names if tensor.name in saved),
        )
        for op in ops
        if op.name in kept
    ]
    labels = {label for op in here for label in op.regions}
    there = [
        replace(region, inputs=tuple(replace(tensor, nbytes=0) if tensor.name in gone else tensor for tensor in region.inputs))
        for region in regions
        if region.label in labels
    ]
    return Layer(name, here, there, residual_bytes=residual_bytes if here else 0)
