"""Megatron-FSDP: what each sharding strategy leaves of weights, gradients and states, and what is whole while layers run.

Sources at Megatron-LM 24bad8e6, distributed/fsdp/src/megatron_fsdp: param_and_grad_buffer.py:ParamAndGradBuffer.
_init_each_parameter_group_buffers (what is distributed), AllGatherPipeline.all_gather_params (prefetch), GradReducePipeline.
wait_for_previous_grad_reduce (the queue keeps whole gradients up to its capacity); megatron_fsdp.py:MegatronFSDP.__init__
(suggested_communication_unit_size: twice a unit, but at least 10^9 elements); mcore_fsdp_adapter.py (a layer is a unit under
``optim_grads_params``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.ledger.block import Param
from autotune.workload.workload import Workload

_LEAST_UNIT_ELEMENTS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Which of the lasting tensors are spread over the data-parallel ranks."""

    weights: bool
    gradients: bool
    states: bool


def sharding(workload: Workload) -> Sharding:
    """The strategy of Megatron-FSDP, or that of the distributed optimizer, which spreads states only."""
    optimizer = workload.optimizer
    if not optimizer.use_megatron_fsdp:
        return Sharding(weights=False, gradients=False, states=optimizer.use_distributed_optimizer)
    strategy = optimizer.data_parallel_sharding_strategy
    return Sharding(
        weights=strategy == "optim_grads_params",
        gradients=strategy in ("optim_grads", "optim_grads_params"),
        states=strategy != "no_shard",
    )


def gathered_weights(params: Sequence[Param], unit: int, spread: Sharding, *, width: int) -> int:
    """Whole weights while the schedule runs, in bytes: the layer at hand, those fetched ahead, and what is in no unit.

    Args:
        params: Parameters of the stage.
        unit: Elements of the largest layer.
        spread: What is sharded; without sharded weights nothing is gathered.
        width: Bytes of a weight.
    """
    if not spread.weights or not unit:
        return 0
    total = sum(param.numel for param in params)
    outside = sum(param.numel for param in params if param.name.partition(".")[0] in ("embedding", "head"))
    ahead = math.ceil(max(_LEAST_UNIT_ELEMENTS, 2 * unit) / 2 / unit)
    return width * min(total, outside + (1 + ahead) * unit)


def waiting_gradients(params: Sequence[Param], unit: int, spread: Sharding, *, width: int) -> int:
    """Whole gradients that wait for their reduction during backward, in bytes: the queue's capacity and the layer at hand."""
    if not spread.gradients:
        return 0
    trained = sum(param.numel for param in params if not param.frozen)
    return width * min(trained, max(_LEAST_UNIT_ELEMENTS, 2 * unit) + unit)
