"""Gated Delta Net mixer and its ``gdn_norm_out`` region.

Sources: megatron/core/ssm/gated_delta_net/gdn.py:GatedDeltaNet.forward, common.py:_GDNBase._gated_norm_and_a2a,
_prepare_input_for_gated_delta_rule at 24bad8e6; flash-linear-attention ops/gated_delta_rule/chunk.py:
ChunkGatedDeltaRuleFunction.forward (saves q, k, v, the cumulated g in fp32, beta and A, the 64-wide chunk inverse).
"""

from __future__ import annotations

from autotune.ledger.block import Block, Context, Param, arriving_gradient, layer_input
from autotune.ledger.ops import Op, Region, Tensor, Work

_SOURCE = "ssm/gated_delta_net/gdn.py:GatedDeltaNet.forward at 24bad8e6"
_FLA = "fla ops/gated_delta_rule/chunk.py:ChunkGatedDeltaRuleFunction.forward"
_COMMON = "ssm/gated_delta_net/common.py:_GDNBase at 24bad8e6"
_CHUNK = 64


def _chunk_rule_bytes(positions: int, dk: int, dv: int) -> int:
    """What the rule of single operations keeps, which deterministic mode runs in place of the kernel; all of it in fp32.

    Three tensors of the values' width, seven of the keys', six [64, 64] blocks a chunk (decay, products, inverse), the rows and
    the squares that the inverse is built up from line by line, i + i^2 for i = 1 to 63, a state a chunk, and five numbers.

    Source: ssm/gated_delta_net/common.py:torch_chunk_gated_delta_rule at 24bad8e6; the same numbers counted by
    saved_tensors_hooks around it.
    """
    lines = sum(i + i * i for i in range(1, _CHUNK))
    chunks = -(-positions // _CHUNK)
    return 4 * chunks * (_CHUNK * (3 * dv + 7 * dk + 6 * _CHUNK + 5) + lines + dk * dv)


def gdn_block(ctx: Context, name: str = "gdn") -> Block:
    """GDN mixer with its fused input norm."""
    s, model = ctx.sizes, ctx.workload.model
    w, n, tp = s.width, s.tokens, s.tp
    value_heads, key_heads = model.linear_num_value_heads // tp, model.linear_num_key_heads // tp
    dk, dv = model.linear_key_head_dim, model.linear_value_head_dim
    qk = key_heads * model.linear_key_head_dim
    v = value_heads * model.linear_value_head_dim
    repeated = value_heads * model.linear_key_head_dim
    projected = 2 * qk + 2 * v + 2 * value_heads

    def kept(suffix: str, nbytes: int, formula: str, group: str = "gdn", source: str = _SOURCE, *, eager: bool = False) -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group=group, formula=formula, source=source, for_autograd=eager)

    x = layer_input(ctx, name)
    norm_out = kept("norm_out", ctx.gemm_input(s.shard_tokens * s.hidden), "2 n' h", "norm")
    stats = kept("norm_stats", ctx.norm_stats, "4 n'", "norm")
    # From Megatron Core 0.18 on the convolution takes a view and pins the whole projection; before, a contiguous copy of qkv,
    # while the name of the projection lives to the end of forward.
    pins_all = ctx.stack.mcore >= (0, 18)
    qkvzba = kept("qkvzba", w * n * (projected if pins_all else 2 * qk + v), "2 n (2 qk + 2 v + 2 hv)")
    projection = qkvzba if pins_all else kept("projection", w * n * projected, "2 n (2 qk + 2 v + 2 hv)")
    conv_bytes = w * n * (2 * qk + v)
    unit = kept("l2_norm_in", w * n * 2 * qk + 4 * n * 2 * key_heads, "2 n (2 qk) + 4 n (2 hk)", source=_COMMON)
    query = kept("q", w * n * repeated, "2 n hv dk", source=_FLA)
    key = kept("k", w * n * repeated, "2 n hv dk", source=_FLA)
    value = kept("v", w * n * v, "2 n v", source=_FLA)
    decay = kept("g_beta", (16 + w) * n * value_heads, "18 n hv", source="gdn.py:GatedDeltaNet._compute_g_and_beta at 24bad8e6")
    inverse = kept("A", w * n * value_heads * _CHUNK, "2 n hv 64", source=_FLA)
    eager_rule = ctx.workload.train.deterministic_mode and not ctx.stand_in
    rule = kept(
        "chunk_rule", _chunk_rule_bytes(n * value_heads, dk, dv), "fp32 chunks", source=f"{_COMMON}: torch_chunk_gated_delta_rule"
    )
    core_out = kept("core_out", w * n * v, "2 n v")
    gate = kept("gate", w * n * v, "2 n v")
    normed = kept("out_norm", w * n * v, "2 n v", source=_COMMON, eager=ctx.stand_in)
    # Eager, without torch.compile, silu keeps gate in fp32 and the product keeps its output in fp32.
    eager = kept("gate_fp32", 8 * n * v, "8 n v", source=_COMMON, eager=True)
    norm_stats = kept("out_norm_stats", 4 * n * value_heads, "4 n hv")
    gated = kept("gated_norm_out", ctx.gemm_input(n * v), "2 n v")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    # What the rule works with beside its outputs is the kernel's own: the stand-in's is not counted.
    states = 4 * max(1, n // _CHUNK) * value_heads * model.linear_key_head_dim * model.linear_value_head_dim // 2
    states *= not ctx.stand_in
    conv_out = kept("conv_out", conv_bytes, "2 n (2 qk + v)")
    # torch's own convolution, of deterministic mode, leaves its activation to a second operation, which keeps its input.
    conv_in = kept("conv_activation_in", conv_bytes, "2 n (2 qk + v)")
    fp32 = 4 * n * value_heads
    # Single operations have gradients of the fp32 copies and of the chunks' outputs beside their tensors, a kernel its states.
    kernel = not ctx.stand_in
    rule_forward = 2 * fp32 * dv if eager_rule else kernel * (2 * states + 2 * value.nbytes)
    rule_backward = fp32 * (3 * dk + 3 * dv + 2 * _CHUNK) if eager_rule else 3 * value.nbytes + 3 * states
    named = (projection, conv_out, query, key, value, gate)  # GatedDeltaNet.forward's names to its end
    ops = (
        Op(
            name=f"{name}.in_proj",
            saves=(x, norm_out, stats),
            forward_bytes=gathered,
            backward_bytes=qkvzba.nbytes + gathered + s.gathered_bytes,
            work=Work(flop=2.0 * n * s.hidden * projected, moved_bytes=2.0 * s.hidden_bytes, tp_bytes=float(gathered), modules=1),
        ),
        Op(
            name=f"{name}.conv",
            saves=(qkvzba, *((conv_in,) if eager_rule else ())),
            forward_bytes=conv_bytes,
            backward_bytes=qkvzba.nbytes + conv_bytes,
            work=Work(moved_bytes=2.0 * conv_bytes, small_ops=8),
        ),
        Op(
            name=f"{name}.qk_norm",
            saves=(unit,),
            names=(projection, conv_out),
            forward_bytes=conv_bytes,
            backward_bytes=conv_bytes + 2 * query.nbytes,
            work=Work(moved_bytes=4.0 * query.nbytes, small_ops=10),
        ),
        Op(
            name=f"{name}.delta_rule",
            saves=(rule, decay) if eager_rule else (query, key, value, decay, inverse),
            names=named,
            forward_bytes=core_out.nbytes + rule_forward,
            backward_bytes=core_out.nbytes + query.nbytes + key.nbytes + rule_backward,
            work=Work(
                flop=4.0 * n * value_heads * (dk * dv + _CHUNK * (dk + dv)), moved_bytes=6.0 * value.nbytes, small_ops=12
            ),
        ),
        Op(
            name=f"{name}.gated_norm",
            saves=(core_out, norm_stats, normed, eager if ctx.stand_in else gate),
            regions=("gdn_norm_out",),
            names=named,
            forward_bytes=2 * core_out.nbytes,
            backward_bytes=4 * core_out.nbytes,
            work=Work(moved_bytes=3.0 * core_out.nbytes, modules=1, small_ops=6),
        ),
        Op(
            name=f"{name}.out_proj",
            saves=(gated,),
            forward_bytes=s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0),
            names=named,
            backward_bytes=gathered + arriving_gradient(ctx) + w * n * v,
            work=Work(flop=2.0 * n * v * s.hidden, tp_bytes=float(s.gathered_bytes if tp > 1 else 0), modules=1),
        ),
        *ctx.dropout_add(name),
    )  # fmt: skip
    params = (
        ctx.norm_params(f"{name}.norm", s.hidden),
        Param(name=f"{name}.in_proj", shape=(projected, s.hidden), gemm=True),
        Param(name=f"{name}.conv1d", shape=(2 * qk + v, model.linear_conv_kernel_dim), matrix=False),
        Param(name=f"{name}.A_log_dt_bias", shape=(2 * value_heads,), matrix=False),
        ctx.norm_params(f"{name}.out_norm", model.linear_value_head_dim),
        Param(name=f"{name}.out_proj", shape=(s.hidden, v), gemm=True),
    )
    regions = (Region(label="gdn_norm_out", inputs=(core_out, gate), outputs=(gated.name,)),)
    return Block(ops=ops, regions=regions, params=params)
