"""The mixture-of-experts half: experts and shared experts, and the regions ``layernorm``, ``moe``, ``moe_act`` and
``shared_experts``; router and exchange are in ledger/routing.py.

Sources at Megatron-LM 24bad8e6: transformer/moe/moe_layer.py:MoELayer.forward, experts.py:TEGroupedMLP.forward,
SequentialMLP.forward, shared_experts.py:SharedExpertMLP.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.ledger.block import Block, Context, Param, arriving_gradient, layer_input
from autotune.ledger.mlp import eager_activation_bytes
from autotune.ledger.ops import Op, Region, Tensor, Work
from autotune.ledger.routing import combine, dispatch, is_sent, router, router_width

_EXPERTS = "experts.py:TEGroupedMLP.forward at 24bad8e6"
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
        router(ctx, name, norm_out),
        *(() if ctx.workload.model.moe_shared_expert_overlap else shared_ops),
        *_latent_projection(ctx, name, norm_out, down=True),
        dispatch(ctx, name),
        *expert_ops,
        *(shared_ops if ctx.workload.model.moe_shared_expert_overlap else ()),
        combine(ctx, name, norm_out, dispatched),
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


def _experts(ctx: Context, name: str, norm_out: Tensor) -> tuple[tuple[Op, ...], Region]:
    s, model, features = ctx.sizes, ctx.workload.model, ctx.workload.features
    w, t, ffn = s.width, s.routed_tokens, s.expert_ffn
    routed = w * t * s.moe_width

    def kept(suffix: str, nbytes: int, formula: str, *, by_attribute: bool = False) -> Tensor:
        return Tensor(
            name=f"{name}.{suffix}", nbytes=nbytes, group="moe", formula=formula, source=_EXPERTS, by_attribute=by_attribute
        )

    dispatched = kept("dispatched", ctx.gemm_input(t * s.moe_width), "2 T h")
    fc1_out = kept("expert_fc1_out", w * t * s.gate * ffn, "2 T g fe")
    gathers = model.moe_token_dispatcher_type == "allgather"
    probs = kept("probs", router_width(ctx) * t, "wr T", by_attribute=gathers)  # its dispatcher's local_probs
    act_out = kept("expert_act_out", ctx.gemm_input(t * ffn), "2 T fe")
    extra = eager_activation_bytes(ctx, t, ffn)
    # As operations, the scaled activation keeps its input and the probabilities (TE pytorch/ops/basic/swiglu.py:ScaledSwiGLU).
    fused = (
        features.bias_activation_fusion or features.use_fused_weighted_squared_relu or features.use_transformer_engine_op_fuser
    )
    activated, scaling = w * t * ffn, 0
    if not fused and not model.moe_apply_probs_on_input:
        # experts.py:bias_act_func: act * probs keeps the unscaled activation; the product is as wide as the probabilities until
        # it is cast. Backward has three of that width at once: the product's gradient and what either factor's is made of.
        extra += activated
        product = max(w, router_width(ctx)) * t * ffn
        wider = product > activated
        copy = product * (wider and ctx.stand_in)  # a CPU casts the narrower factor first (TensorIterator.cpp:compute_types)
        scaling = 2 * activated * wider + 3 * product
        activated = product + max(copy, activated * wider)
    half = kept("expert_act_parts", extra, "2 T fe")
    # Eager, squared ReLU keeps what the ReLU gave and not its input (activations.py:squared_relu is compiled on a GPU).
    squared = None
    if ctx.stand_in and model.activation_func == "squared_relu" and not fused:
        squared = replace(kept("expert_relu", w * t * ffn, "2 T fe"), for_autograd=True)
    grouped = model.moe_grouped_gemm
    calls = 1 if grouped else s.local_experts
    # Beside the dispatched tokens: the permuted and, where they are sorted by expert, the received ones; gathered ones lie in the
    # global buffer. What the shared experts gave waits until the end.
    waiting = 0 if gathers else (is_sent(ctx) + (s.local_experts > 1)) * routed
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
            saves=(squared or fc1_out, probs, half),
            regions=act_regions,
            forward_bytes=waiting + activated,
            names=(norm_out, dispatched, fc1_out),
            backward_bytes=max(fc1_out.nbytes + w * t * ffn, scaling),
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
            backward_bytes=gathered + arriving_gradient(ctx) + w * n * ffn,
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
