"""What the installed Megatron Core's own configuration check says of boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.boundary.boundary import Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the validator says of one boundary; ``message`` is Megatron's own, in one line."""

    outcome: Literal["accepted", "rejected", "not_checkable"]
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorReport:
    """Verdicts of one Megatron Core on the boundaries of one workload.

    ``decides`` is true where that Megatron Core is the workload's (or the workload names none): only then may a verdict
    overrule a rule. ``notes`` name what was turned off or left out to ask the question on this machine.
    """

    megatron_core: str | None
    decides: bool
    verdicts: Mapping[Boundary, Verdict]
    notes: tuple[str, ...] = ()
