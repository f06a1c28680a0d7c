"""Multi-latent attention: what it keeps, what ``mla_up_proj``, ``core_attn`` and ``layernorm`` drop.

Sources at Megatron-LM 24bad8e6: transformer/multi_latent_attention.py:MLASelfAttention.get_query_key_value_tensors
(the up projections and RoPE are one CheckpointWithoutOutput region), models/gpt/gpt_layer_specs.py (separate input norm;
latent norms fused into the up projections when qk_layernorm is set).
"""

from __future__ import annotations

from autotune.ledger.attention import core_attention, output_projection
from autotune.ledger.block import Block, Context, Param, layer_input
from autotune.ledger.ops import Op, Region, Tensor, Work

_SOURCE = "multi_latent_attention.py:MLASelfAttention.get_query_key_value_tensors at 24bad8e6"


def mla_block(ctx: Context, name: str = "mla") -> Block:
    """MLA with a separate input norm."""
    s, model = ctx.sizes, ctx.workload.model
    x = layer_input(ctx, name)
    rope, nope, dv = model.qk_pos_emb_head_dim, model.qk_head_dim, model.v_head_dim
    dq = nope + rope
    w, n, ns, heads = s.width, s.tokens, s.shard_tokens, s.heads

    def kept(suffix: str, nbytes: int, formula: str, group: str = "mla") -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group=group, formula=formula, source=_SOURCE)

    norm_out = kept("norm_out", s.hidden_bytes, "2 n' h", "norm")
    stats = kept("norm_stats", ctx.norm_stats, "4 n'", "norm")
    kv_down = kept("kv_down_out", w * ns * (model.kv_lora_rank + rope), "2 n' (r_kv + rope)")
    key_rope = kept("k_rope", w * n * rope, "2 n rope")
    q_down = kept("q_down_out", w * ns * (model.q_lora_rank or 0), "2 n' r_q")
    kv_norm = kept("kv_norm_out", ctx.gemm_input(ns * model.kv_lora_rank) + ctx.norm_stats, "2 n' r_kv + 4 n'")
    q_norm = kept("q_norm_out", ctx.gemm_input(ns * (model.q_lora_rank or 0)) + ctx.norm_stats, "2 n' r_q + 4 n'")
    angles = kept("rope_angles", 0 if ctx.workload.features.apply_rope_fusion else 8 * s.sequence * rope, "8 s rope")
    query = kept("q", w * n * heads * dq, "2 n a' dq")
    key = kept("k", w * n * heads * dq, "2 n a' dq")
    value = kept("v", w * n * heads * dv, "2 n a' dv")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    q_in = model.q_lora_rank or s.hidden
    fused_norms = model.qk_layernorm
    # mla_qk_norm_config.py:QKNormConfigResolver._resolve_mla_qk_layernorm, new in Megatron Core 0.19, fuses a norm into the
    # query projection too where there is no query latent.
    norms_query = fused_norms and ctx.stack.mcore >= (0, 19)
    up_saves: list[Tensor] = [kv_down, *([kv_norm] if fused_norms else [])]
    if model.q_lora_rank:
        up_saves += [q_down, *([q_norm] if fused_norms else [])]
    elif norms_query:
        # The query projection norms the normed hidden state once more and keeps both.
        up_saves += [norm_out, kept("q_proj_norm_out", ctx.gemm_input(ns * s.hidden) + ctx.norm_stats, "2 n' h + 4 n'")]
    else:
        up_saves += [norm_out]
    # Sequence parallelism gathers the keys' rotary part; otherwise it is a view of what the down projection gave.
    gathered_rope = (key_rope,) if s.sequence_parallel else ()
    up_inputs = (kv_down, *gathered_rope, q_down if model.q_lora_rank else norm_out)
    down_width = model.kv_lora_rank + rope + (model.q_lora_rank or 0)
    up_out = heads * (dq + nope + dv)
    # A fused kernel rotates the query in place (fusions/fused_mla_yarn_rope_apply.py:fused_apply_mla_rope_for_q, _for_kv).
    unfused = not ctx.workload.features.apply_rope_fusion
    rotated = unfused * w * n * (heads + 1) * rope
    # Names of MultiLatentAttention.forward and get_query_key_value_tensors.
    named = (norm_out, kv_down, *((q_down,) if model.q_lora_rank else ()))
    inside = (*named, *gathered_rope)
    ops = [
        Op(
            name=f"{name}.norm",
            saves=(x, stats),
            regions=("layernorm",),
            forward_bytes=0,
            backward_bytes=2 * s.hidden_bytes,
            work=Work(moved_bytes=2.0 * s.hidden_bytes, modules=1, small_ops=2),
        ),
        Op(
            name=f"{name}.down",
            saves=(norm_out,),
            forward_bytes=w * ns * down_width,
            backward_bytes=w * ns * down_width + s.hidden_bytes,
            wgrad_bytes=w * ns * down_width,
            work=Work(flop=2.0 * ns * s.hidden * down_width, modules=2 if model.q_lora_rank else 1),
        ),
        Op(
            name=f"{name}.up",
            saves=tuple(up_saves),
            regions=("mla_up_proj",),
            forward_bytes=w * n * up_out + (0 if model.q_lora_rank else gathered),
            names=inside,
            backward_bytes=w * n * up_out + query.nbytes + key.nbytes + (0 if model.q_lora_rank else gathered),
            wgrad_bytes=w * n * up_out,
            work=Work(
                flop=2.0 * n * heads * (q_in * dq + model.kv_lora_rank * (nope + dv)),
                moved_bytes=3.0 * (query.nbytes + key.nbytes + value.nbytes),
                tp_bytes=float(gathered),
                modules=2,
                small_ops=36,
            ),
        ),
        # Beside what the projections gave: the rotated parts, and then what the core takes.
        Op(
            name=f"{name}.rope",
            saves=(angles,),
            regions=("mla_up_proj",),
            forward_bytes=w * n * up_out + rotated,
            names=inside,
            backward_bytes=w * n * up_out + rotated,
        ),
        Op(
            name=f"{name}.join",
            regions=("mla_up_proj",),
            forward_bytes=w * n * up_out + rotated + unfused * query.nbytes + key.nbytes + value.nbytes,
            names=inside,
            backward_bytes=w * n * up_out + query.nbytes + key.nbytes + value.nbytes,
        ),
    ]
    core, region, out = core_attention(
        ctx, name, query=query, key=key, value=value, value_dim=dv, region_inputs=(query, key, value), names=named
    )
    ops += core
    ops += output_projection(ctx, name, out, heads * dv, names=named)
    regions = (
        Region(label="layernorm", inputs=(x,), outputs=(norm_out.name,)),
        Region(label="mla_up_proj", inputs=up_inputs, outputs=(query.name, key.name, value.name)),
        region,
    )
    q_params: tuple[Param, ...]
    if model.q_lora_rank:
        q_params = (
            Param(name=f"{name}.q_down", shape=(model.q_lora_rank, s.hidden), gemm=True, duplicated=True),
            *((ctx.norm_params(f"{name}.q_norm", model.q_lora_rank),) if fused_norms else ()),
            Param(name=f"{name}.q_up", shape=(heads * dq, model.q_lora_rank), gemm=True),
        )
    else:
        q_params = (
            *((ctx.norm_params(f"{name}.q_norm", s.hidden),) if norms_query else ()),
            Param(name=f"{name}.q_proj", shape=(heads * dq, s.hidden), gemm=True),
        )
    params = (
        ctx.norm_params(f"{name}.norm", s.hidden),
        *q_params,
        Param(name=f"{name}.kv_down", shape=(model.kv_lora_rank + rope, s.hidden), gemm=True, duplicated=True),
        *((ctx.norm_params(f"{name}.kv_norm", model.kv_lora_rank),) if fused_norms else ()),
        Param(name=f"{name}.kv_up", shape=(heads * (nope + dv), model.kv_lora_rank), gemm=True),
        Param(name=f"{name}.proj", shape=(s.hidden, heads * dv), gemm=True),
        *ctx.bias(f"{name}.proj", s.hidden, rows=True),
    )
    return Block(ops=tuple(ops), regions=regions, params=params)
