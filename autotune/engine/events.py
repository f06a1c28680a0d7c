"""What a run tells while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

EventKind = Literal["workload", "backend", "note", "trial_started", "trial_progress", "trial_ended", "prediction", "finished"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of progress.

    Attributes:
        kind: What happened.
        text: The line, complete in itself.
        data: Its figures by name, for a live display (trial number, boundary key, peak bytes ...).
    """

    kind: EventKind
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """For callers that do not listen."""
