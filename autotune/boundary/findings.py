"""What is known of one boundary on one workload before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.boundary.boundary import Boundary

Outcome = Literal["invalid", "not_checkable", "no_effect", "same_as", "note"]
CheckedIn = Literal["config", "run", "bridge"]
Status = Literal["distinct", "same_as", "no_effect", "invalid", "not_checkable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one named rule says.

    ``labels`` are those it speaks of, ``source`` the file and line the rule was read from, ``checked_in`` who enforces
    it: Megatron's configuration check, the run itself, or Megatron Bridge.
    """

    rule: str
    outcome: Outcome
    message: str
    source: str
    labels: tuple[str, ...] = ()
    checked_in: CheckedIn = "config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Everything the rules say of one boundary; exactly one status.

    ``invalid``: the revision rejects it, or it cannot run. ``not_checkable``: nothing here can tell; it can be tried.
    ``no_effect``: the same as recomputing nothing. ``same_as``: the same as another boundary, which is named.
    ``distinct``: valid, with an effect of its own. ``revision`` is the Megatron Core whose rules were applied.
    """

    boundary: Boundary
    status: Status
    revision: str
    findings: tuple[Finding, ...] = ()
    same_as: Boundary | None = None

    @property
    def deciding(self) -> Finding | None:
        """The finding that set the status, None for a distinct boundary."""
        return next((finding for finding in self.findings if finding.outcome == self.status), None)

    @property
    def reason(self) -> str:
        """The deciding message, or the notes of a distinct boundary, in one line."""
        deciding = self.deciding
        if deciding is not None:
            return deciding.message
        return "; ".join(finding.message for finding in self.findings if finding.outcome in ("no_effect", "note"))
