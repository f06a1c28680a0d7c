"""Grouped-query attention with Transformer Engine or local modules: what it keeps and what ``core_attn`` drops.

Sources at Megatron-LM 24bad8e6: transformer/attention.py:Attention.forward, SelfAttention.get_query_key_value_tensors,
_checkpointed_attention_forward; Transformer Engine 2.17.1: module/layernorm_linear.py:_LayerNormLinear,
attention/dot_product_attention/backends.py:FusedAttention, FlashAttention, UnfusedDotProductAttention.
"""

from __future__ import annotations

from autotune.ledger.block import Block, Context, Param, arriving_gradient, layer_input
from autotune.ledger.ops import Op, Region, Tensor, Work

_ATTENTION = "attention.py:Attention.forward at 24bad8e6"
_BACKENDS = "TE backends.py:FusedAttnFunc.forward at 2.17.1"


def _fuses_softmax(ctx: Context) -> bool:
    """Whether Transformer Engine's unfused attention has a kernel for its softmax.

    Source: attention/dot_product_attention/softmax.py:FusedScaleMaskSoftmax.is_kernel_available at 2.17.1.
    """
    s = ctx.sizes
    fits = 16 < s.sequence < 16384 and s.sequence % 8 == 0 and s.heads * s.batch % 4 == 0
    return fits and s.width == 2 and str(ctx.workload.env_vars.get("NVTE_MASKED_SOFTMAX_FUSION", "1")) != "0"


def core_attention(
    ctx: Context,
    name: str,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    value_dim: int,
    region_inputs: tuple[Tensor, ...],
    names: tuple[Tensor, ...],
) -> tuple[tuple[Op, ...], Region, Tensor]:
    """The attention core with its ``core_attn`` region; returns its operations, the region and the output tensor.

    ``names`` are what its caller still holds.
    """
    s, model, train = ctx.sizes, ctx.workload.model, ctx.workload.train
    out = Tensor(
        name=f"{name}.core_out",
        nbytes=s.width * s.tokens * s.heads * value_dim,
        group="attention",
        formula="2 n a' dv",
        source=_BACKENDS,
    )
    pairs = s.heads * s.sequence * s.sequence * s.batch
    work = Work(
        flop=2.0
        * pairs
        * ctx.workload.parallel.context_parallel_size
        * (query.nbytes / (s.width * s.tokens * s.heads) + value_dim)
        / 2,
        moved_bytes=float(query.nbytes + key.nbytes + value.nbytes + out.nbytes),
        tp_bytes=float((key.nbytes + value.nbytes) * (ctx.workload.parallel.context_parallel_size - 1)),
        modules=1,
        small_ops=10,
    )
    if ctx.stack.attention == "unfused":
        # transformer_engine UnfusedDotProductAttention and megatron dot_product_attention.py keep the softmax output; with
        # dropout also the dropped probabilities and the mask. Without a fused kernel, fp32 softmax keeps four bytes.
        features, precision = ctx.workload.features, ctx.workload.precision
        fp32 = (
            features.transformer_impl == "local"
            and not features.masked_softmax_fusion
            and (precision.attention_softmax_in_fp32 or precision.apply_query_key_layer_scaling)
        )
        kept = (4 if fp32 else 2) + (3 if model.attention_dropout > 0 else 0)
        eager = features.transformer_impl != "local" and not _fuses_softmax(ctx)
        if eager:
            # Scores, mask and softmax one by one in fp32: its result stays, and the 16-bit probabilities that the product takes.
            kept = 4 + 2 + (1 if model.attention_dropout > 0 else 0)
        inner = Tensor(
            name=f"{name}.scores",
            nbytes=kept * pairs,
            group="attention",
            formula="(2 to 7) b a' s^2",
            source="TE backends.py:UnfusedDotProductAttention.forward at 2.9",
        )
        core_forward = (10 if eager else 2) * pairs
        # The fused softmax writes its gradient in place (TE csrc/extensions/softmax.cpp:scaled_masked_softmax_backward at
        # 2.17.1); dropout's and a softmax of single operations need a second one.
        in_place = model.attention_dropout == 0 and features.transformer_impl != "local" and not ctx.stand_in
        core_backward = (10 if eager else 2 if in_place else 4) * pairs + query.nbytes + key.nbytes + value.nbytes
    else:
        inner = Tensor(
            name=f"{name}.softmax_lse",
            nbytes=4 * s.tokens * s.heads,
            group="attention",
            formula="4 n a'",
            source=_BACKENDS,
        )
        core_forward = 0
        core_backward = out.nbytes + query.nbytes + key.nbytes + value.nbytes
    saves = [query, key, value, inner]
    if ctx.stack.attention != "unfused":
        saves.append(out)
    ops = [
        Op(
            name=f"{name}.core",
            saves=tuple(saves),
            regions=("core_attn",),
            forward_bytes=core_forward + out.nbytes,
            backward_bytes=core_backward,
            work=work,
            names=names,
        )
    ]
    region = Region(label="core_attn", inputs=region_inputs)
    projected = out
    separate_copy = (ctx.stack.attention == "flash" and train.micro_batch_size > 1) or "a2a" in str(
        ctx.workload.parallel.cp_comm_type
    )
    if separate_copy and not ctx.stand_in and ctx.stack.attention != "unfused":
        # FlashAttention.forward ends in a transpose to sbhd: with b > 1 the saved bshd output and the input of linear_proj are
        # two storages. With all-to-all context parallelism the kernel's output precedes the exchange (AttnFuncWithCPAndQKVOA2A).
        projected = Tensor(
            name=f"{name}.core_out_sbhd",
            nbytes=out.nbytes,
            group="attention",
            formula="2 n a' dv",
            source="TE backends.py:FlashAttention.forward; context_parallel.py:AttnFuncWithCPAndQKVOA2A.forward at 2.17.1",
        )
    return tuple(ops), region, projected


