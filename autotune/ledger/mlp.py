"""The dense feed-forward half and the activation between two linear layers.

Sources at Megatron-LM 24bad8e6: transformer/mlp.py:MLP.forward, transformer/transformer_layer.py:TransformerLayer._forward_mlp
(``mlp`` checkpoints the whole module), fusions/fused_bias_swiglu.py; the norm is fused into fc1 (Transformer Engine spec).
"""

from __future__ import annotations

from autotune.ledger.block import Block, Context, Param, arriving_gradient, layer_input
from autotune.ledger.ops import Op, Region, Tensor, Work

_MLP = "mlp.py:MLP.forward at 24bad8e6"


def eager_activation_bytes(ctx: Context, tokens: int, ffn: int) -> int:
    """Extra bytes that an activation built of single operations keeps: a gated one keeps the activated half for the product.

    A fused kernel (bias_activation_fusion) saves its input only; so does a single operation such as GELU, and Transformer
    Engine's fusible activation (pytorch/ops/basic/activation.py, swiglu.py at 2.17.1).
    """
    features = ctx.workload.features
    fused = features.bias_activation_fusion or features.use_transformer_engine_op_fuser
    return 0 if fused or ctx.sizes.gate == 1 else ctx.sizes.width * tokens * ffn


def mlp_block(ctx: Context, name: str = "mlp") -> Block:
    """Dense MLP with its fused norm; the local implementation has a separate norm that ``layernorm`` reaches."""
    s = ctx.sizes
    local = ctx.workload.features.transformer_impl == "local"
    x = layer_input(ctx, name)
    w, n = s.width, s.tokens

    def kept(suffix: str, nbytes: int, formula: str, group: str = "mlp") -> Tensor:
        return Tensor(name=f"{name}.{suffix}", nbytes=nbytes, group=group, formula=formula, source=_MLP)

    norm_out = kept("norm_out", ctx.gemm_input(s.shard_tokens * s.hidden), "2 n' h", "norm")
    stats = kept("norm_stats", ctx.norm_stats, "4 n'", "norm")
    fc1_out = kept("fc1_out", w * n * s.gate * s.ffn, "2 n g f")
    act_out = kept("act_out", ctx.gemm_input(n * s.ffn), "2 n f")
    extra = kept("act_half", eager_activation_bytes(ctx, n, s.ffn), "2 n f")
    gathered = s.gathered_bytes if s.sequence_parallel else 0
    regions: list[Region] = []
    ops: list[Op] = []
    if local:
        ops.append(
            Op(name=f"{name}.norm", saves=(x, stats), regions=("layernorm",), backward_bytes=2 * s.hidden_bytes,
               work=Work(moved_bytes=2.0 * s.hidden_bytes, small_ops=4))
        )  # fmt: skip
        regions += [
            Region(label="layernorm", inputs=(x,), outputs=(norm_out.name,)),
            Region(label="mlp", inputs=(norm_out,), replayed_bytes=s.hidden_bytes),
        ]
        first: tuple[Tensor, ...] = (norm_out,)
    else:
        regions.append(Region(label="mlp", inputs=(x,), replayed_bytes=s.hidden_bytes))
        first = (x, norm_out, stats)
    ops += [
        Op(
            name=f"{name}.fc1",
            saves=first,
            regions=("mlp",),
            forward_bytes=gathered + fc1_out.nbytes,
            backward_bytes=fc1_out.nbytes + gathered + s.gathered_bytes,
            wgrad_bytes=fc1_out.nbytes + gathered,
            work=Work(
                flop=2.0 * n * s.hidden * s.gate * s.ffn, moved_bytes=2.0 * s.hidden_bytes, tp_bytes=float(gathered), modules=1
            ),
        ),
        Op(
            name=f"{name}.act",
            saves=(fc1_out, extra),
            regions=("mlp",),
            forward_bytes=w * n * s.ffn,
            backward_bytes=fc1_out.nbytes + w * n * s.ffn,
            work=Work(moved_bytes=float(fc1_out.nbytes + w * n * s.ffn), small_ops=2),
        ),
        Op(
            name=f"{name}.fc2",
            saves=(act_out,),
            regions=("mlp",),
            forward_bytes=s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0),
            backward_bytes=gathered + w * n * s.ffn + arriving_gradient(ctx),
            wgrad_bytes=s.gathered_bytes,
            work=Work(flop=2.0 * n * s.ffn * s.hidden, tp_bytes=float(s.gathered_bytes if s.tp > 1 else 0), modules=1),
        ),
        *ctx.dropout_add(name),
    ]
    params = (
        ctx.norm_params(f"{name}.norm", s.hidden),
        Param(name=f"{name}.fc1", shape=(s.gate * s.ffn, s.hidden), gemm=True),
        *ctx.bias(f"{name}.fc1", s.gate * s.ffn),
        Param(name=f"{name}.fc2", shape=(s.hidden, s.ffn), gemm=True),
        *ctx.bias(f"{name}.fc2", s.hidden, rows=True),
    )
    return Block(ops=tuple(ops), regions=tuple(regions), params=params)
