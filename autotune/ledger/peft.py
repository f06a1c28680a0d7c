"""Low-rank adapters over frozen weights (Bridge's LoRA).

A frozen weight has no gradient, no optimizer state and no weight gradient, so its GEMM keeps no input. An adapter beside it
keeps that input itself, gathered over tensor-parallel ranks where the layer gathers, and the low-rank product in between.

Sources at Megatron Bridge 600d069b: peft/lora.py:LoRA (target_modules, share_expert_adapters), peft/lora_layers.py:
LoRALinear.forward, peft/utils.py:ParallelLinearAdapter.__init__; Megatron-LM 24bad8e6 tensor_parallel/layers.py:
linear_with_frozen_weight (keeps the weight only); Transformer Engine 2.17.1 module/layernorm_linear.py, linear.py (an input is
saved where the weight needs a gradient).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autotune.ledger.block import Context, Param
from autotune.ledger.ops import Op, Tensor

_TARGETS = {
    "qkv": "linear_qkv", "proj": "linear_proj", "fc1": "linear_fc1", "fc2": "linear_fc2", "expert_fc1": "linear_fc1",
    "expert_fc2": "linear_fc2", "shared_fc1": "linear_fc1", "shared_fc2": "linear_fc2",
}  # fmt: skip
ADAPTER_TARGETS = frozenset(_TARGETS.values())
"""Layers that may have an adapter, by Megatron's names."""
_GEMMS = frozenset({*_TARGETS, "down", "up", "in_proj", "out_proj", "latent_down", "latent_up", "output_layer"})
_ROWS = ("proj", "fc2")
"""Row-parallel layers: their input is cut over tensor-parallel ranks, their output is whole."""
_NOT_GEMM_INPUTS = (".x", "norm_stats", "kv_down_out", "q_down_out", "rope_angles")


def with_adapters(ctx: Context, ops: Sequence[Op]) -> tuple[Op, ...]:
    """Operations of a layer whose own weights are frozen."""
    return tuple(_adapted(ctx, op) for op in ops)


def _adapted(ctx: Context, op: Op) -> Op:
    half, _, name = op.name.partition(".")
    if name not in _GEMMS:
        return op
    kept = tuple(tensor for tensor in op.saves if tensor.name.endswith(_NOT_GEMM_INPUTS))
    if _TARGETS.get(name) not in ctx.workload.features.peft_target_modules:
        return replace(op, saves=kept, wgrad_bytes=0)
    s = ctx.sizes
    inputs = [tensor for tensor in op.saves if tensor not in kept]
    tokens = s.routed_tokens if name.startswith("expert") else s.tokens
    if s.sequence_parallel and not name.endswith(_ROWS) and not name.startswith("expert"):
        # the layer hands its gathered norm output to the adapter, which keeps that
        inputs = [
            Tensor(
                name=f"{op.name}.adapter_input",
                nbytes=s.gathered_bytes,
                group=inputs[0].group,
                formula="2 n h",
                source="peft/lora_layers.py:LoRALinear.forward at 600d069b",
            )
        ]
    middle = Tensor(
        name=f"{op.name}.adapter_middle",
        nbytes=s.width * tokens * ctx.workload.features.peft_dim,
        group="moe" if half == "moe" else "attention" if name in ("qkv", "proj") else "mlp",
        formula="2 n r",
        source="peft/utils.py:ParallelLinearAdapter.forward at 600d069b",
    )
    return replace(op, saves=(*kept, *inputs, middle), wgrad_bytes=0)


def frozen_with_adapters(ctx: Context, params: Iterable[Param]) -> tuple[Param, ...]:
    """Parameters as frozen ones, and the two matrices of each adapter; local experts share one (share_expert_adapters)."""
    out: list[Param] = []
    rank, tp = ctx.workload.features.peft_dim, ctx.sizes.tp
    for param in params:
        out.append(replace(param, frozen=True))
        name = param.name.partition(".")[2]
        if _TARGETS.get(name) not in ctx.workload.features.peft_target_modules:
            continue
        rows, columns = param.shape
        shards = ctx.workload.parallel.etp if param.expert else tp
        first, last = (
            ((rank, columns), (rows // shards, rank))
            if name.endswith(_ROWS)
            else ((max(1, rank // shards), columns), (rows, rank))
        )
        out += [
            Param(name=f"{param.name}.lora_{which}", shape=shape, expert=param.expert, gemm=True, quantized=False)
            for which, shape in (("in", first), ("out", last))
        ]
    return tuple(out)
