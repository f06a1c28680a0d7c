"""CUDA-graph rules. Lines: megatron/core/transformer/transformer_config.py at 2a75ac12; in force since release 0.16."""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.captured import checkpoints_in_capture
from autotune.boundary.context import Context
from autotune.boundary.labels import LABELS
from autotune.boundary.revision import GRAPH_MODULES, GTP_LOCAL_GRAPHS
from autotune.boundary.rules.rule import rule

_SCOPE_OF = {"core_attn": ("attn",), "mlp": ("mlp",), "moe": ("moe",), "shared_experts": ("moe", "moe_router")}
"""The captured modules that hold a checkpointed region whole."""
_TE_CAPTURES_BACKWARD = (2, 12, 0)
"""Transformer Engine captures with ``.backward()`` from 2.12 on (324be332, "Support cudagraph recomputation")."""


@rule("invalid", "transformer_config.py:2613-2617", granularity="full", since=GRAPH_MODULES)
def full_needs_full_iteration_graph(context: Context, _: Boundary) -> str | None:
    """A per-layer graph cannot hold a replay of itself."""
    if not context.graphs_on or context.full_iteration:
        return None
    impl = context.workload.features.cuda_graph_impl
    return f"full recompute needs cuda_graph_impl full_iteration or none, it is {impl}"


@rule("invalid", "transformer_config.py:2621-2628", labels=("moe",), since=GRAPH_MODULES)
def moe_straddles_router_graph(context: Context, _: Boundary) -> str | None:
    """The region has to lie wholly inside or wholly outside the captured part."""
    if context.workload.features.cuda_graph_impl != "transformer_engine" or "moe_router" not in context.captured:
        return None
    return "moe straddles the captured moe_router (transformer_engine graphs): a region lies inside or outside of a graph"


@rule("invalid", "transformer_config.py:2637-2644", labels=("core_attn",), since=GRAPH_MODULES)
def attention_dropout_in_graph(context: Context, _: Boundary) -> str | None:
    """A graphed replay would draw other random numbers."""
    if context.workload.model.attention_dropout == 0.0 or not _captures(context, "attn"):
        return None
    dropout = context.workload.model.attention_dropout
    return f"core_attn inside a captured graph needs attention_dropout 0, it is {dropout}"


@rule("invalid", "transformer_config.py:2645-2664", labels=("mlp", "moe"), since=GRAPH_MODULES)
def hidden_dropout_in_graph(context: Context, boundary: Boundary) -> str | None:
    """The same for the MLP and the MoE."""
    if context.workload.model.hidden_dropout == 0.0:
        return None
    hit = [label for label in ("mlp", "moe") if label in boundary.modules and _captures(context, label)]
    if not hit:
        return None
    dropout = context.workload.model.hidden_dropout
    return f"{' and '.join(hit)} inside a captured graph needs hidden_dropout 0, it is {dropout}"


@rule("invalid", "transformer_config.py:2659-2666", labels=("moe",), since=GRAPH_MODULES)
def input_jitter_in_graph(context: Context, _: Boundary) -> str | None:
    """Router input jitter is random too."""
    if context.workload.other.get("model.moe_input_jitter_eps") is None or not _captures(context, "moe"):
        return None
    return "moe inside a captured graph needs moe_input_jitter_eps unset"


@rule("invalid", "transformer_config.py:2668-2688", labels=("shared_experts",), since=GTP_LOCAL_GRAPHS)
def sharded_weights_in_local_graph(context: Context, _: Boundary) -> str | None:
    """Generalised tensor parallelism: the local capture differentiates in a way that the FP8 checkpoint cannot."""
    work = context.workload
    sharded = int(work.other.get("model.gtp_weight_remat_size") or 1) > 1
    if not sharded or not context.quantized or work.features.cuda_graph_impl != "local":
        return None
    if not (_captures(context, "moe") or _captures(context, "moe_router")):
        return None
    return "shared_experts inside a local CUDA graph does not work with gtp_weight_remat_size > 1 under FP8 or FP4"


@rule(
    "invalid",
    "Transformer Engine pytorch/distributed.py:_CheckpointFunction.backward, graph.py:_make_graphed_callables at 2.11, 2.17.1; "
    "transformer/cuda_graphs.py:1299 at 2a75ac12",
    labels=tuple(_SCOPE_OF),
    checked_in="run",
)
def checkpoint_refuses_capture(context: Context, boundary: Boundary) -> str | None:
    """A reentrant checkpoint needs ``.backward()``; local graphs and Transformer Engine before 2.12 capture with ``.grad()``."""
    features, te = context.workload.features, context.te_release
    if features.cuda_graph_impl == "transformer_engine" and (te is None or te >= _TE_CAPTURES_BACKWARD):
        return None
    hit = [label for label in _checkpointed_whole(context, boundary) if label in checkpoints_in_capture(context.workload)]
    if not hit:
        return None
    who = "local CUDA graphs" if features.cuda_graph_impl == "local" else "CUDA graphs of Transformer Engine before 2.12"
    return f"{' and '.join(hit)} cannot be captured: {who} differentiate with .grad(), which a reentrant checkpoint refuses"


@rule("note", "tensor_parallel/random.py:checkpoint", labels=tuple(_SCOPE_OF))
def inert_after_capture(context: Context, boundary: Boundary) -> str | None:
    """Not a reason to prune: eager warm-up steps replay, and their peak counts too."""
    hit = [label for label in _checkpointed_whole(context, boundary) if label not in checkpoints_in_capture(context.workload)]
    if not hit:
        return None
    return f"{', '.join(hit)} acts only before graph capture (a captured region runs without its checkpoint)"


def _checkpointed_whole(context: Context, boundary: Boundary) -> list[str]:
    """Labels of the boundary whose checkpoint region lies in a captured scope."""
    if not context.graphs_on or context.full_iteration:
        return []
    return [
        label
        for label, scopes in _SCOPE_OF.items()
        if label in boundary.modules
        and LABELS[label].mechanism == "checkpoint"
        and context.sites[label].layers
        and any(_captures(context, scope) for scope in scopes)
    ]


def _captures(context: Context, scope: str) -> bool:
    return context.graphs_on and (context.whole_layer_captured or scope in context.captured)


RULES = (
    full_needs_full_iteration_graph,
    moe_straddles_router_graph,
    attention_dropout_in_graph,
    hidden_dropout_in_graph,
    input_jitter_in_graph,
    sharded_weights_in_local_graph,
    checkpoint_refuses_capture,
    inert_after_capture,
)
