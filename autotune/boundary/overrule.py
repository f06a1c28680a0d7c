"""Where the installed Megatron Core is the workload's, its verdict stands above the named rules."""

from __future__ import annotations

from dataclasses import replace

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import Checker
from autotune.boundary.findings import Finding, Findings, Outcome
from autotune.boundary.verdict import ValidatorReport

_SOURCE = "TransformerConfig.__post_init__ of the installed Megatron Core"


def overruled(checker: Checker, boundary: Boundary, report: ValidatorReport | None) -> Findings:
    """The rules' findings, corrected by the validator where it decides.

    A rejection makes the boundary invalid. An acceptance lifts what a rule says of the configuration check, never what
    fails at run time or in Megatron Bridge, which the validator does not see. ``not_checkable`` changes nothing.
    """
    findings = checker.check(boundary)
    verdict = report.verdicts.get(boundary) if report is not None and report.decides else None
    if report is None or verdict is None or verdict.outcome == "not_checkable":
        return findings
    core = f"Megatron Core {report.megatron_core}"
    if verdict.outcome == "rejected":
        if findings.status == "invalid":
            return findings
        own = _finding("megatron_core_validator", "invalid", f"{core} rejects it: {verdict.message}")
        return replace(findings, status="invalid", same_as=None, findings=(own, *findings.findings))
    decisive = [f for f in findings.findings if f.outcome == findings.status] if findings.deciding else []
    liftable = findings.status in ("invalid", "not_checkable") and all(f.checked_in == "config" for f in decisive)
    if not liftable or any(f.rule == "label_unknown_to_autotune" for f in decisive):
        return findings
    named = ", ".join(f.rule for f in decisive)
    lifted = tuple(f for f in findings.findings if f not in decisive)
    note = _finding("megatron_core_validator", "note", f"{core} accepts it, against the rule {named}")
    return checker.place(boundary, (*lifted, note))


def _finding(rule: str, outcome: Outcome, message: str) -> Finding:
    return Finding(rule=rule, outcome=outcome, message=message, source=_SOURCE)
