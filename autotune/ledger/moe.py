"""The mixture-of-experts half: router, dispatch, experts, shared experts, and the regions ``layernorm``, ``moe``,
``moe_act`` and ``shared_experts``.

Sources at Megatron-LM 24bad8e6: transformer/moe/moe_layer.py:MoELayer.forward, router.py:TopKRouter.forward,
token_dispatcher.py (MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher, MoEFlexTokenDispatcher), experts.py:
TEGroupedMLP.forward, SequentialMLP.forward, shared_experts.py:SharedExpertMLP; TE permutation.py at 2.17.1.
"""

from __future__ import annotations

from autotune.ledger.block import Block, Context, Param, layer_input
from autotune.ledger.mlp import eager_activation_bytes
from autotune.ledger.ops import Op, Region, Tensor, Work

_EXPERTS = "experts.py:TEGroupedMLP.forward at 24bad8e6"
_ROUTER = "router.py:TopKRouter.forward at 24bad8e6"
_DISPATCH = "token_dispatcher.py:MoEAlltoAllTokenDispatcher at 24bad8e6"
_SHARED = "shared_experts.py:SharedExpertMLP at 24bad8e6"


def moe_block(ctx: Context, name: str = "moe") -> Block:
    """The MoE half with its separate norm."""
    s = ctx.sizes
    x = layer_input(ctx, name)
    norm_out = Tensor(
        name=f"{name}.norm_out",
        nbytes=s.hidden_bytes,
        group="norm",
        formula="2 n' h",
        source="transformer_layer.py:TransformerLayer._forward_pre_mlp_layernorm at 24bad8e6",
    )
    stats = Tensor(name=f"{name}.norm_stats", nbytes=ctx.norm_stats, group="norm", formula="4 n'", source=norm_out.source)
    norm = Op(
        name=f"{name}.norm",
        saves=(x, stats),
        regions=("layernorm",),
        backward_bytes=2 * s.hidden_bytes,
        work=Work(moved_bytes=2.0 * s.hidden_bytes, modules=1, small_ops=2),
    )
    shared_ops, shared_params = _shared_experts(ctx, name, norm_out) if s.shared_ffn else ((), ())
    expert_ops, moe_act = _experts(ctx, name, norm_out)
    dispatched = expert_ops[0].saves[0]
    ops = (
        norm,
        _router(ctx, name, norm_out),
        *(() if ctx.workload.model.moe_shared_expert_overlap else shared_ops),
        *_latent_projection(ctx, name, norm_out, down=True),
        _dispatch(ctx, name),
        *expert_ops,
        *(shared_ops if ctx.workload.model.moe_shared_expert_overlap else ()),
        _combine(ctx, name, norm_out, dispatched),
        *_latent_projection(ctx, name, norm_out, down=False),
        *ctx.dropout_add(name),
    )
    regions = [
        Region(label="layernorm", inputs=(x,), outputs=(norm_out.name,), recompute_at=f"{name}.combine"),
        # token_dispatcher.probs was made inside the region and keeps its graph: the detached input and its gradient stay
        # alive from this backward to the next forward (token_dispatcher.py: self.probs, _comm_manager.token_probs).
        Region(label="moe", inputs=(norm_out,), retained_bytes=2 * s.hidden_bytes, replayed_bytes=s.hidden_bytes),
        moe_act,
    ]
    if shared_ops and not ctx.workload.model.moe_shared_expert_overlap:
        regions.append(Region(label="shared_experts", inputs=(norm_out,), inside=("moe",), replayed_bytes=s.hidden_bytes))
    return Block(
        ops=ops, regions=tuple(regions), params=(ctx.norm_params(f"{name}.norm", s.hidden), *_params(ctx, name), *shared_params)
    )


