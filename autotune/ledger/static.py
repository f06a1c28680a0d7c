"""What a rank holds beside activations: weights, gradients, optimizer state, workspaces and buffers.

Sources at Megatron-LM 24bad8e6: distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py
(_build_model_and_main_param_groups, _copy_model_grads_to_main_grads, zero_grad), optimizer/optimizer_config.py:
OptimizerConfig.__post_init__, optimizer/__init__.py; Transformer Engine 2.17.1: optimizers/fused_adam.py:initialize_state,
module/base.py:get_dummy_wgrad, cpp_extensions/gemm.py; PyTorch aten/src/ATen/cuda/CUDABlas.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.ledger.allocator import unsplit_bytes
from autotune.ledger.block import NVFP4_BLOCK, Context, Param
from autotune.ledger.fsdp import double_buffer_bytes, gradient_dtype, keeps_root_weights, outside, sharding
from autotune.ledger.shares import shard_sizes, state_shares
from autotune.workload.workload import DTYPE_BYTES, Workload

_PARTS = ("always", "in_schedule", "after_backward", "after_step", "in_forward", "batch", "in_sync", "in_step", "in_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBytes:
    """Bytes of one rank by term group, by when they exist."""

    always: dict[str, int]
    """From construction on: weights, gradient buffer, master weights, workspaces."""
    in_schedule: dict[str, int]
    """While micro batches run, until the schedule ends: embedding weight gradients that are deferred."""
    after_backward: dict[str, int]
    """From the first backward on: cached dummy weight gradients, the workspace of autograd's thread."""
    after_step: dict[str, int]
    """From the first optimizer step on: moments (and master weights that the optimizer itself makes)."""
    in_forward: dict[str, int]
    """Only during forward and loss: the dense attention mask of the micro batch."""
    batch: dict[str, int]
    """Likewise: labels, loss mask and positions."""
    in_sync: dict[str, int]
    """Only while gradients are synchronised: those that tensor-parallel ranks add up, in one piece."""
    in_step: dict[str, int]
    """Only while the optimizer steps: fp32 copies of low-precision gradients."""
    in_backward: dict[str, int]
    """Only while backward runs: whole gradients of parameters outside layers that FSDP has not reduced yet."""
    parameters: int

    def covers(self, other: StaticBytes) -> bool:
        """Whether no term group is smaller than the other's, at any time."""
        return all(
            getattr(self, part).get(group, 0) >= nbytes for part in _PARTS for group, nbytes in getattr(other, part).items()
        )


def precision_aware_takes_effect(workload: Workload) -> bool:
    """Whether Megatron's fast path for the precision-aware optimizer is on.

    Source: optimizer_config.py:OptimizerConfig.__post_init__ at 24bad8e6
    (use_precision_aware_optimizer_no_fp8_or_ds_fp8): fp32 main parameters and an ``fp8_recipe`` that is neither None nor
    ``delayed`` switch it off, whether FP8 runs or not.
    """
    optimizer = workload.optimizer
    return optimizer.use_precision_aware_optimizer and (
        optimizer.main_params_dtype != "fp32" or optimizer.fp8_recipe in (None, "delayed") or optimizer.optimizer_cpu_offload
    )


