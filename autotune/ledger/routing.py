"""Router and token exchange of a mixture of experts: what they keep, and what the dispatcher's attributes hold.

Sources at Megatron-LM 24bad8e6: transformer/moe/router.py:TopKRouter.forward, moe_utils.py:topk_routing_with_score_function,
permute, token_dispatcher.py (MoEAllGatherTokenDispatcher, MoEAlltoAllTokenDispatcher, MoEFlexTokenDispatcher);
Transformer Engine 2.17.1: permutation.py.
"""

from __future__ import annotations

from autotune.ledger.block import Context, arriving_gradient
from autotune.ledger.ops import Op, Tensor, Work

_ROUTER = "router.py:TopKRouter.forward at 24bad8e6"
_WIDTHS = {"fp32": 4, "fp64": 8}


def router_width(ctx: Context) -> int:
    """Bytes of a routing probability: they come in the type the gating linear gives out (topk_routing_with_score_function)."""
    return _WIDTHS.get(ctx.workload.model.moe_router_dtype or "", ctx.sizes.width)


def router(ctx: Context, name: str, norm_out: Tensor) -> Op:
    """Gating linear, scores and top-k over [tokens, experts].

    The probabilities and a one-byte map, which the dispatcher holds; in four bytes the scores of the auxiliary loss, and the
    scores before top-k where they are a sigmoid or a softmax over all experts (moe_utils.py:topk_routing_with_score_function,
    compute_routing_scores_for_aux_loss). The gating linear keeps its input only (RouterGatingLinearFunction).
    """
    s, model = ctx.sizes, ctx.workload.model
    pairs = s.shard_tokens * s.experts
    types = model.moe_router_load_balancing_type
    auxiliary = any("aux_loss" in kind for kind in ((types,) if isinstance(types, str) else types))
    before_topk = model.moe_router_pre_softmax or model.moe_router_score_function != "softmax"
    copies = s.shard_tokens * s.topk
    state = Tensor(
        name=f"{name}.router_state",
        nbytes=(4 * auxiliary + 4 * before_topk) * pairs + 12 * copies,
        group="moe",
        formula="(0 to 8) n' E + 12 n' k",
        source=_ROUTER,
    )
    kind = model.moe_token_dispatcher_type
    whole = kind == "alltoall" or (kind == "flex" and model.moe_flex_dispatcher_backend == "hybridep")
    probabilities = Tensor(
        name=f"{name}.routing_probs",
        nbytes=router_width(ctx) * pairs,
        group="moe",
        formula="wr n' E",
        source=_ROUTER,
        by_attribute=whole,
    )
    chosen = Tensor(  # as a map; DeepEP's manager keeps it as indices, with their probabilities
        name=f"{name}.routing_map",
        nbytes=pairs if whole or kind != "flex" else 12 * copies,
        group="moe",
        formula="n' E, or 12 n' k",
        source="token_dispatcher.py: self.routing_map, self.local_map, self.token_indices at 24bad8e6",
        by_attribute=True,
    )
    return Op(
        name=f"{name}.router",
        saves=(norm_out, state, probabilities, chosen),
        regions=("moe",),
        backward_bytes=12 * pairs + 2 * s.hidden_bytes,
        work=Work(flop=2.0 * s.shard_tokens * s.hidden * s.experts, moved_bytes=3.0 * (state.nbytes + 5 * pairs), small_ops=30),
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


def dispatch(ctx: Context, name: str) -> Op:
    """Permutation and exchange of the tokens."""
    s, model = ctx.sizes, ctx.workload.model
    routed = s.width * s.routed_tokens * s.moe_width
    pairs, copies = s.shard_tokens * s.experts, s.shard_tokens * s.topk
    # Fused, permute keeps an int32 [n', 2 E + 1] row map and the sort by local expert one int32 a token copy; otherwise
    # moe_utils.py:permute keeps the argsort of the whole map (a slice pins it) and the row indices, both int64; before
    # Megatron Core 0.17 the transposed map itself, as the allgather dispatcher does, which permutes no probabilities. Row map
    # or indices are the dispatcher's way back.
    fused = model.moe_permute_fusion
    sorts = ctx.stack.mcore >= (0, 17) and model.moe_token_dispatcher_type != "allgather"
    source = "TE permutation.py:_moe_permute_mask_map at 2.17.1; moe_utils.py:permute at 24bad8e6"
    rows = Tensor(
        name=f"{name}.row_id_map",
        nbytes=4 * (2 * pairs + s.shard_tokens) if fused else 8 * copies,
        group="moe",
        formula="4 n' (2 E + 1), or 8 n' k unfused",
        source=source,
        by_attribute=True,
    )
    maps = Tensor(
        name=f"{name}.sort_maps",
        nbytes=8 * s.routed_tokens if fused else (8 if sorts else 1) * pairs,
        group="moe",
        formula="8 T, or 8 n' E unfused",
        source=source,
    )
    flex = model.moe_token_dispatcher_type == "flex"
    received = int(s.width * _received_tokens(ctx) * s.moe_width) if flex else routed
    ep = ctx.workload.parallel.expert_model_parallel_size
    return Op(
        name=f"{name}.dispatch",
        saves=(rows, maps),
        regions=("moe",),
        forward_bytes=routed + received,
        backward_bytes=routed + received + s.hidden_bytes,
        work=Work(moved_bytes=4.0 * routed, a2a_bytes=received * (1 - 1 / ep), small_ops=20),
    )


def combine(ctx: Context, name: str, norm_out: Tensor, dispatched: Tensor) -> Op:
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
        cast = 4 * sources * s.shard_tokens * s.moe_width if model.moe_router_dtype == "fp32" and is_sent(ctx) else 0
        forward = routed + sources * s.hidden_bytes + cast
    else:
        forward = (1 + 2 * is_sent(ctx) + (1 + (not is_sent(ctx))) * (s.local_experts > 1)) * routed
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
        backward_bytes=2 * routed + arriving_gradient(ctx),
        work=Work(moved_bytes=4.0 * routed, a2a_bytes=received * (1 - 1 / ep), small_ops=15),
    )


def is_sent(ctx: Context) -> bool:
    """Whether tokens go to other ranks."""
    return ctx.workload.parallel.expert_model_parallel_size * ctx.workload.parallel.etp > 1
