"""Whose optimizer state a rank keeps: an even share of every parameter, or some parameters whole.

Sources at Megatron-LM d98e8a64: optimizer/distrib_optimizer.py (an even share), optimizer/layer_wise_optimizer.py:
LayerWiseDistributedOptimizer._shard_params_ping_pong, _compute_per_buffer_param_layout (whole matrices),
training/arguments.py:validate_args ("emerging optimizer check").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.ledger.block import Context, Param
from autotune.ledger.fsdp import sharding
from autotune.workload.workload import Workload

_LAYOUT = (0, 18)
"""Megatron Core in which the layer-wise optimizer got its parameter layout (c1e938b039)."""


def is_layer_wise(workload: Workload) -> bool:
    """Whether Muon's states are spread by whole matrices."""
    optimizer = workload.optimizer
    return optimizer.optimizer == "dist_muon" or (optimizer.optimizer == "muon" and optimizer.use_distributed_optimizer)


def shard_sizes(workload: Workload) -> tuple[int, int]:
    """Over how many ranks dense and expert states are spread (1, 1 where they are not)."""
    parallel = workload.parallel
    if not (sharding(workload).states or is_layer_wise(workload)):
        return 1, 1
    instances = parallel.num_distributed_optimizer_instances
    dense = parallel.data_parallel_size * parallel.context_parallel_size // instances
    return max(1, dense), max(1, parallel.expert_data_parallel_size // instances)


def state_shares(ctx: Context, params: Sequence[Param]) -> list[tuple[Param, int]]:
    """Parameters whose state the fullest rank keeps, and over how many ranks each is spread.

    The layer-wise optimizer with its parameter layout deals out matrices in nearly equal shares and leaves the rest to the
    distributed optimizer: an even share of everything. Without it parameters of every kind, sorted by size, go whole to the
    ranks, back and forth.
    """
    dense, expert = shard_sizes(ctx.workload)
    if not is_layer_wise(ctx.workload) or (ctx.workload.optimizer.use_layer_wise_param_layout and ctx.stack.mcore >= _LAYOUT):
        return [(param, expert if param.expert else dense) for param in params]
    dealt: list[tuple[Param, int]] = []
    for kind, ranks in ((False, dense), (True, expert)):
        single = [replace(param, copies=1) for param in params if param.expert == kind for _ in range(param.copies)]
        single.sort(key=lambda param: param.numel)
        hands: list[list[Param]] = [[] for _ in range(ranks)]
        order = [*range(ranks), *reversed(range(ranks))]
        for index, param in enumerate(single):
            hands[order[index % len(order)]].append(param)
        dealt += [(param, 1) for param in max(hands, key=lambda hand: sum(param.numel for param in hand))]
    return dealt
