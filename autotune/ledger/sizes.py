"""Sizes of one rank: tokens, heads, widths and the vocabulary after every kind of sharding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.workload.workload import DTYPE_BYTES, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All in elements or tokens of one micro batch on one rank, but for ``width`` (bytes of an activation element)."""

    width: int
    sequence: int
    """Sequence positions of one context-parallel rank."""
    batch: int
    tokens: int
    """n = sequence * batch: tokens inside tensor-parallel regions."""
    shard_tokens: int
    """n': tokens outside them; n / tp with sequence parallel."""
    tp: int
    sequence_parallel: bool
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    gate: int
    """2 for a gated MLP (fc1 is twice as wide), else 1."""
    ffn: int
    padded_vocab: int
    vocab: int
    """Padded vocabulary over tp."""
    experts: int
    local_experts: int
    topk: int
    expert_ffn: int
    moe_width: int
    """Width of a routed token: the latent size where there is one, else hidden."""
    routed_tokens: int
    """T: token copies that this rank's experts process."""
    shared_ffn: int

    @property
    def hidden_bytes(self) -> int:
        """H: one [tokens outside TP, hidden] activation, in bytes."""
        return self.width * self.shard_tokens * self.hidden

    @property
    def gathered_bytes(self) -> int:
        """One [tokens inside TP, hidden] activation, in bytes."""
        return self.width * self.tokens * self.hidden


def padded_vocab_size(workload: Workload) -> int:
    """The vocabulary padded to a multiple of make_vocab_size_divisible_by * tp.

    Source: megatron/training/tokenizer (vocab_size_with_padding) at d98e8a64; Bridge ``calculate_padded_vocab_size``.
    """
    model = workload.model
    if not model.should_pad_vocab:
        return model.vocab_size
    multiple = model.make_vocab_size_divisible_by * workload.parallel.tensor_model_parallel_size
    return math.ceil(model.vocab_size / multiple) * multiple


def routed_tokens(workload: Workload, shard_tokens: int, load_factor: float) -> int:
    """T, the token copies one expert rank receives.

    Balanced routing gives every rank n' * ep * etp * topk / ep copies (the ETP ranks of an expert all see its tokens).
    With padding to capacity it is exactly capacity * source ranks * local experts, capacity = ceil(n' k / E * factor):
    megatron/core/transformer/moe/moe_utils.py:get_capacity, token_dispatcher.py:MoEAlltoAllTokenDispatcher.preprocess
    at 24bad8e6.
    """
    model, parallel = workload.model, workload.parallel
    if not model.num_moe_experts:
        return 0
    copies = shard_tokens * model.moe_router_topk
    sources = parallel.expert_model_parallel_size * parallel.etp
    if model.moe_expert_capacity_factor is not None and model.moe_pad_expert_input_to_capacity:
        capacity = math.ceil(copies / model.num_moe_experts * model.moe_expert_capacity_factor)
        return capacity * sources * (model.num_moe_experts // parallel.expert_model_parallel_size)
    if model.moe_expert_capacity_factor is not None:
        load_factor = min(load_factor, model.moe_expert_capacity_factor)
    return round(copies * parallel.etp * load_factor)


def sizes(workload: Workload, *, load_factor: float = 1.0) -> Sizes:
    """Work the sizes out of a workload; the layout is taken to be valid."""
    model, parallel, train = workload.model, workload.parallel, workload.train
    tp = parallel.tensor_model_parallel_size
    sequence = train.seq_length // parallel.context_parallel_size
    tokens = sequence * train.micro_batch_size
    shard_tokens = tokens // tp if parallel.sequence_parallel else tokens
    groups = model.num_query_groups or model.num_attention_heads
    experts = model.num_moe_experts or 0
    padded = padded_vocab_size(workload)
    return Sizes(
        width=DTYPE_BYTES[workload.precision.params_dtype],
        sequence=sequence,
        batch=train.micro_batch_size,
        tokens=tokens,
        shard_tokens=shard_tokens,
        tp=tp,
        sequence_parallel=parallel.sequence_parallel,
        hidden=model.hidden_size,
        heads=model.num_attention_heads // tp,
        kv_heads=max(1, groups // tp),
        head_dim=model.kv_channels or model.hidden_size // model.num_attention_heads,
        gate=2 if model.gated_linear_unit else 1,
        ffn=model.ffn_hidden_size // tp,
        padded_vocab=padded,
        vocab=padded // tp,
        experts=experts,
        local_experts=experts // parallel.expert_model_parallel_size if experts else 0,
        topk=model.moe_router_topk,
        expert_ffn=(model.moe_ffn_hidden_size or model.ffn_hidden_size) // parallel.etp,
        moe_width=model.moe_latent_size or model.hidden_size,
        routed_tokens=routed_tokens(workload, shard_tokens, load_factor),
        shared_ffn=(model.moe_shared_expert_intermediate_size or 0) // tp,
    )
