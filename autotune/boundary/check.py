"""Check a boundary against the named rules and place it: invalid, not checkable, no effect, same as another, distinct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.boundary.accepted import Accepted
from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context, build_context
from autotune.boundary.findings import Finding, Findings
from autotune.boundary.revision import HYBRID_FULL
from autotune.boundary.rules import RULES
from autotune.boundary.sites import LayerLike
from autotune.workload.architecture import classify
from autotune.workload.workload import Workload

_CONTROL = Boundary.selective()


class ArchitectureLike(Protocol):
    """What is needed of the classifier's answer: the layers in order."""

    @property
    def layers(self) -> Sequence[LayerLike]:
        """The decoder's layers."""
        ...


class Checker:
    """Checks many boundaries of one workload."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._rules = tuple(rule for rule in RULES if rule.holds_for(context))

    @classmethod
    def of(
        cls,
        workload: Workload,
        architecture: ArchitectureLike | None = None,
        *,
        accepted: Accepted | None = None,
        chunk_layers: Sequence[int] | None = None,
    ) -> Checker:
        """Make a checker; the architecture is classified where it is not given."""
        layers = classify(workload).layers if architecture is None else architecture.layers
        return cls(build_context(workload, layers, accepted=accepted, chunk_layers=chunk_layers))

    def check(self, boundary: Boundary) -> Findings:
        """Apply every rule of the revision; exactly one status results."""
        context = self.context
        return self.place(boundary, tuple(f for rule in self._rules if (f := rule.apply(context, boundary)) is not None))

    def place(self, boundary: Boundary, findings: tuple[Finding, ...]) -> Findings:
        """The status that findings amount to."""
        context = self.context
        revision = context.accepted.revision if context.accepted.basis == "installed" else context.revision.name
        for decisive in ("invalid", "not_checkable"):
            if any(finding.outcome == decisive for finding in findings):
                return Findings(boundary=boundary, status=decisive, revision=revision, findings=findings)
        effect = effective(context, boundary)
        if effect == boundary or self._is_invalid(effect):
            return Findings(boundary=boundary, status="distinct", revision=revision, findings=findings)
        if effect == _CONTROL and not boundary.is_control:
            return Findings(boundary=boundary, status="no_effect", revision=revision, findings=findings, same_as=effect)
        same = Finding(
            rule="equal_effect",
            outcome="same_as",
            message=_why_same(context, boundary, effect, findings),
            source="autotune/boundary/check.py:effective",
        )
        return Findings(boundary=boundary, status="same_as", revision=revision, findings=(*findings, same), same_as=effect)

    def _is_invalid(self, boundary: Boundary) -> bool:
        """Whether a boundary may not stand for others: with CPU offloading ``off`` is valid and its equal ``[]`` is not."""
        found = (rule.apply(self.context, boundary) for rule in self._rules if rule.outcome == "invalid")
        return any(finding is not None for finding in found)


def check(
    workload: Workload,
    boundary: Boundary,
    architecture: ArchitectureLike | None = None,
    *,
    accepted: Accepted | None = None,
    chunk_layers: Sequence[int] | None = None,
) -> Findings:
    """Check one boundary of a workload; use ``Checker`` for many."""
    return Checker.of(workload, architecture, accepted=accepted, chunk_layers=chunk_layers).check(boundary)


def effective(context: Context, boundary: Boundary) -> Boundary:
    """The plainest boundary with equal effect, for a boundary that can run.

    Labels without a site fall away; recompute off is the control; a group or block longer than the longest pipeline
    chunk is as long as the chunk; a block of every layer is uniform groups of one, unless layers stay outside it
    (multi-token prediction, or a window that FP8 shifts past frozen layers). The deprecated moe_layer_recompute adds ``moe``
    (transformer_config.py:1892-1903 at 2a75ac12) whatever the boundary.
    """
    if boundary.granularity == "full":
        return _effective_full(context, boundary)
    modules = set(boundary.modules) | ({"moe"} if context.moe_layer_recompute else set())
    return Boundary.selective(label for label in modules if label not in context.sites or context.sites[label].layers)


def _effective_full(context: Context, boundary: Boundary) -> Boundary:
    hybrid = context.workload.model.hybrid_layer_pattern is not None
    if boundary.num_layers == 0 or (hybrid and not context.revision.has(HYBRID_FULL)):
        return _CONTROL
    longest = context.max_chunk_layers
    if boundary.method is None or boundary.num_layers is None or longest == 0:
        return boundary
    num_layers = min(boundary.num_layers, longest)
    window_shifts = context.quantized and context.workload.features.peft is not None
    if boundary.method == "block" and num_layers == longest and not context.mtp_layers and not window_shifts:
        return Boundary.full("uniform", 1)
    return Boundary.full(boundary.method, num_layers)


def _why_same(context: Context, boundary: Boundary, effect: Boundary, findings: Sequence[Finding]) -> str:
    idle = next((finding.message for finding in findings if finding.rule == "label_without_site"), "")
    if boundary.granularity is None and not context.moe_layer_recompute:
        return f"the same effect as {effect.key}: recompute is off in both"
    if boundary.granularity == "full":
        return f"the same effect as {effect.key}: the longest pipeline chunk has {context.max_chunk_layers} layers"
    if context.moe_layer_recompute and "moe" not in boundary.modules:
        idle = "; ".join(part for part in ("moe_layer_recompute (deprecated) adds moe", idle) if part)
    return f"the same effect as {effect.key}: {idle}"
