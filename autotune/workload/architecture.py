"""The architecture classifier: what every layer is, and which class of search space the network belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import RequestError
from autotune.workload.workload import Model, Workload

Mixer = Literal["attention", "mla", "dsa", "gdn", "mamba", "none"]
Mlp = Literal["dense", "moe", "none"]
ArchitectureClass = Literal["standard", "dense", "mla", "moe", "gdn", "hybrid"]

# megatron/core/models/hybrid/hybrid_layer_allocation.py:Symbols (0.19.2); ``|`` ends a pipeline chunk, ``/`` starts MTP.
HYBRID_SYMBOLS: Mapping[str, tuple[Mixer, Mlp]] = {
    "M": ("mamba", "none"),
    "G": ("gdn", "none"),
    "*": ("attention", "none"),
    "D": ("dsa", "none"),
    "+": ("mla", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
}
_UNFUSED_BACKENDS = frozenset({"unfused", "local"})
_MIXER_NAMES: Mapping[str, str] = {
    "attention": "attention", "mla": "MLA", "dsa": "DSA", "gdn": "GDN", "mamba": "Mamba",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What one layer holds: a sequence mixer, an MLP, or both."""

    mixer: Mixer
    mlp: Mlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A network's class, the kind of every decoder layer, and the fields it was decided from.

    ``class_`` picks the search space. A mixture belongs to the class whose narrowest label comes first: a hybrid stack
    before GDN before MLA before MoE; ``title`` names the mixture honestly.
    """

    class_: ArchitectureClass
    title: str
    layers: tuple[LayerKind, ...]
    facts: Mapping[str, Any]

    def count(self, *, mixer: Mixer | None = None, mlp: Mlp | None = None) -> int:
        """How many layers have the given mixer, the given MLP, or both."""
        return sum((mixer is None or k.mixer == mixer) and (mlp is None or k.mlp == mlp) for k in self.layers)


def classify(workload: Workload) -> Architecture:
    """Classify a workload.

    Raises:
        RequestError: A layer pattern does not fit the number of layers or holds an unknown symbol.
    """
    model = workload.model
    layers = hybrid_layers(model) if model.hybrid_layer_pattern is not None else _decoder_layers(model)
    unfused = materialises_scores(workload)
    mixers = {kind.mixer for kind in layers}
    if model.hybrid_layer_pattern is not None or "mamba" in mixers:
        class_: ArchitectureClass = "hybrid"
    elif "gdn" in mixers:
        class_ = "gdn"
    elif mixers & {"mla", "dsa"}:
        class_ = "mla"
    elif any(kind.mlp == "moe" for kind in layers):
        class_ = "moe"
    else:
        class_ = "standard" if unfused else "dense"
    return Architecture(class_=class_, title=_title(layers, unfused), layers=layers, facts=_facts(workload))


def materialises_scores(workload: Workload) -> bool:
    """Whether the attention core keeps score and probability tensors of [b, heads, s, s].

    That is Megatron's own DotProductAttention (local implementation or backend) and Transformer Engine's unfused
    backend. With ``auto`` Transformer Engine chooses at run time; flash or fused is assumed, as on every recipe's GPU.
    """
    features = workload.features
    return features.transformer_impl == "local" or features.attention_backend in _UNFUSED_BACKENDS


def hybrid_layers(model: Model) -> tuple[LayerKind, ...]:
    """Kinds of a hybrid stack, pipeline separators skipped, MTP patterns left out."""
    assert model.hybrid_layer_pattern is not None
    main = main_pattern(model.hybrid_layer_pattern)
    for symbol in main:
        if symbol not in HYBRID_SYMBOLS and symbol != "|":
            raise RequestError(
                "model.hybrid_layer_pattern",
                model.hybrid_layer_pattern,
                f"{symbol!r} is no layer symbol",
                f"use {' '.join(HYBRID_SYMBOLS)}, | between pipeline chunks and / before MTP",
            )
    layers = tuple(LayerKind(*HYBRID_SYMBOLS[symbol]) for symbol in main if symbol != "|")
    if len(layers) != model.num_layers:
        raise RequestError(
            "model.hybrid_layer_pattern",
            model.hybrid_layer_pattern,
            f"describes {len(layers)} layers but model.num_layers is {model.num_layers}",
            "make the two agree",
        )
    return layers


def main_pattern(pattern: str) -> str:
    """The decoder part of a hybrid pattern: everything before the first ``/``."""
    return pattern.partition("/")[0]


def mtp_depths(pattern: str) -> int:
    """How many MTP depths a hybrid pattern spells out after ``/``."""
    return len([part for part in pattern.split("/")[1:] if part])


def _decoder_layers(model: Model) -> tuple[LayerKind, ...]:
    mixers, mlps = _mixers(model), _mlps(model)
    return tuple(LayerKind(mixer, mlp) for mixer, mlp in zip(mixers, mlps, strict=True))


def _mixers(model: Model) -> list[Mixer]:
    # megatron/core/models/gpt/experimental_attention_variant_module_specs.py:get_linear_attention_pattern (0.19.2):
    # an int N puts one softmax-attention layer at the end of every N layers, a list has 1 for linear attention.
    full: Mixer = "mla" if model.multi_latent_attention else "attention"
    variant = model.experimental_attention_variant
    if variant == "dsa":
        return ["dsa"] * model.num_layers
    if variant != "gated_delta_net":
        return [full] * model.num_layers
    freq = model.linear_attention_freq
    if freq is None:
        raise RequestError(
            "model.linear_attention_freq", None, "gated_delta_net needs it", "give an interval or one 0 or 1 a layer"
        )
    if isinstance(freq, int):
        return [full if (index + 1) % freq == 0 else "gdn" for index in range(model.num_layers)]
    return ["gdn" if linear else full for linear in _per_layer("model.linear_attention_freq", freq, model.num_layers)]


def _mlps(model: Model) -> list[Mlp]:
    # megatron/core/models/gpt/gpt_layer_specs.py:get_gpt_decoder_layer_specs: int N makes layers 0, N, 2N ... MoE.
    if not model.num_moe_experts:
        return ["dense"] * model.num_layers
    freq = model.moe_layer_freq
    if isinstance(freq, int):
        return ["moe" if index % freq == 0 else "dense" for index in range(model.num_layers)]
    return ["moe" if moe else "dense" for moe in _per_layer("model.moe_layer_freq", freq, model.num_layers)]


def _per_layer(setting: str, pattern: Sequence[int], num_layers: int) -> Sequence[int]:
    if len(pattern) != num_layers or any(item not in (0, 1) for item in pattern):
        raise RequestError(
            setting,
            None,
            f"has {len(pattern)} entries for {num_layers} layers, each to be 0 or 1",
            "give one entry a layer, or an interval",
        )
    return pattern


def _title(layers: Sequence[LayerKind], unfused: bool) -> str:
    mixers = Counter(kind.mixer for kind in layers if kind.mixer != "none")
    parts = [
        name + (" (unfused core)" if mixer == "attention" and unfused else "")
        for mixer, name in _MIXER_NAMES.items()
        if mixers[mixer]  # type: ignore[index]
    ]
    mlps = Counter(kind.mlp for kind in layers if kind.mlp != "none")
    parts += [name for mlp, name in (("moe", "MoE"), ("dense", "dense FFN")) if mlps[mlp] and not _few_dense(mlp, mlps)]  # type: ignore[index]
    return " + ".join(parts) + "".join(f", {text}" for text in _proportions(layers, mixers, mlps))


def _few_dense(mlp: str, mlps: Mapping[Any, int]) -> bool:
    return mlp == "dense" and 0 < mlps["dense"] < mlps["moe"]


def _proportions(layers: Sequence[LayerKind], mixers: Mapping[Any, int], mlps: Mapping[Any, int]) -> Iterator[str]:
    total = len(layers)
    if any(kind.mixer == "none" or kind.mlp == "none" for kind in layers):
        counts = [f"{count} {_MIXER_NAMES[mixer]}" for mixer, count in mixers.items()]
        counts += [f"{count} {'MoE' if mlp == 'moe' else 'dense FFN'}" for mlp, count in mlps.items()]
        yield f"{total} layers: {', '.join(counts)}"
        return
    if mixers["gdn"]:
        yield f"{mixers['gdn']} GDN layers of {total}"
    if mlps["moe"] and mlps["dense"]:
        count = mlps["dense"]
        yield f"{count} dense {'layer' if count == 1 else 'layers'} of {total}"


def _facts(workload: Workload) -> dict[str, Any]:
    model = workload.model
    facts: dict[str, Any] = {
        "model.num_layers": model.num_layers,
        "model.multi_latent_attention": model.multi_latent_attention,
        "model.num_moe_experts": model.num_moe_experts,
        "model.hybrid_layer_pattern": model.hybrid_layer_pattern,
        "model.experimental_attention_variant": model.experimental_attention_variant,
        "features.transformer_impl": workload.features.transformer_impl,
        "features.attention_backend": workload.features.attention_backend,
    }
    if model.num_moe_experts:
        facts["model.moe_layer_freq"] = model.moe_layer_freq
    if model.linear_attention_freq is not None:
        facts["model.linear_attention_freq"] = model.linear_attention_freq
    return facts
