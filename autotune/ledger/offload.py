"""Activations that leave the device between forward and backward.

Sources at Megatron-LM 24bad8e6: pipeline_parallel/fine_grained_activation_offload.py:PipelineOffloadManager, ChunkOffloadHandler
(should_bulk_offload, tensor_need_offloading_checker), and where the groups are opened: transformer_layer.py (attn_norm,
mlp_norm), attention.py and multi_latent_attention.py (qkv_linear, core_attn, attn_proj), moe/experts.py (expert_fc1,
moe_act); Transformer Engine 2.17.1 pytorch/cpu_offload.py for ``cpu_offloading``.

Host memory is not counted, and copies are taken to keep up with the layers: with a slow link more layers wait on the device.
"""

from __future__ import annotations

from autotune.ledger.ops import Layer
from autotune.workload.workload import Workload

_GROUPS = {
    "norm": "attn_norm", "qkv": "qkv_linear", "qk_norm": "qkv_linear", "down": "qkv_linear", "up": "qkv_linear",
    "core": "core_attn", "proj": "attn_proj",
}  # fmt: skip
_MLP_GROUPS = {"norm": "mlp_norm", "expert_fc1": "expert_fc1", "expert_act": "moe_act"}
_SMALLEST_ELEMENTS = 2**20
"""TransformerConfig.min_offloaded_tensor_size; smaller tensors stay."""


def offload_group(op: str) -> str | None:
    """The group of ``offload_modules`` that an operation runs in."""
    half, _, name = op.partition(".")
    return _MLP_GROUPS.get(name) if half in ("moe", "mlp") else _GROUPS.get(name)


def offloaded(layer: Layer, labels: frozenset[str], modules: frozenset[str], *, width: int) -> dict[str, int]:
    """Bytes by term group that leave the device: held tensors that only offloaded operations keep, from 2^20 elements on.

    Args:
        layer: The layer.
        labels: Active recompute labels; what they drop is not copied.
        modules: The ``offload_modules``.
        width: Bytes of an element.
    """
    inside = frozenset(op.name for op in layer.ops if offload_group(op.name) in modules)
    out: dict[str, int] = {}
    for name, tensor in layer.tensors.items():
        if tensor.nbytes < _SMALLEST_ELEMENTS * width or not layer.is_held(name, labels):
            continue
        if layer.keepers(name, labels) <= inside:
            out[tensor.group] = out.get(tensor.group, 0) + tensor.nbytes
    return out


def whole_layers(workload: Workload) -> int:
    """How many leading layers ``cpu_offloading`` moves whole (transformer_block.py:TransformerBlock, get_cpu_offload_context)."""
    features = workload.features
    return features.cpu_offloading_num_layers if features.cpu_offloading else 0
