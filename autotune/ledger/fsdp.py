"""Fully sharded data parallelism: what stays of weights, gradients and states, and what is whole while layers run.

Sources at Megatron-LM d98e8a64, distributed/fsdp/src/megatron_fsdp: param_and_grad_buffer.py:ParamAndGradBuffer.
_init_each_parameter_group_buffers (what is distributed), _get_parameter_groups (parameters outside layers are the first
buckets), AllGatherPipeline.all_gather_params (prefetch), GradReducePipeline.wait_for_previous_grad_reduce (the queue keeps whole
gradients up to its capacity); megatron_fsdp.py:MegatronFSDP._init_fsdp_param_and_grad_buffer (suggested_communication_unit_size:
twice a unit, but at least 10^9 elements), _register_fsdp_hooks (a layer's weights go after its forward, gradients are reduced by
the end of each micro batch's backward); mcore_fsdp_adapter.py (a layer is a unit). PyTorch's:
torch_fully_sharded_data_parallel.py; torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (one unit is fetched ahead) and
_fsdp_collectives.py:foreach_reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.ledger.block import Param
from autotune.ledger.stack import ResolvedStack
from autotune.workload.workload import DTYPE_BYTES, Dtype, Workload

_LEAST_UNIT_ELEMENTS = 1_000_000_000
_OWN_DTYPES = (0, 17)
"""Megatron Core from which Megatron-FSDP has dtypes of its own (b969f7642c) instead of ``grad_reduce_in_fp32``."""
_KEEPS_ROOT = (0, 19)
"""Megatron Core from which whole weights outside layers stay between steps (378d81fbd3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """Which of the lasting tensors are spread over the data-parallel ranks."""

    weights: bool
    gradients: bool
    states: bool


def sharding(workload: Workload) -> Sharding:
    """The strategy of Megatron-FSDP, all of it under PyTorch's FSDP, or states only under the distributed optimizer."""
    optimizer = workload.optimizer
    if optimizer.use_torch_fsdp2:
        return Sharding(weights=True, gradients=True, states=True)
    if not optimizer.use_megatron_fsdp:
        return Sharding(weights=False, gradients=False, states=optimizer.use_distributed_optimizer)
    strategy = optimizer.data_parallel_sharding_strategy
    return Sharding(
        weights=strategy == "optim_grads_params",
        gradients=strategy in ("optim_grads", "optim_grads_params"),
        states=strategy != "no_shard",
    )


def gradient_dtype(workload: Workload, stack: ResolvedStack) -> Dtype:
    """Dtype in which gradients stay: that of the parameters unless Megatron-FSDP or the gradient buffer has its own."""
    optimizer, precision = workload.optimizer, workload.precision
    if optimizer.use_torch_fsdp2:
        return precision.params_dtype
    if optimizer.use_megatron_fsdp and stack.mcore >= _OWN_DTYPES:
        return optimizer.megatron_fsdp_main_grads_dtype or precision.params_dtype
    return precision.grad_dtype


def keeps_root_weights(workload: Workload, stack: ResolvedStack) -> bool:
    """Whether whole weights outside layers stay on the device from the first forward on."""
    return workload.optimizer.use_megatron_fsdp and stack.mcore >= _KEEPS_ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What is whole while the units of a chunk run, in bytes. Units are counted in elements, in forward order."""

    weight_width: int
    """Bytes of a gathered weight; 0 where weights are not sharded."""
    gradient_width: int
    """Bytes of an element of a gradient that waits for its reduction; 0 where gradients are not sharded."""
    ahead: int
    """Further units are fetched until they have this many elements."""
    queue: int
    """Elements of gradients that may wait beside those of the unit at hand."""
    copies: int
    """Whole copies of the gradients of the unit at hand."""
    roots: bool
    """Whether embedding and head are units too."""

    def forward(self, units: Sequence[int], index: int) -> int:
        """Beside the forward of a unit: its weights and those fetched ahead."""
        return self.weight_width * self._gathered(units, index, range(index + 1, len(units)))

    def backward(self, units: Sequence[int], index: int) -> int:
        """Beside the backward of a unit: weights in the other direction, and gradients on their way."""
        waiting = min(self.queue, sum(units[index + 1 :])) + self.copies * units[index]
        return self.weight_width * self._gathered(units, index, range(index - 1, -1, -1)) + self.gradient_width * waiting

    def _gathered(self, units: Sequence[int], index: int, following: range) -> int:
        if not units[index]:
            return 0
        fetched = 0
        for other in following:
            if fetched >= self.ahead:
                break
            fetched += units[other]
        return units[index] + fetched


def flow(workload: Workload, stack: ResolvedStack, largest: int) -> Flow | None:
    """How weights and gradients of a workload come and go; None without sharding.

    Args:
        workload: What is trained.
        stack: What it runs on.
        largest: Elements of the largest layer, Megatron-FSDP's unit.
    """
    spread, optimizer = sharding(workload), workload.optimizer
    if not spread.gradients:
        return None
    width = DTYPE_BYTES[workload.precision.params_dtype]
    if optimizer.use_torch_fsdp2:
        # One unit ahead; a unit's gradients and the flat input of their reduction.
        return Flow(weight_width=width, gradient_width=width, ahead=1, queue=0, copies=2, roots=True)
    unit = optimizer.suggested_communication_unit_size or max(_LEAST_UNIT_ELEMENTS, 2 * largest)
    if optimizer.fsdp_double_buffer:
        # Layers lie in lasting buffers (double_buffer_bytes).
        return Flow(weight_width=0, gradient_width=0, ahead=0, queue=0, copies=0, roots=False)
    travels = optimizer.megatron_fsdp_grad_comm_dtype or gradient_dtype(workload, stack)
    return Flow(
        weight_width=width if spread.weights else 0,
        gradient_width=DTYPE_BYTES[travels],
        ahead=unit // 2,
        queue=unit,
        copies=1,
        roots=False,
    )


def double_buffer_bytes(workload: Workload, stack: ResolvedStack, largest: int) -> int:
    """Two layers' weights and two layers' gradients that stay on the device (FixedPoolAllocator).

    Args:
        workload: What is trained.
        stack: What it runs on.
        largest: Elements of the largest layer.
    """
    optimizer, spread = workload.optimizer, sharding(workload)
    if not (optimizer.use_megatron_fsdp and optimizer.fsdp_double_buffer):
        return 0
    width = DTYPE_BYTES[workload.precision.params_dtype] if spread.weights else 0
    travels = optimizer.megatron_fsdp_grad_comm_dtype or gradient_dtype(workload, stack)
    return 2 * largest * (width + (DTYPE_BYTES[travels] if spread.gradients else 0))


def outside(params: Sequence[Param]) -> int:
    """Elements of parameters in no layer."""
    return sum(param.numel for param in params if param.name.partition(".")[0] in ("embedding", "head"))
