"""A Candidate: a Boundary with its place in the order and its prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import Prediction

Status = Literal["distinct", "same_as", "no_effect", "invalid", "not_checkable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One boundary of the space.

    Only ``distinct`` and ``not_checkable`` candidates are launched. ``same_as`` names the boundary with equal effect,
    ``rule`` the rule that decided, ``reason`` its message in one line.
    """

    boundary: Boundary
    order: int
    """Place in the seeded order: narrow, broad, full."""
    status: Status
    reason: str = ""
    rule: str | None = None
    same_as: Boundary | None = None
    prediction: Prediction | None = None