def _router(ctx: Context, name: str, norm_out: Tensor) -> Op:
    """Gating linear, scores and top-k over [tokens, experts].

    Four bytes each: the probabilities (and a one-byte map), which the dispatcher holds; the scores of the auxiliary loss; the
    scores before top-k where they are a sigmoid or a softmax over all experts (moe_utils.py:topk_routing_with_score_function,
    compute_routing_scores_for_aux_loss). The gating linear keeps its input only (RouterGatingLinearFunction).
    """
    s, model = ctx.sizes, ctx.workload.model
    pairs = s.shard_tokens * s.experts
    types = model.moe_router_load_balancing_type
    auxiliary = any("aux_loss" in kind for kind in ((types,) if isinstance(types, str) else types))
    before_topk = model.moe_router_pre_softmax or model.moe_router_score_function != "softmax"
    state = Tensor(
        name=f"{name}.router_state",
        nbytes=(5 + 4 * auxiliary + 4 * before_topk) * pairs + 12 * s.shard_tokens * s.topk,
        group="moe",
        formula="(5 to 13) n' E + 12 n' k",
        source=_ROUTER,
    )
    return Op(
        name=f"{name}.router",
        saves=(norm_out, state),
        regions=("moe",),
        backward_bytes=12 * pairs + 2 * s.hidden_bytes,
        work=Work(flop=2.0 * s.shard_tokens * s.hidden * s.experts, moved_bytes=3.0 * state.nbytes, small_ops=30),
    )


def _received_tokens(ctx: Context) -> float:
    """Distinct tokens that reach this rank before they are copied per expert (DeepEP, HybridEP): tokens with a local expert."""
    s = ctx.sizes
    ep = ctx.workload.parallel.expert_model_parallel_size
    if not s.experts or ep == 1:
        return float(s.shard_tokens)
    absent = 1.0
    for pick in range(s.topk):
        absent *= max(0.0, (s.experts - s.local_experts - pick) / (s.experts - pick))
    return s.shard_tokens * ep * ctx.workload.parallel.etp * (1 - absent)


def _dispatch(ctx: Context, name: str) -> Op:
    s, model = ctx.sizes, ctx.workload.model
    routed = s.width * s.routed_tokens * s.moe_width
    pairs, copies = s.shard_tokens * s.experts, s.shard_tokens * s.topk
    # Fused, permute keeps an int32 [n', 2 E + 1] row map and the sort by local expert one int32 a token copy; otherwise
    # moe_utils.py:permute keeps the argsort of the whole map (a slice pins it) and the row indices, both int64; before
    # Megatron Core 0.17 the transposed map itself.
    fused = 4 * (2 * pairs + s.shard_tokens) + 8 * s.routed_tokens
    unfused = (8 if ctx.stack.mcore >= (0, 17) else 1) * pairs + 8 * copies
    maps_bytes = fused if model.moe_permute_fusion else unfused
    maps = Tensor(
        name=f"{name}.row_id_maps",
        nbytes=maps_bytes,
        group="moe",
        formula="4 n' (2 E + 1) + 8 T, or 8 n' (E + k) unfused",
        source="TE permutation.py:_moe_permute_mask_map at 2.17.1; moe_utils.py:permute at 24bad8e6",
    )
    flex = model.moe_token_dispatcher_type == "flex"
    received = int(s.width * _received_tokens(ctx) * s.moe_width) if flex else routed
    ep = ctx.workload.parallel.expert_model_parallel_size
    return Op(
        name=f"{name}.dispatch",
        saves=(maps,),
        regions=("moe",),
        forward_bytes=routed + received,
        backward_bytes=routed + received + s.hidden_bytes,
        work=Work(moved_bytes=4.0 * routed, a2a_bytes=received * (1 - 1 / ep), small_ops=20),
    )


