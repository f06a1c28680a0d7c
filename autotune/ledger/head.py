"""Embedding, final norm, output layer, cross entropy, and multi-token prediction.

Sources at Megatron-LM 24bad8e6: models/gpt/gpt_model.py:GPTModel.forward, tensor_parallel/layers.py:
LinearWithGradAccumulationAndAsyncCommunication, tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py,
transformer/multi_token_prediction.py; TE triton/cross_entropy.py at 2.17.1 and 2.18.
"""

from __future__ import annotations

from autotune.ledger.block import Context, Param, layer_input
from autotune.ledger.fsdp import gradient_dtype
from autotune.ledger.ops import Op, Tensor, Work
from autotune.workload.workload import DTYPE_BYTES

LOSS_OPS = "head."
"""Operations whose name starts so run in the loss phase."""


def embedding_ops(ctx: Context) -> tuple[Op, ...]:
    """Token embedding; its output is the first layer's input. Its weight gradient is a dense tensor of the parameter's width."""
    s, model = ctx.sizes, ctx.workload.model
    saves: tuple[Tensor, ...] = (
        Tensor(
            name="embedding.ids",
            nbytes=8 * s.tokens,
            group="hidden",
            formula="8 n",
            source="layers.py:VocabParallelEmbedding.forward at 24bad8e6",
        ),
    )
    if model.hidden_dropout > 0:
        saves += (
            Tensor(
                name="embedding.dropout_mask",
                nbytes=s.shard_tokens * s.hidden,
                group="hidden",
                formula="n' h",
                source="language_model_embedding.py:LanguageModelEmbedding.forward at 24bad8e6",
            ),
        )
    return (
        Op(
            name="embedding",
            saves=saves,
            forward_bytes=2 * s.gathered_bytes,
            backward_bytes=s.width * s.vocab * s.hidden + max(s.gathered_bytes, _cast_gradient_bytes(ctx, s.vocab * s.hidden)),
            work=Work(moved_bytes=2.0 * s.gathered_bytes, small_ops=6),
        ),
    )


def _cast_gradient_bytes(ctx: Context, elements: int) -> int:
    """What adding a weight's own gradient into its main one takes for a moment (distributed_data_parallel.py:
    DistributedDataParallel._make_backward_post_hook at 24bad8e6).

    On a CPU a copy of it in the wider type (PyTorch aten/src/ATen/TensorIterator.cpp:compute_types); on a GPU the kernel casts.
    """
    width = DTYPE_BYTES[gradient_dtype(ctx.workload, ctx.stack)]
    return width * elements if ctx.stand_in and width != ctx.sizes.width else 0


def cross_entropy_ops(ctx: Context, prefix: str) -> tuple[Op, ...]:
    """Output layer and cross entropy.

    Unfused (the default): BF16 logits, an fp32 copy of them that becomes the saved softmax. Fused ``native``: the same
    forward; its backward clones the softmax and writes a BF16 gradient (10 n V'). Fused ``te``: the gradient overwrites the
    logits before 2.18; from 2.18 on it is an fp32 tensor of its own.
    """
    s, features = ctx.sizes, ctx.workload.features
    half = s.width * s.tokens * s.vocab
    full = 4 * s.tokens * s.vocab

    def kept(
        suffix: str,
        nbytes: int,
        formula: str,
        group: str = "logits",
        source: str = "cross_entropy.py:_VocabParallelCrossEntropy at 24bad8e6",
    ) -> Tensor:
        return Tensor(name=f"{prefix}{suffix}", nbytes=nbytes, group=group, formula=formula, source=source)

    head_input = kept(
        "input", s.hidden_bytes, "2 n' h", "norm", "layers.py:LinearWithGradAccumulationAndAsyncCommunication.forward at 24bad8e6"
    )
    impl = features.cross_entropy_fusion_impl if features.cross_entropy_loss_fusion else "unfused"
    if impl == "te" and not ctx.stack.ce_fp32_gradient:
        saved = kept("logits", half, "2 n V'", source="TE triton/cross_entropy.py:cross_entropy_forward at 2.17.1")
        ce = Op(name=f"{prefix}cross_entropy", saves=(saved,))
    elif impl == "te":
        saved = kept("logit_gradient", full, "4 n V'", source="TE triton/cross_entropy.py:cross_entropy_forward at 2.18 (#3193)")
        ce = Op(name=f"{prefix}cross_entropy", saves=(saved,), forward_bytes=half, backward_bytes=half)
    elif impl == "native":
        # torch.compile clones the softmax for the index_put of its backward; eager, on a CPU, it is written in place
        cloned = 0 if ctx.stand_in else full
        saved = kept("softmax", full, "4 n V'", source="fused_cross_entropy.py:_VocabParallelCrossEntropy at 24bad8e6")
        ce = Op(name=f"{prefix}cross_entropy", saves=(saved,), forward_bytes=half, backward_bytes=cloned + half)
    else:
        saved = kept("softmax", full + 9 * s.tokens, "4 n V' + 9 n")
        # Labels with the sequence first (8 n), row maxima (4 n), positions (8 n) and predicted logits, picked and copied (8 n):
        # cross_entropy.py:VocabParallelCrossEntropy.calculate_logits_max, calculate_predicted_logits
        vectors = 28 * s.tokens
        ce = Op(name=f"{prefix}cross_entropy", saves=(saved,), forward_bytes=half + vectors, backward_bytes=half)
    wgrad = 0 if features.gradient_accumulation_fusion else s.width * s.vocab * s.hidden
    return (
        Op(
            name=f"{prefix}output_layer",
            saves=(head_input,),
            forward_bytes=half,
            backward_bytes=half + s.gathered_bytes + (s.hidden_bytes if s.sequence_parallel else 0) + wgrad,
            work=Work(flop=2.0 * s.tokens * s.hidden * s.vocab, modules=1),
        ),
        ce,
    )