def static_bytes(
    ctx: Context,
    params: Iterable[Param],
    *,
    has_head: bool,
    has_moe: bool,
    tied_copy: bool,
    in_flight_deferred: int,
    largest: int = 0,
) -> StaticBytes:
    """Static bytes of a rank that holds ``params``.

    Args:
        ctx: Workload, sizes and stack.
        params: All parameters of the stage.
        has_head: Whether the output layer is here.
        has_moe: Whether grouped experts are here.
        tied_copy: Whether the output layer uses the embedding's weight here (its gradient has no dummy of its own).
        in_flight_deferred: Micro batches whose embedding weight gradient is deferred here.
        largest: Elements of the largest layer.
    """
    workload, s = ctx.workload, ctx.sizes
    optimizer, precision = workload.optimizer, workload.precision
    params = tuple(params)
    total = sum(p.numel for p in params)
    dense_shards, expert_shards = shard_sizes(workload)
    spread = sharding(workload)

    def sharded(nbytes: int, of: Sequence[Param]) -> int:
        """Bytes of a rank's share, expert and dense parameters over their own ranks."""
        whole = sum(p.numel for p in of) or 1
        return round(nbytes * sum(p.numel / (expert_shards if p.expert else dense_shards) for p in of) / whole)

    weights = _weight_bytes(ctx, params)
    always: dict[str, int] = {"weights": sharded(weights, params) if spread.weights else weights}
    grad_width = DTYPE_BYTES[gradient_dtype(workload, ctx.stack)]
    trained = tuple(p for p in params if not p.frozen)
    gradients = grad_width * sum(p.numel for p in trained)
    always["gradients"] = sharded(gradients, trained) if spread.gradients else gradients
    after_step: dict[str, int] = {}
    in_step: dict[str, int] = {}

    effective = precision_aware_takes_effect(workload)
    aware = optimizer.use_precision_aware_optimizer
    decoupled = optimizer.use_megatron_fsdp and optimizer.megatron_fsdp_use_decoupled_grad
    low_precision = precision.params_dtype in ("bf16", "fp16")
    widths = _StateWidths(
        master=_master_width(workload, effective=effective),
        exp_avg=DTYPE_BYTES[optimizer.exp_avg_dtype] if aware else 4,
        exp_avg_sq=DTYPE_BYTES[optimizer.exp_avg_sq_dtype] if aware else 4,
        grad_copy=4 if low_precision and grad_width < 4 and not (effective or decoupled) else 0,
    )
    master = moments = copies = 0
    for param, shards in state_shares(ctx, trained):
        master += _state_bytes(ctx, param, shards, widths.master)
        if optimizer.optimizer in ("muon", "dist_muon") and param.matrix:
            # optimizer/__init__.py: matrices of layers have one fp32 momentum and no second moment under Muon
            moments += _state_bytes(ctx, param, shards, 4)
        elif optimizer.optimizer in ("sgd", "lion"):
            moments += _state_bytes(ctx, param, shards, 4)
        else:
            moments += _state_bytes(ctx, param, shards, widths.exp_avg) + _state_bytes(ctx, param, shards, widths.exp_avg_sq)
        # copies live for a moment: they are cut from blocks that activations have left
        copies += round(param.numel * widths.grad_copy / shards)
    if optimizer.optimizer_cpu_offload:
        # hybrid_optimizer.py:HybridDeviceOptimizer keeps state, fp32 copies and gradients of the offloaded share on the host
        here = 1 - optimizer.optimizer_offload_fraction
        master, moments, copies = round(here * master), round(here * moments), round(here * copies)
    # Effective precision-aware: FusedAdam makes the master remainders itself, at the first step.
    group = after_step if effective else always
    group["optimizer_state"] = master
    after_step["optimizer_state"] = after_step.get("optimizer_state", 0) + moments
    if copies:
        in_step["main_gradients"] = copies

    always["workspaces"] = _workspace_bytes(ctx, has_head=has_head, has_moe=has_moe)
    always["workspaces"] += _global_buffer_bytes(ctx, has_head=has_head, has_moe=has_moe)
    always["workspaces"] += _rotary_bytes(ctx, params)
    # get_batch makes a [b, 1, s, s] mask of bools; it dies with the forward step unless a checkpoint has it as its input
    mask = s.batch * workload.train.seq_length * s.sequence if workload.train.create_attention_mask_in_dataloader else 0
    # FSDP gathers parameters outside layers whole, and their gradients wait whole for the end of backward.
    in_schedule: dict[str, int] = {}
    if spread.weights and not optimizer.use_torch_fsdp2:
        (always if keeps_root_weights(workload, ctx.stack) else in_schedule)["fsdp"] = s.width * outside(params)
    always["fsdp"] = always.get("fsdp", 0) + double_buffer_bytes(workload, ctx.stack, largest)
    waiting = grad_width * outside(trained) if spread.gradients and not optimizer.use_torch_fsdp2 else 0
    if in_flight_deferred:
        in_schedule["deferred_wgrad"] = in_flight_deferred * (s.width * s.tokens * s.vocab + s.gathered_bytes)
    dummies = _dummy_wgrad_bytes(ctx, trained, tied_head=has_head and tied_copy and not ctx.workload.features.peft)
    return StaticBytes(
        always=always,
        in_schedule=in_schedule,
        after_backward={"workspaces": dummies + _thread_workspace_bytes(ctx, has_head=has_head)},
        after_step=after_step,
        in_forward={"transient": mask} if mask else {},
        batch={"transient": _batch_bytes(ctx, first=any(p.name == "embedding.word" for p in params), last=has_head)},
        in_sync={"main_gradients": flat} if (flat := _flat_gradient_bytes(ctx, trained, grad_width)) else {},
        in_step=in_step,
        in_backward={"fsdp": waiting} if waiting else {},
        parameters=total,
    )


