"""The Mamba-2 mixer. No selective label reaches any of it.

Sources: megatron/core/ssm/mamba_mixer.py:MambaMixer._ssm_training, forward at 24bad8e6; mamba_ssm
ops/triton/ssd_combined.py:MambaSplitConv1dScanCombinedFn.forward (saves zxbcdt and out_x).
"""

from __future__ import annotations

from autotune.ledger.block import Block, Context, Param, arriving_gradient, layer_input
from autotune.ledger.ops import Op, Tensor, Work

_SOURCE = "ssm/mamba_mixer.py:MambaMixer._ssm_training at 24bad8e6"
_CONV_WIDTH = 4
_CHUNK = 128


def mamba_block(ctx: Context, name: str = "mamba") -> Block:
    """Mamba-2 mixer with its fused input norm and its gated norm."""
    s, model = ctx.sizes, ctx.workload.model
    tp = s.tp
    heads = (model.mamba_num_heads or 2 * s.hidden // model.mamba_head_dim) // tp
    inner = heads * model.mamba_head_dim
    state = 2 * model.mamba_num_groups * model.mamba_state_dim // tp
    projected = 2 * inner + state + heads
    w, n = s.width, s.tokens

    def kept(suffix: str, nbytes: int, formula: str, group: str = "mamba") -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group=group, formula=formula, source=_SOURCE)

    x = layer_input(ctx, name)
    norm_out = kept("norm_out", ctx.gemm_input(s.shard_tokens * s.hidden), "2 n' h", "norm")
    stats = kept("norm_stats", ctx.norm_stats, "4 n'", "norm")
    zxbcdt = kept("zxBCdt", w * n * projected, "2 n (2 di + 2 G N / tp + heads / tp)")
    scan_out = kept("out_x", w * n * inner, "2 n di")
    y = kept("y", w * n * inner, "2 n di")
    y_norm = kept("gated_norm_out", ctx.gemm_input(n * inner), "2 n di")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    eager: tuple[Tensor, ...] = ()
    if not model.use_mamba_mem_eff_path:
        # MambaMixer._static_prefill: the conv input and output, and contiguous x, B, C, dt, z are kept one by one.
        eager = (
            kept(
                "eager_parts",
                w * n * (2 * (inner + state) + inner + state + heads + inner),
                "2 n (5 di + 3 (2 G N / tp) + heads)",
            ),
        )
    chunks = max(1, n // _CHUNK)
    states = 4 * chunks * heads * model.mamba_head_dim * model.mamba_state_dim
    # What the scan works with beside its outputs is the kernel's own: the stand-in's is not counted.
    work_bytes = 0 if ctx.stand_in else states + w * n * (inner + state)
    # MambaMixer.forward holds the projection as it came; the scan takes it with the batch first, a copy of it from b = 2 on.
    as_it_came = zxbcdt.nbytes if s.batch > 1 else 0
    ops = (
        Op(
            name=f"{name}.in_proj",
            saves=(x, norm_out, stats),
            forward_bytes=gathered,
            backward_bytes=zxbcdt.nbytes + gathered + s.gathered_bytes,
            work=Work(flop=2.0 * n * s.hidden * projected, moved_bytes=2.0 * s.hidden_bytes, tp_bytes=float(gathered), modules=1),
        ),
        Op(
            name=f"{name}.scan",
            saves=(zxbcdt, scan_out, *eager),
            forward_bytes=as_it_came + y.nbytes + work_bytes,
            backward_bytes=zxbcdt.nbytes + 2 * y.nbytes + work_bytes + (0 if ctx.stand_in else states),
            work=Work(
                flop=2.0 * n * heads * model.mamba_head_dim * (2.0 * model.mamba_state_dim + _CHUNK),
                moved_bytes=4.0 * zxbcdt.nbytes,
                small_ops=12,
            ),
        ),
        Op(
            name=f"{name}.gated_norm",
            saves=(y,),
            names=(zxbcdt,),
            forward_bytes=as_it_came + w * n * inner,
            backward_bytes=2 * y.nbytes,
            work=Work(moved_bytes=2.0 * y.nbytes, small_ops=3),
        ),
        Op(
            name=f"{name}.out_proj",
            saves=(y_norm,),
            names=() if as_it_came else (zxbcdt,),
            forward_bytes=as_it_came + s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0),
            backward_bytes=gathered + arriving_gradient(ctx) + w * n * inner,
            work=Work(flop=2.0 * n * inner * s.hidden, tp_bytes=float(s.gathered_bytes if tp > 1 else 0), modules=1),
        ),
        *ctx.dropout_add(name),
    )
    params = (
        ctx.norm_params(f"{name}.norm", s.hidden),
        # From 8e70f69827 on Muon leaves the packed projection to Adam (``use_muon``).
        Param(name=f"{name}.in_proj", shape=(projected, s.hidden), gemm=True, matrix=ctx.stack.mcore < (0, 20)),
        Param(name=f"{name}.conv1d", shape=(inner + state, _CONV_WIDTH), matrix=False),
        Param(name=f"{name}.conv1d.bias", shape=(inner + state,), matrix=False),
        Param(name=f"{name}.A_log_D_dt_bias", shape=(3 * heads,), matrix=False),
        Param(name=f"{name}.gated_norm", shape=(inner,), matrix=False),
        Param(name=f"{name}.out_proj", shape=(s.hidden, inner), gemm=True),
    )
    return Block(ops=ops, params=params)
