"""Layer patterns of hybrid models that are given by ratios, as Megatron-LM up to 0.16 took them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def pattern_of_ratios(num_layers: int, attention_ratio: float, mlp_ratio: float) -> str:
    """One symbol a layer: Mamba layers with attention spread evenly between them, then MLPs over the Mamba layers left.

    Source: megatron/core/ssm/mamba_hybrid_layer_allocation.py:_allocate_auto at 0.16.1, whose result it reproduces.

    Example:
        >>> pattern_of_ratios(8, 0.25, 0.25)
        'MM*-M*M-'
    """
    symbols = ["M"] * num_layers
    attention = round(num_layers * attention_ratio)
    for index in _spread(range(num_layers), (num_layers - attention) / (attention + 1)):
        symbols[index] = "*"
    mlps = round(num_layers * mlp_ratio)
    if mlps:
        left = [index for index, symbol in enumerate(symbols) if symbol == "M"]
        for index in _spread(left, (num_layers - attention - mlps) / mlps):
            symbols[index] = "-"
    return "".join(symbols)


def _spread(places: Iterable[int], between: float) -> Iterator[int]:
    """Places that are taken when ``between`` others are left free before each."""
    free = between
    for place in places:
        if free < 0.5:
            yield place
            free += between
        else:
            free -= 1