def _combine(ctx: Context, name: str, norm_out: Tensor, dispatched: Tensor) -> Op:
    """Combine holds the permuted tokens and the received ones beside the expert output and the sent-back copy, because
    ``custom_forward`` keeps its local names: (3 + [local experts > 1]) 2 T h + H (token_dispatcher.py:combine_preprocess).
    Where one rank holds all experts nothing is sent: the received tokens are the permuted ones."""
    s, model = ctx.sizes, ctx.workload.model
    routed = s.width * s.routed_tokens * s.moe_width
    flex = model.moe_token_dispatcher_type == "flex"
    ep = ctx.workload.parallel.expert_model_parallel_size
    received = int(s.width * _received_tokens(ctx) * s.moe_width) if flex else routed
    if flex:
        forward = routed + 2 * received
    elif model.moe_token_dispatcher_type == "allgather":
        # MoEAllGatherTokenDispatcher.token_combine casts what every rank gets its part of to the probabilities' type.
        sources = ep * ctx.workload.parallel.etp
        cast = 4 * sources * s.shard_tokens * s.moe_width if model.moe_router_dtype == "fp32" and _is_sent(ctx) else 0
        forward = routed + sources * s.hidden_bytes + cast
    else:
        forward = (1 + 2 * _is_sent(ctx) + (1 + (not _is_sent(ctx))) * (s.local_experts > 1)) * routed
    saves: tuple[Tensor, ...] = ()
    if ctx.workload.train.deterministic_mode and not model.moe_permute_fusion and ctx.stack.mcore >= (0, 15):
        # moe_utils.py:unpermute uses index_add_ in deterministic mode from Megatron Core 0.15 on (56818f9e50); its backward
        # keeps the source, scatter_add_'s does not.
        saves = (
            Tensor(
                name=f"{name}.unpermute_source",
                nbytes=routed,
                group="moe",
                formula="2 T h",
                source="moe_utils.py:unpermute at 24bad8e6",
            ),
        )
    return Op(
        name=f"{name}.combine",
        saves=saves,
        regions=("moe",),
        forward_bytes=forward + s.hidden_bytes,
        names=(norm_out, dispatched),
        # Without dropout the gradient that comes in is the residual's own tensor.
        backward_bytes=2 * routed + (s.hidden_bytes if model.hidden_dropout > 0 else 0),
        work=Work(moved_bytes=4.0 * routed, a2a_bytes=received * (1 - 1 / ep), small_ops=15),
    )


def _is_sent(ctx: Context) -> bool:
    """Whether tokens go to other ranks."""
    return ctx.workload.parallel.expert_model_parallel_size * ctx.workload.parallel.etp > 1