def _flat_gradient_bytes(ctx: Context, params: Iterable[Param], width: int) -> int:
    """The copy in which gradients of what tensor-parallel ranks hold whole are added up: norms, router, latent projections and
    biases under sequence parallelism, query and key norms without it too.

    Source: distributed/finalize_model_grads.py:_allreduce_non_tensor_model_parallel_grads at 24bad8e6.
    """
    if ctx.sizes.tp == 1:
        return 0
    whole = [p for p in params if p.duplicated and (ctx.sizes.sequence_parallel or p.name.endswith(("q_norm", "k_norm")))]
    return width * sum(p.numel for p in whole)


def _batch_bytes(ctx: Context, *, first: bool, last: bool) -> int:
    """What the forward step names of a micro batch beside the mask and the tokens that the embedding keeps.

    Source: megatron/core/utils.py:get_batch_on_this_tp_rank at 24bad8e6: positions (8 n) on the first stage, labels (8 n)
    and the loss mask (4 n) on the last. The CPU backend's trial/core_loop.py:_forward_step has tokens, labels and positions
    everywhere.
    """
    if ctx.stand_in:
        return (16 if first else 24) * ctx.sizes.tokens
    return (8 * first + 12 * last) * ctx.sizes.tokens


def _master_width(workload: Workload, *, effective: bool) -> int:
    """Bytes of a main weight beside one of 16 bits; Megatron-FSDP makes them in its own dtype, or none."""
    optimizer = workload.optimizer
    if workload.precision.params_dtype not in ("bf16", "fp16"):
        return 0
    if optimizer.use_megatron_fsdp:
        own = optimizer.megatron_fsdp_main_params_dtype
        return DTYPE_BYTES[own] if own else 0
    return 2 if effective and optimizer.main_params_dtype in ("fp32", "fp16") else 4


@dataclass(frozen=True, slots=True)
class _StateWidths:
    master: int
    exp_avg: int
    exp_avg_sq: int
    grad_copy: int


def _state_bytes(ctx: Context, param: Param, shards: int, width: int) -> int:
    """Bytes of one lasting optimizer state over the shard, blocks that the allocator does not split included."""
    if not width:
        return 0
    one = math.prod(param.shape) * width
    waste = unsplit_bytes(one, expandable_segments=ctx.stack.expandable_segments or ctx.stand_in)
    return round(param.copies * (one + waste) / shards)


def _rotary_bytes(ctx: Context, params: tuple[Param, ...]) -> int:
    """Cached rotary frequencies in fp32: one table for the network; MLA has one in each layer, and with YaRN (its default)
    also cosines and sines over ``original_max_position_embeddings``, buffers that become 16-bit with the model.

    Source: rotary_pos_embedding.py:RotaryEmbedding.forward (lru_cache), multi_latent_attention.py:MultiLatentAttention.__init__,
    yarn_rotary_pos_embedding.py:YarnRotaryEmbedding._set_cos_sin_cache at 24bad8e6.
    """
    model, s = ctx.workload.model, ctx.sizes
    mla_layers = sum(param.name == "mla.kv_down" for param in params)
    if mla_layers:
        tables = 2 * s.width * model.original_max_position_embeddings if model.rope_type == "yarn" else 0
        return (4 * s.sequence + tables) * model.qk_pos_emb_head_dim * mla_layers
    return 4 * s.sequence * s.head_dim if model.position_embedding_type in ("rope", "yarn", "mrope") else 0


