"""Workloads in miniature for the tests of boundaries and spaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Source, Stack, Train, Workload

PIN = "2a75ac12"


@dataclass(frozen=True)
class Kind:
    mixer: str
    mlp: str


@dataclass(frozen=True)
class Architecture:
    class_: str
    layers: tuple[Kind, ...] = field(default=())


def workload(**settings: Any) -> Workload:
    """A dense Transformer Engine model on the pinned revision; ``settings`` go to the part that has such a field."""
    parts: dict[type, dict[str, Any]] = {
        Model: {
            "num_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "ffn_hidden_size": 4096,
            "vocab_size": 32000,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        Parallel: {"world_size": 1},
        Train: {"seq_length": 4096, "global_batch_size": 8},
        Precision: {},
        Optimizer: {},
        Features: {},
        Stack: {"megatron_core": PIN, "transformer_engine": "2.9.0"},
    }
    own: dict[str, Any] = {}
    for name, value in settings.items():
        for part, values in parts.items():
            if name in part.__dataclass_fields__:
                values[name] = value
                break
        else:
            own[name] = value
    made = {part.__name__.lower(): part(**values) for part, values in parts.items()}
    return Workload(**({"name": "toy", "source": Source(kind="file", reference="toy.json")} | own), **made)


def layers(*groups: tuple[int, str, str]) -> tuple[Kind, ...]:
    return tuple(Kind(mixer, mlp) for count, mixer, mlp in groups for _ in range(count))


DENSE = Architecture("dense", layers((24, "attention", "dense")))
MOE = Architecture("moe", layers((24, "attention", "moe")))
MOONLIGHT = Architecture("mla", layers((1, "mla", "dense"), (26, "mla", "moe")))

_NEMOTRON_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_SYMBOLS = {"M": Kind("mamba", "none"), "*": Kind("attention", "none"), "E": Kind("none", "moe")}
NEMOTRON = Architecture("hybrid", tuple(_SYMBOLS[symbol] for symbol in _NEMOTRON_PATTERN))
"""52 layers: 23 Mamba, 23 MoE, 6 attention (Megatron Bridge 600d069b models/nemotronh/nemotron_h_provider.py)."""


def moonlight(**settings: Any) -> Workload:
    return workload(
        **{
            "num_layers": 27,
            "multi_latent_attention": True,
            "num_moe_experts": 64,
            "moe_grouped_gemm": True,
            "moe_shared_expert_intermediate_size": 2816,
            "moe_token_dispatcher_type": "alltoall",
            "world_size": 8,
            "tensor_model_parallel_size": 2,
            "expert_model_parallel_size": 8,
            "expert_tensor_parallel_size": 1,
            "add_bias_linear": False,
            "sequence_parallel": True,
        }
        | settings
    )


def nemotron(**settings: Any) -> Workload:
    return workload(
        **{
            "num_layers": 52,
            "hybrid_layer_pattern": _NEMOTRON_PATTERN,
            "num_moe_experts": 128,
            "moe_grouped_gemm": True,
            "moe_shared_expert_intermediate_size": 3712,
            "moe_token_dispatcher_type": "flex",
            "world_size": 16,
            "expert_model_parallel_size": 8,
            "cuda_graph_impl": "transformer_engine",
            "cuda_graph_modules": ("attn", "mamba"),
            "recipe_recompute": {"recompute_granularity": "selective", "recompute_modules": ["moe", "layernorm"]},
        }
        | settings
    )


def moe(**settings: Any) -> Workload:
    return workload(**({"num_moe_experts": 8, "moe_grouped_gemm": True} | settings))