def _experts(ctx: Context, name: str, norm_out: Tensor) -> tuple[tuple[Op, ...], Region]:
    s, model, features = ctx.sizes, ctx.workload.model, ctx.workload.features
    w, t, ffn = s.width, s.routed_tokens, s.expert_ffn
    routed = w * t * s.moe_width

    def kept(suffix: str, nbytes: int, formula: str) -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group="moe", formula=formula, source=_EXPERTS)

    dispatched = kept("dispatched", ctx.gemm_input(t * s.moe_width), "2 T h")
    fc1_out = kept("expert_fc1_out", w * t * s.gate * ffn, "2 T g fe")
    probs = kept("probs", 4 * t, "4 T")
    act_out = kept("expert_act_out", ctx.gemm_input(t * ffn), "2 T fe")
    extra = eager_activation_bytes(ctx, t, ffn)
    # As operations, the scaled activation keeps its input and the probabilities (TE pytorch/ops/basic/swiglu.py:ScaledSwiGLU).
    fused = (
        features.bias_activation_fusion or features.use_fused_weighted_squared_relu or features.use_transformer_engine_op_fuser
    )
    if not fused and not model.moe_apply_probs_on_input:
        # experts.py:bias_act_func: act * probs keeps the unscaled activation
        extra += w * t * ffn
    half = kept("expert_act_parts", extra, "2 T fe")
    grouped = model.moe_grouped_gemm
    calls = 1 if grouped else s.local_experts
    # Beside the dispatched tokens: the permuted and, where they are sorted by expert, the received ones; gathered ones lie in the
    # global buffer. What the shared experts gave waits until the end.
    gathers = model.moe_token_dispatcher_type == "allgather"
    waiting = 0 if gathers else (_is_sent(ctx) + (s.local_experts > 1)) * routed
    if s.shared_ffn and not model.moe_shared_expert_overlap:
        waiting += s.hidden_bytes
    act_regions = ("moe", "moe_act") if grouped else ("moe",)
    ops = (
        Op(
            name=f"{name}.expert_fc1",
            saves=(dispatched,),
            regions=("moe",),
            forward_bytes=waiting + fc1_out.nbytes,
            backward_bytes=fc1_out.nbytes + routed,
            wgrad_bytes=fc1_out.nbytes,
            work=Work(flop=2.0 * t * s.moe_width * s.gate * ffn, modules=calls, small_ops=4 * calls),
        ),
        Op(
            name=f"{name}.expert_act",
            saves=(fc1_out, probs, half),
            regions=act_regions,
            forward_bytes=waiting + w * t * ffn,
            names=(norm_out, dispatched),
            backward_bytes=fc1_out.nbytes + w * t * ffn,
            work=Work(moved_bytes=float(fc1_out.nbytes + w * t * ffn), small_ops=2 * calls),
        ),
        Op(
            name=f"{name}.expert_fc2",
            saves=(act_out,),
            regions=("moe",),
            forward_bytes=waiting + routed,
            names=(norm_out, dispatched, fc1_out),
            backward_bytes=routed + w * t * ffn,
            wgrad_bytes=routed,
            work=Work(flop=2.0 * t * ffn * s.moe_width, modules=calls, small_ops=4 * calls),
        ),
    )
    if grouped:
        return ops, Region(label="moe_act", inputs=(fc1_out, probs), outputs=(act_out.name,), inside=("moe",))
    return ops, Region(label="moe_act", inputs=(), inside=("moe",))


def _shared_experts(ctx: Context, name: str, norm_out: Tensor) -> tuple[tuple[Op, ...], tuple[Param, ...]]:
    s, model, features = ctx.sizes, ctx.workload.model, ctx.workload.features
    w, n, ffn = s.width, s.tokens, s.shared_ffn
    regions = ("moe",) if model.moe_shared_expert_overlap else ("moe", "shared_experts")

    def kept(suffix: str, nbytes: int, formula: str) -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group="shared_experts", formula=formula, source=_SHARED)

    fc1_out = kept("shared_fc1_out", w * n * s.gate * ffn, "2 n g fs")
    act_out = kept("shared_act_out", ctx.gemm_input(n * ffn), "2 n fs")
    parts = kept("shared_act_half", eager_activation_bytes(ctx, n, ffn), "2 n fs")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    # With overlap the linear layers run with parallel_mode None: they save the gathered tokens themselves.
    source = (
        kept("shared_gathered_input", s.gathered_bytes, "2 n h") if model.moe_shared_expert_overlap and gathered else norm_out
    )
    gate_saves: tuple[Tensor, ...] = ()
    output = kept("shared_output", s.hidden_bytes, "2 n' h")
    if model.moe_shared_expert_gate:
        gate_saves = (output, norm_out)
    elif features.overlap_moe_expert_parallel_comm and not model.moe_shared_expert_overlap:
        # gpt/fine_grained_callables.py: the schedule node detaches the output and keeps it to its backward
        gate_saves = (output,)
    ops = [
        Op(
            name=f"{name}.shared_fc1",
            saves=(source,),
            regions=regions,
            forward_bytes=gathered + fc1_out.nbytes,
            backward_bytes=fc1_out.nbytes + s.gathered_bytes + gathered,
            wgrad_bytes=fc1_out.nbytes + gathered,
            work=Work(flop=2.0 * n * s.hidden * s.gate * ffn, tp_bytes=float(gathered), modules=1),
        ),
        Op(
            name=f"{name}.shared_act",
            saves=(fc1_out, parts),
            regions=regions,
            forward_bytes=w * n * ffn,
            backward_bytes=fc1_out.nbytes + w * n * ffn,
            work=Work(moved_bytes=float(fc1_out.nbytes + w * n * ffn), small_ops=2),
        ),
        Op(
            name=f"{name}.shared_fc2",
            saves=(act_out,),
            regions=regions,
            forward_bytes=s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0),
            backward_bytes=gathered + s.hidden_bytes + w * n * ffn,
            wgrad_bytes=s.gathered_bytes,
            work=Work(flop=2.0 * n * ffn * s.hidden, tp_bytes=float(s.gathered_bytes if s.tp > 1 else 0), modules=1),
        ),
    ]
    if gate_saves:
        ops.append(
            Op(name=f"{name}.shared_gate", saves=gate_saves, regions=regions, backward_bytes=2 * s.hidden_bytes,
               work=Work(moved_bytes=2.0 * s.hidden_bytes, small_ops=4))
        )  # fmt: skip
    params = (
        Param(name=f"{name}.shared_fc1", shape=(s.gate * ffn, s.hidden), gemm=True),
        Param(name=f"{name}.shared_fc2", shape=(s.hidden, ffn), gemm=True),
        *(
            (Param(name=f"{name}.shared_gate", shape=(1, s.hidden), duplicated=True, matrix=False),)
            if model.moe_shared_expert_gate
            else ()
        ),
    )
    return tuple(ops), params


