"""What this project knows of each label of ``recompute_modules``; what a revision accepts is asked in ``accepted.py``.

Line numbers are those of Megatron-LM 2a75ac12 (24bad8e6 has the same code), unless another revision is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from autotune.boundary.revision import GATED_DELTA_PRODUCT, GDN_NORM_OUT, HYPER_CONNECTIONS, SHARED_EXPERTS, Since

Mechanism = Literal["checkpoint", "output_discard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One label.

    ``mechanism`` is ``checkpoint`` where the region runs without grad and its input is saved
    (tensor_parallel/random.py:checkpoint), ``output_discard`` where the region's output is freed after its consumer
    has run and is computed again in backward (random.py:CheckpointWithoutOutput). ``inside`` names the labels whose
    region holds this one: such pairs are distinct settings, since the inner one moves the transient of the replay.
    """

    name: str
    mechanism: Mechanism
    acts_on: str
    drops: str
    keeps: str
    replays: str
    source: str
    inside: tuple[str, ...] = ()
    since: Since | None = None


_LABELS = (
    Label(
        name="core_attn",
        mechanism="checkpoint",
        acts_on="attention and MLA layers",
        drops="softmax statistics; with unfused attention also scores, probabilities and the dropout mask",
        keeps="query, key, value (value pins the whole mixed QKV where rope or qk-layernorm made the others copies)",
        replays="the attention core, and its communication under context parallelism",
        source="transformer/attention.py:389-395 SelfAttention._checkpointed_attention_forward",
    ),
    Label(
        name="layernorm",
        mechanism="output_discard",
        acts_on="layers with a norm of their own: MLA input norm, MoE pre-MLP norm, every norm of the local spec",
        drops="the norm's output, whoever saves it",
        keeps="the layer input",
        replays="the norm",
        source="transformer/transformer_layer.py:450-510, 667, 963",
    ),
    Label(
        name="moe_act",
        mechanism="output_discard",
        acts_on="MoE layers with grouped GEMM",
        drops="the activation output between expert FC1 and FC2",
        keeps="the FC1 output",
        replays="the elementwise activation; no dispatch, no GEMM",
        source="transformer/moe/experts.py:268, 904-915 TEGroupedMLP.forward",
        inside=("moe",),
    ),
    Label(
        name="mla_up_proj",
        mechanism="output_discard",
        acts_on="MLA layers",
        drops="expanded query, key, value and the rope copies",
        keeps="compressed query and key-value",
        replays="the up-projections, rope and one sequence-parallel all-gather",
        source="transformer/multi_latent_attention.py:171, 455-457, 973-985",
    ),
    Label(
        name="mlp",
        mechanism="checkpoint",
        acts_on="layers with a dense MLP",
        drops="fused norm output, FC1 output, activation output",
        keeps="the MLP input",
        replays="the whole dense MLP with its tensor-parallel communication",
        source="transformer/transformer_layer.py:512-514, 868-886",
    ),
    Label(
        name="shared_experts",
        mechanism="checkpoint",
        acts_on="MoE layers with shared experts that are not overlapped",
        drops="FC1 output and activation output of the shared experts",
        keeps="the MoE input",
        replays="the shared-expert MLP",
        source="transformer/moe/moe_layer.py:251, 515-530 MoELayer.shared_experts_compute",
        inside=("moe",),
        since=SHARED_EXPERTS,
    ),
    Label(
        name="gdn_norm_out",
        mechanism="output_discard",
        acts_on="gated-delta-net layers",
        drops="the gated norm's output",
        keeps="core output and gate",
        replays="the gated norm and its HP-to-CP all-to-all",
        source="ssm/gated_delta_net/gdn.py:241-262, common.py:266-269",
        since=GDN_NORM_OUT,
    ),
    Label(
        name="moe",
        mechanism="checkpoint",
        acts_on="MoE layers",
        drops="router tensors, dispatched tokens, FC1 and activation outputs, shared-expert tensors",
        keeps="the MoE input (the pre-MLP norm's output: `layernorm` adds to it)",
        replays="routing, dispatch and combine communication, experts and shared experts",
        source="transformer/moe/moe_layer.py:246-250, 701-715 MoELayer.forward",
    ),
    Label(
        name="mhc",
        mechanism="output_discard",
        acts_on="layers with manifold hyper-connections (enable_mhc_connections)",
        drops="hyper-connection intermediates",
        keeps="not studied",
        replays="not studied",
        source="d98e8a64 transformer/transformer_config.py:576, 2028-2050",
        since=HYPER_CONNECTIONS,
    ),
    Label(
        name="gdp_in_proj",
        mechanism="output_discard",
        acts_on="gated-delta-product layers",
        drops="the input projection and its context-parallel split",
        keeps="not studied",
        replays="not studied",
        source="d98e8a64 transformer/transformer_config.py:573",
        since=GATED_DELTA_PRODUCT,
    ),
    Label(
        name="gdp_qkv",
        mechanism="output_discard",
        acts_on="gated-delta-product layers",
        drops="causal convolution and QKV preparation",
        keeps="not studied",
        replays="not studied",
        source="d98e8a64 transformer/transformer_config.py:575",
        since=GATED_DELTA_PRODUCT,
    ),
)

LABELS: Mapping[str, Label] = MappingProxyType({label.name: label for label in _LABELS})
"""The known labels by name."""