def output_projection(
    ctx: Context, name: str, attention_out: Tensor, width_in: int, *, names: tuple[Tensor, ...]
) -> tuple[Op, ...]:
    """The row-parallel output projection; under FP8 it keeps its own quantized copy beside the BF16 attention output.

    ``names`` are what its caller still holds.
    """
    s = ctx.sizes
    saves: tuple[Tensor, ...] = (attention_out,)
    if ctx.workload.precision.fp8 or ctx.workload.precision.fp4:
        saves = (
            attention_out,
            Tensor(
                name=f"{name}.proj_input_fp8",
                nbytes=ctx.gemm_input(s.tokens * width_in),
                group="attention",
                formula="n a' d",
                source="TE module/linear.py:_Linear.forward at 2.17.1",
            ),
        )
    return (
        Op(
            name=f"{name}.proj",
            saves=saves,
            forward_bytes=s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0),
            backward_bytes=s.gathered_bytes * s.sequence_parallel + arriving_gradient(ctx) + s.width * s.tokens * width_in,
            wgrad_bytes=s.gathered_bytes,
            work=Work(flop=2.0 * s.tokens * width_in * s.hidden, tp_bytes=float(s.gathered_bytes if s.tp > 1 else 0), modules=1),
            names=names,
        ),
        *ctx.dropout_add(name),
    )


