"""What the ledger says of one boundary. A prediction is never a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PHASES = ("forward", "loss", "backward", "grad_sync", "optimizer", "after_capture")
AFTER_CAPTURE = "after_capture"
"""The iteration, of which a phase of the same name is the capture of CUDA graphs itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Peak of one phase on one pipeline stage.

    ``terms`` maps a term group (``weights``, ``moe``, ``attention``, ``logits``, ``replay_transient`` ...) to its bytes;
    the point peak is their sum. Groups are what the posterior scales, so a group has one uncertainty everywhere.
    """

    iteration: str
    """``first``, ``steady`` or ``after_capture``."""
    phase: str
    peak_bytes: int
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePeak:
    """All phases of one pipeline stage; ``rank`` is its first global rank."""

    stage: int
    rank: int
    peak_bytes: int
    phase: str
    phases: tuple[PhasePeak, ...]
    peak_p05_bytes: int | None = None
    """Bounds of this stage's peak; None where nothing is known of its uncertainty."""
    peak_p95_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Peaks and replay cost of one boundary, kind "predicted"."""

    peak_bytes: int
    peak_p05_bytes: int
    peak_p95_bytes: int
    phase: str
    """The binding phase of the heaviest stage."""
    stage: int
    rank: int
    stages: tuple[StagePeak, ...]
    replay_ms: float
    """Extra time of one step against the control on the stage that replays longest."""
    replay_ms_by_label: Mapping[str, float]
    inert_labels: tuple[str, ...] = ()
    """Labels that drop nothing here (no site, or inside a captured graph scope)."""
    notes: tuple[str, ...] = ()
    graph_pool_bytes: int = 0
    """What CUDA graph pools keep reserved after capture beside allocated bytes, on the stage where it is most."""
    after_capture_bytes: int | None = None
    """Highest peak from the capture of CUDA graphs on; None where none are captured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Whether the ledger knows everything about a workload; if not, the settings it does not know, each with a word."""

    covered: bool
    reasons: tuple[str, ...] = ()