def _dummy_wgrad_bytes(ctx: Context, params: tuple[Param, ...], *, tied_head: bool) -> int:
    """Cached stand-ins that autograd gets for weight gradients which a GEMM has accumulated already, one a shape.

    Transformer Engine's modules cache them from 2.3 on (#1651), Megatron Core's output layer from 0.14 on
    (tensor_parallel/layers.py, e7c55de99e); before, each was made and freed within its backward.
    """
    features = ctx.workload.features
    if not features.gradient_accumulation_fusion or features.transformer_impl == "local" or ctx.stack.te < (2, 3):
        return 0
    cached_head = ctx.stack.mcore >= (0, 14)
    shapes = {p.shape for p in params if p.gemm and (cached_head or p.name != "head.output")}
    if tied_head and cached_head:
        shapes.add((ctx.sizes.vocab, ctx.sizes.hidden))
    return sum(ctx.sizes.width * math.prod(shape) for shape in shapes)


def _weight_bytes(ctx: Context, params: tuple[Param, ...]) -> int:
    """Weights; under FP8 the GEMM weights are stored in one byte (FP8 parameters) or cached as such beside BF16.

    Hopper needs a transposed copy of each FP8 weight; block-wise recipes always keep both directions
    (TE module/base.py:get_weight_workspace at 2.17.1).
    """
    precision, width = ctx.workload.precision, ctx.sizes.width
    gemm = sum(p.numel for p in params if p.gemm and p.quantized and p.name != "head.output")
    rest = sum(p.numel for p in params) - gemm
    if precision.fp4:
        # Both directions of each weight, half a byte and its scales an element: cached beside BF16, or the parameters themselves
        # (param_and_grad_buffer.py:_ParamAndGradBuffer, modify_nvfp4_rowwise_storage at d98e8a64).
        return width * (rest if precision.fp4_param else gemm + rest) + 2 * (gemm // 2 + gemm // NVFP4_BLOCK)
    if not precision.fp8:
        return width * (gemm + rest)
    directions = 2 if ctx.stack.sm < 100 or precision.fp8_recipe in ("blockwise", "mxfp8") else 1
    return width * rest + gemm * (directions if precision.fp8_param else width + directions)


def _workspace_bytes(ctx: Context, *, has_head: bool, has_moe: bool) -> int:
    """cuBLAS workspaces from the first forward on: PyTorch's where torch.matmul runs, and Transformer Engine's."""
    if ctx.stand_in:
        return 0
    total = _thread_workspace_bytes(ctx, has_head=has_head)
    if ctx.workload.features.transformer_impl == "local":
        # the router's gate runs on Transformer Engine's GEMM wherever that is installed, from Megatron Core 0.14 on
        # (moe_utils.py:RouterGatingLinearFunction.forward)
        total += ctx.stack.te_workspace_bytes if has_moe and ctx.stack.mcore >= (0, 14) else 0
    else:
        total += ctx.stack.te_workspace_bytes * (1 + (4 if has_moe and ctx.workload.model.moe_grouped_gemm else 0))
        if ctx.workload.features.tp_comm_overlap and ctx.sizes.tp > 1:
            total += 3 * ctx.stack.te_workspace_bytes
    return total


def _thread_workspace_bytes(ctx: Context, *, has_head: bool) -> int:
    """PyTorch's cuBLAS workspace of one thread that calls torch.matmul: the main one, and autograd's from the first backward."""
    matmul = has_head or ctx.workload.features.transformer_impl == "local"
    return ctx.stack.torch_workspace_bytes if matmul and not ctx.stand_in else 0


def _global_buffer_bytes(ctx: Context, *, has_head: bool, has_moe: bool) -> int:
    """The ``mpu`` global memory buffer: it grows to the largest user and is never freed.

    Source: megatron/core/utils.py:GlobalMemoryBuffer at 24bad8e6; users: layers.py (sequence-parallel gather of the output
    layer), mappings.py (gather of the allgather dispatcher), dot_product_attention.py (scores of local attention).
    """
    s, workload = ctx.sizes, ctx.workload
    users = [0]
    if has_head and s.sequence_parallel and s.tp > 1:
        users.append(s.gathered_bytes)
    ep = workload.parallel.expert_model_parallel_size * workload.parallel.etp
    if has_moe and workload.model.moe_token_dispatcher_type == "allgather" and ep > 1:
        users.append(ep * s.hidden_bytes)
    if workload.features.transformer_impl == "local":
        users.append(s.width * s.batch * s.heads * s.sequence**2)
    return max(users)
