"""A compatibility rule: one named condition with its message and where it was read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.findings import CheckedIn, Finding, Outcome
from autotune.boundary.revision import Since

Condition = Callable[[Context, Boundary], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    ``condition`` returns the message where the rule has something to say, else None. ``since`` is the first revision
    the rule holds for (None: every supported one, 0.16 and later), ``until`` the first it no longer holds for.
    ``labels`` limits it to selective boundaries with one of them, ``granularity`` to one granularity. ``checked_in``
    says who enforces it: Megatron's configuration check (which the installed validator can confirm or deny), the run
    itself, or Megatron Bridge.
    """

    name: str
    outcome: Outcome
    condition: Condition
    source: str
    labels: tuple[str, ...] = ()
    granularity: str | None = None
    since: Since | None = None
    until: Since | None = None
    checked_in: CheckedIn = "config"

    def holds_for(self, context: Context) -> bool:
        """Whether the rule exists in the workload's revision."""
        if self.since is not None and not context.revision.has(self.since):
            return False
        return self.until is None or not context.revision.has(self.until)

    def apply(self, context: Context, boundary: Boundary) -> Finding | None:
        """What the rule says of a boundary, None for nothing. Assumes ``holds_for``."""
        labels: tuple[str, ...] = ()
        if self.labels:
            labels = tuple(label for label in self.labels if label in boundary.modules)
            if not labels:
                return None
        if self.granularity is not None and boundary.granularity != self.granularity:
            return None
        message = self.condition(context, boundary)
        if message is None:
            return None
        return Finding(
            rule=self.name,
            outcome=self.outcome,
            message=message,
            source=self.source,
            labels=labels,
            checked_in=self.checked_in,
        )


def rule(
    outcome: Outcome,
    source: str,
    *,
    labels: tuple[str, ...] = (),
    granularity: str | None = None,
    since: Since | None = None,
    until: Since | None = None,
    checked_in: CheckedIn = "config",
) -> Callable[[Condition], Rule]:
    """Make a rule of a condition; its name is the function's."""

    def make(condition: Condition) -> Rule:
        return Rule(
            name=condition.__name__,
            outcome=outcome,
            condition=condition,
            source=source,
            labels=labels,
            granularity=granularity,
            since=since,
            until=until,
            checked_in=checked_in,
        )

    return make
