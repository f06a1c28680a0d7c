"""All compatibility rules, in the order their findings are listed."""

from __future__ import annotations

from autotune.boundary.rules import fields, full, graphs, labels, moe, offload, precision
from autotune.boundary.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    *fields.RULES,
    *labels.RULES,
    *moe.RULES,
    *precision.RULES,
    *graphs.RULES,
    *offload.RULES,
    *full.RULES,
)