def head_ops(ctx: Context) -> tuple[Op, ...]:
    """Final norm, output layer, cross entropy of the last stage."""
    s = ctx.sizes
    x = layer_input(ctx, "head")
    stats = Tensor(
        name="head.norm_stats",
        nbytes=ctx.norm_stats,
        group="norm",
        formula="4 n'",
        source="transformer_block.py:TransformerBlock.forward at 24bad8e6",
    )
    norm = Op(
        name=f"{LOSS_OPS}norm",
        saves=(x, stats),
        forward_bytes=0,
        backward_bytes=2 * s.hidden_bytes,
        work=Work(moved_bytes=2.0 * s.hidden_bytes, modules=1),
    )
    return (norm, *cross_entropy_ops(ctx, LOSS_OPS))


def mtp_ops(ctx: Context, depth: int) -> tuple[Op, ...]:
    """What one multi-token prediction depth adds around its transformer layer: two norms, the concatenation and its
    projection, its embedding, its final norm, and its own output layer and cross entropy whose state is kept to backward."""
    s = ctx.sizes
    name = f"mtp{depth}"
    extra = Tensor(
        name=f"{name}.combined",
        nbytes=7 * s.hidden_bytes + 3 * ctx.norm_stats,
        group="mtp",
        formula="7 * 2 n' h",
        source="multi_token_prediction.py:MultiTokenPredictionLayer._concat_embeddings at 24bad8e6",
    )
    return (
        Op(
            name=f"{name}.combine",
            saves=(extra,),
            forward_bytes=2 * s.gathered_bytes,
            backward_bytes=4 * s.gathered_bytes,
            work=Work(flop=4.0 * s.tokens * s.hidden * s.hidden / s.tp, modules=4, small_ops=10),
        ),
    )


def embedding_params(ctx: Context) -> tuple[Param, ...]:
    """Word embedding and, where positions are learned (Megatron-LM's default), the position table, which is not sharded."""
    s, model = ctx.sizes, ctx.workload.model
    position: tuple[Param, ...] = ()
    if model.position_embedding_type == "learned_absolute":
        position = (
            Param(
                name="embedding.position",
                shape=(model.max_position_embeddings or ctx.workload.train.seq_length, s.hidden),
                matrix=False,
            ),
        )
    return (Param(name="embedding.word", shape=(s.vocab, s.hidden), matrix=False), *position)


def head_params(ctx: Context, *, shares_with_embedding: bool) -> tuple[Param, ...]:
    """Final norm and output weight. A tied output weight is a second copy where the embedding is on another stage.

    Source: models/common/language_module/language_module.py:setup_embeddings_and_output_layer at 24bad8e6.
    """
    s = ctx.sizes
    norm = (ctx.norm_params("head.norm", s.hidden),)
    if shares_with_embedding:
        return norm
    return (*norm, Param(name="head.output", shape=(s.vocab, s.hidden), gemm=True, matrix=False))


def mtp_params(ctx: Context, depth: int) -> tuple[Param, ...]:
    """Norms and the projection of one multi-token prediction depth."""
    s = ctx.sizes
    return (
        *(ctx.norm_params(f"mtp{depth}.{which}", s.hidden) for which in ("enorm", "hnorm", "final_norm")),
        Param(name=f"mtp{depth}.eh_proj", shape=(s.hidden // s.tp, 2 * s.hidden), gemm=True),
    )