def _latent_projection(ctx: Context, name: str, norm_out: Tensor, *, down: bool) -> tuple[Op, ...]:
    """Latent MoE: a duplicated linear before dispatch and one after combine (moe_layer.py: fc1_latent_proj, fc2_latent_proj)."""
    s, latent = ctx.sizes, ctx.workload.model.moe_latent_size
    if not latent:
        return ()
    width = s.width * s.shard_tokens * latent
    work = Work(flop=2.0 * s.shard_tokens * s.hidden * latent, modules=1)
    if down:
        return (
            Op(
                name=f"{name}.latent_down",
                saves=(norm_out,),
                regions=("moe",),
                forward_bytes=width,
                backward_bytes=width + s.hidden_bytes,
                work=work,
            ),
        )
    saved = Tensor(
        name=f"{name}.latent_out",
        nbytes=ctx.gemm_input(s.shard_tokens * latent),
        group="moe",
        formula="2 n' l",
        source="moe_layer.py:MoELayer.combine at 24bad8e6",
    )
    return (
        Op(
            name=f"{name}.latent_up",
            saves=(saved,),
            regions=("moe",),
            forward_bytes=s.hidden_bytes,
            backward_bytes=width + s.hidden_bytes,
            work=work,
        ),
    )


def _params(ctx: Context, name: str) -> tuple[Param, ...]:
    s, model = ctx.sizes, ctx.workload.model
    latent = model.moe_latent_size
    fc1_width = s.gate * s.expert_ffn
    latent_params: tuple[Param, ...] = ()
    if latent:
        latent_params = (
            Param(name=f"{name}.latent_down", shape=(latent, s.hidden), gemm=True, duplicated=True),
            Param(name=f"{name}.latent_up", shape=(s.hidden, latent), gemm=True, duplicated=True),
        )
    return (
        Param(name=f"{name}.router", shape=(s.experts, s.hidden), duplicated=True),
        *latent_params,
        Param(name=f"{name}.expert_fc1", shape=(fc1_width, s.moe_width), copies=s.local_experts, expert=True, gemm=True),
        *ctx.bias(f"{name}.expert_fc1", fc1_width, expert=True, copies=s.local_experts),
        Param(name=f"{name}.expert_fc2", shape=(s.moe_width, s.expert_ffn), copies=s.local_experts, expert=True, gemm=True),
        *ctx.bias(f"{name}.expert_fc2", s.moe_width, expert=True, copies=s.local_experts),
    )
