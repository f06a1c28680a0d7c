"""How sure each term is, and what follows for a phase: a point, 5 % and 95 % peak.

Relative standard deviations of term groups, one source of error a group, and one offset common to all phases; weights,
gradients and optimizer state follow from the configuration and have none. The offset and the groups that the public rows
exercise are set so that their 90 % intervals hold 85 to 95 % of one half of those rows (benchmarks/split.py,
docs/decisions/036-intervals.md); groups without a measured row are wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Z95 = 1.6449
OFFSET = 0.005
"""Common offset (allocator rounding, temporary copies, objects awaiting collection), as a share of the peak."""
OFFSET_FLOOR_BYTES = 4 * 2**20
_RELATIVE: Mapping[str, float] = {
    "workspaces": 0.04,
    "p2p": 0.30,
    "transient": 0.04,
    "replay_transient": 0.10,
    "retained": 0.25,
    "graph_pool": 0.10,
    "mamba": 0.03,
    "gdn": 0.08,
    "mtp": 0.08,
    "deferred_wgrad": 0.05,
    "offload": 0.50,
    "fsdp": 0.30,
}
_ACTIVATIONS = ("hidden", "norm", "attention", "mla", "mlp", "moe", "shared_experts", "logits")
_ACTIVATION_SD = 0.01
UNBALANCED_SD = 0.06
"""Of the tokens that a rank's experts receive where routing is free."""


def standard_deviation(terms: Mapping[str, int], *, balanced: bool) -> float:
    """Standard deviation in bytes of a phase peak."""
    variance = (OFFSET * sum(terms.values())) ** 2 + OFFSET_FLOOR_BYTES**2
    table = _DEVIATIONS[balanced]
    for group, nbytes in terms.items():
        if group in table:
            variance += (table[group] * nbytes) ** 2
    return math.sqrt(variance)


def relative_deviation(group: str, *, balanced: bool) -> float:
    """Standard deviation of a term group, as a share of its bytes; 0 for what follows from the configuration."""
    relative = _RELATIVE.get(group, _ACTIVATION_SD if group in _ACTIVATIONS else 0.0)
    return math.hypot(relative, UNBALANCED_SD) if group == "moe" and not balanced else relative


_DEVIATIONS = {
    balanced: {group: relative_deviation(group, balanced=balanced) for group in (*_RELATIVE, *_ACTIVATIONS)}
    for balanced in (True, False)
}