def attention_block(ctx: Context, name: str = "attn") -> Block:
    """Self-attention with a norm fused into the QKV projection.

    In the local implementation the norm is a module of its own, which ``layernorm`` reaches.
    """
    s, model, features = ctx.sizes, ctx.workload.model, ctx.workload.features
    local = features.transformer_impl == "local"
    x = layer_input(ctx, name)
    query_width, kv_width = s.heads * s.head_dim, s.kv_heads * s.head_dim
    gate_width = query_width if model.attention_output_gate else 0
    mixed_width = query_width + 2 * kv_width + gate_width
    norm_out = Tensor(
        name=f"{name}.norm_out",
        nbytes=ctx.gemm_input(s.shard_tokens * s.hidden),
        group="norm",
        formula="2 n' h",
        source="TE module/layernorm_linear.py:_LayerNormLinear.forward at 2.17.1",
    )
    stats = Tensor(name=f"{name}.norm_stats", nbytes=ctx.norm_stats, group="norm", formula="4 n'", source=norm_out.source)
    mixed = Tensor(
        name=f"{name}.mixed_qkv",
        nbytes=s.width * s.tokens * mixed_width,
        group="attention",
        formula="2 n (a' + 2 kv') d",
        source="attention.py:SelfAttention.get_query_key_value_tensors at 24bad8e6 (value stays a view of it)",
    )
    query = Tensor(
        name=f"{name}.q", nbytes=s.width * s.tokens * query_width, group="attention", formula="2 n a' d", source=_BACKENDS
    )
    key = Tensor(name=f"{name}.k", nbytes=s.width * s.tokens * kv_width, group="attention", formula="2 n kv' d", source=_BACKENDS)
    value = Tensor(
        name=f"{name}.v", nbytes=s.width * s.tokens * kv_width, group="attention", formula="2 n kv' d", source=_BACKENDS
    )
    rotates = model.position_embedding_type in ("rope", "yarn", "mrope")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    linear_work = Work(
        flop=2.0 * s.tokens * s.hidden * mixed_width, moved_bytes=2.0 * s.hidden_bytes, tp_bytes=float(gathered), modules=1
    )
    ops: list[Op] = []
    regions: list[Region] = []
    if local:
        # gpt_layer_specs.py:get_gpt_layer_local_submodules: WrappedTorchNorm or FusedLayerNorm
        ops.append(
            Op(name=f"{name}.norm", saves=(x, stats), regions=("layernorm",), backward_bytes=2 * s.hidden_bytes,
               work=Work(moved_bytes=2.0 * s.hidden_bytes, small_ops=4))
        )  # fmt: skip
        regions.append(Region(label="layernorm", inputs=(x,), outputs=(norm_out.name,)))
        first_saves: tuple[Tensor, ...] = (norm_out,)
    else:
        first_saves = (x, norm_out, stats)
    ops.append(
        Op(
            name=f"{name}.qkv",
            saves=first_saves,
            forward_bytes=gathered + mixed.nbytes,
            backward_bytes=mixed.nbytes + 2 * gathered + s.gathered_bytes,
            wgrad_bytes=mixed.nbytes + gathered,
            work=linear_work,
        )
    )
    if model.qk_layernorm:
        # The norms save their inputs and fp32 statistics; those of the stand-in keep k as the view of mixed_qkv that it is.
        normed = query_width + (0 if ctx.stand_in else kv_width)
        statistics = ctx.norm_stats // s.shard_tokens
        ops.append(
            Op(
                name=f"{name}.qk_norm",
                saves=(
                    Tensor(
                        name=f"{name}.qk_norm_in",
                        nbytes=(s.width * normed + statistics * (s.heads + s.kv_heads)) * s.tokens,
                        group="attention",
                        formula="2 n (a' + kv') d + (4 or 8) n (a' + kv')",
                        source="TE module/rmsnorm.py (ops RMSNorm) at 2.17.1",
                    ),
                    *((mixed,) if ctx.stand_in else ()),
                ),
                forward_bytes=mixed.nbytes + query.nbytes + key.nbytes,
                backward_bytes=mixed.nbytes + query.nbytes + key.nbytes,
                work=Work(moved_bytes=2.0 * (query.nbytes + key.nbytes), modules=2),
            )
        )
    if rotates and not features.apply_rope_fusion:
        # cos and sin are made anew for q and for k, and their products with them save them.
        angles = Tensor(
            name=f"{name}.rope_angles",
            nbytes=4 * s.width * s.sequence * s.head_dim,
            group="attention",
            formula="8 s d",
            source="rope_utils.py:_apply_rotary_pos_emb_bshd at 24bad8e6",
        )
        ops.append(
            Op(
                name=f"{name}.rope",
                saves=(angles,),
                forward_bytes=mixed.nbytes + 2 * query.nbytes + key.nbytes,
                backward_bytes=mixed.nbytes + query.nbytes + key.nbytes,
                work=Work(moved_bytes=6.0 * (query.nbytes + key.nbytes), small_ops=20),
            )
        )
    # Without recompute TE makes contiguous copies of what is strided; the checkpoint saves the views themselves, and a view
    # pins the whole mixed_qkv.
    views = mixed if (rotates or model.qk_layernorm or kv_width != query_width) else None
    if ctx.stand_in:
        value = mixed
        key = key if rotates or model.qk_layernorm else mixed
        # Reshaping the query copies nothing where there is one group, or one head a group.
        query = query if rotates or model.qk_layernorm or 1 < s.kv_heads < s.heads else mixed
    region_inputs = (
        (query, key, views) if views is not None and rotates else ((query, views) if views is not None else (query, key, value))
    )
    # Attention.forward's query, key and value to its end; value, and what is not rotated or normed, are views of mixed_qkv.
    fresh = (query, key) if rotates or model.qk_layernorm else ()
    named = (mixed, *fresh, *((norm_out,) if local else ()))
    core, region, out = core_attention(
        ctx, name, query=query, key=key, value=value, value_dim=s.head_dim, region_inputs=region_inputs, names=named
    )
    ops += core
    regions.append(region)
    if model.attention_output_gate:
        gate = Tensor(
            name=f"{name}.gate",
            # torch.compile keeps the gate as it comes; eager, its sigmoid is kept in fp32
            nbytes=(4 if ctx.stand_in else s.width) * s.tokens * query_width,
            group="attention",
            formula="2 n a' d",
            source="attention.py:Attention._apply_output_gate at 24bad8e6",
        )
        gated = Tensor(name=f"{name}.gated_out", nbytes=out.nbytes, group="attention", formula="2 n a' d", source=gate.source)
        ops.append(
            Op(name=f"{name}.output_gate", saves=(gate, out), forward_bytes=gated.nbytes, backward_bytes=3 * out.nbytes,
               work=Work(moved_bytes=3.0 * out.nbytes, small_ops=3))
        )  # fmt: skip
        out = gated
    ops += output_projection(ctx, name, out, query_width, names=named)
    # A fused kernel saves its own output; the projection's input is that storage unless a copy was made.
    params = (
        ctx.norm_params(f"{name}.norm", s.hidden),
        Param(name=f"{name}.qkv", shape=(mixed_width, s.hidden), gemm=True),
        *ctx.bias(f"{name}.qkv", mixed_width, enabled=model.add_bias_linear or model.add_qkv_bias),
        *(
            (ctx.norm_params(f"{name}.q_norm", s.head_dim), ctx.norm_params(f"{name}.k_norm", s.head_dim))
            if model.qk_layernorm
            else ()
        ),
        Param(name=f"{name}.proj", shape=(s.hidden, query_width), gemm=True),
        *ctx.bias(f"{name}.proj", s.hidden, rows=True),
    )
    return Block(ops=tuple(ops), regions=tuple(regions), params=params)
