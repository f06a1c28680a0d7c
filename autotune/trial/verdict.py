"""From the records of one boundary to its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from autotune.trial.gates import Finding, GateSettings, check, hot_rank, peaks_bytes
from autotune.trial.record import Failure, Kind, TrialRecord
from autotune.units import format_gb

Status = Literal["pass", "fail", "invalid", "unproven", "flaky"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known of one boundary from its own trials.

    Attributes:
        status: The verdict. ``unproven`` is everything that neither failed nor passed every gate on every rank.
        reason: One line; for a failure its class, stage and rank.
        eligible: Whether the boundary may be the answer: it passed, or nothing of what was reported speaks against it.
        peak_bytes: Highest peak over ranks, steps and runs; a lower bound when ``peak_is_lower_bound``.
        step_ms: Median of the steady step times of the runs that ended well.
        near_limit: A passing peak so close to the limit that it has to be repeated.
        infrastructure: The only run failed for a reason outside the boundary.
    """

    status: Status
    reason: str
    kind: Kind
    eligible: bool
    peak_bytes: int | None
    hot_rank: int | None
    peak_is_lower_bound: bool
    reserved_peak_bytes: int | None
    ranks_measured: int
    world_size: int
    step_ms: float | None
    steps_run: int
    runs: int
    failure: Failure | None = None
    near_limit: bool = False
    infrastructure: bool = False
    flags: tuple[str, ...] = ()


def judge(records: Sequence[TrialRecord], settings: GateSettings, reference: TrialRecord | None = None) -> Verdict:
    """The verdict over all runs of one boundary (at least one).

    Runs that failed by infrastructure count only when there is no other. A run with the allocator setting replaces the
    fragmentation failures that led to it. Of several runs the highest peak counts; two different outcomes are flaky.
    """
    verdicts = [(record, _judge_one(record, settings, reference)) for record in records]
    relevant = [pair for pair in verdicts if not pair[1].infrastructure] or verdicts[-1:]
    if any(record.repeat_reason == "allocator" for record, _ in relevant):
        relevant = [p for p in relevant if not (p[1].failure and p[1].failure.failure_class == "oom_fragmentation")] or relevant
    return _combine([verdict for _, verdict in relevant])


def _judge_one(record: TrialRecord, settings: GateSettings, reference: TrialRecord | None) -> Verdict:
    findings = check(record, settings, reference)
    decisive = _decisive(findings)
    hot = hot_rank(record, settings.mem_metric)
    peaks, reserved = peaks_bytes(record, settings.mem_metric), peaks_bytes(record, "reserved")
    gates = {finding.gate for finding in findings}
    failure = record.failure
    if failure is None and decisive is not None and decisive.gate == "memory":
        failure = Failure(failure_class="over_limit", stage="peak", rank=hot, message=decisive.text)
    status: Status = "pass"
    if decisive is not None:
        status = "fail" if decisive.outcome == "fail" else "invalid" if decisive.outcome == "invalid" else "unproven"
    if status in ("pass", "unproven"):
        reason = _passing_reason(record, settings, findings)
    else:
        assert decisive is not None
        reason = decisive.text
    ended_well = record.completed and (record.failure is None or record.failure.stage == "teardown")
    return Verdict(
        status=status,
        reason=reason,
        kind=record.kind,
        eligible=status in ("pass", "unproven") and record.completed and bool(peaks) and "infrastructure" not in gates,
        peak_bytes=peaks[hot] if hot is not None else None,
        hot_rank=hot,
        peak_is_lower_bound=not ended_well,
        reserved_peak_bytes=max(reserved.values()) if reserved else None,
        ranks_measured=0 if record.kind == "predicted" else len(peaks),
        world_size=record.world_size,
        step_ms=median(record.step_ms) if record.step_ms and ended_well else None,
        steps_run=record.steps_run,
        runs=1,
        failure=failure,
        near_limit="near_limit" in gates and status in ("pass", "unproven"),
        infrastructure="infrastructure" in gates,
        flags=tuple(finding.text for finding in findings if finding.outcome == "flag"),
    )


def _decisive(findings: Sequence[Finding]) -> Finding | None:
    for outcome in ("fail", "invalid", "unproven"):
        for finding in findings:
            if finding.outcome == outcome:
                return finding
    return None


def _passing_reason(record: TrialRecord, settings: GateSettings, findings: Sequence[Finding]) -> str:
    """States what was seen and how far it goes; never that a boundary "fits"."""
    open_points = [finding.text for finding in findings if finding.outcome == "unproven"]
    seen = []
    if record.kind != "predicted" and not any("steps run" in text for text in open_points) and record.steps_run:
        seen.append(f"{record.steps_run} steps run")
    hot = hot_rank(record, settings.mem_metric)
    if hot is not None:
        peak = peaks_bytes(record, settings.mem_metric)[hot]
        label = "predicted" if record.kind == "predicted" else settings.mem_metric
        seen.append(f"{label} peak {format_gb(peak)} on rank {hot}")
    return "; ".join([*open_points, *seen])


def _combine(verdicts: Sequence[Verdict]) -> Verdict:
    if len(verdicts) == 1:
        return verdicts[0]
    worst = max(verdicts, key=lambda v: v.peak_bytes or 0)
    good = [v for v in verdicts if v.eligible]
    bad = [v for v in verdicts if v.status == "fail"]
    times = [v.step_ms for v in verdicts if v.step_ms is not None]
    merged = replace(
        worst,
        runs=len(verdicts),
        step_ms=median(times) if times else None,
        steps_run=min(v.steps_run for v in verdicts),
        flags=tuple(dict.fromkeys(flag for v in verdicts for flag in v.flags)),
        # A repeat has answered the question that a peak near the limit asks.
        near_limit=False,
    )
    invalid = next((v for v in verdicts if v.status == "invalid"), None)
    if invalid is not None:
        return replace(merged, status="invalid", reason=invalid.reason, eligible=False, failure=invalid.failure)
    if good and bad:
        counts = Counter(_outcome_word(v) for v in verdicts)
        text = "flaky: " + ", ".join(f"{count} {word}" for word, count in counts.items())
        return replace(merged, status="flaky", reason=text, eligible=False, failure=bad[0].failure)
    if bad:
        # A run over the limit beats an out-of-memory as the reason: it holds whatever else went wrong.
        first = next((v for v in bad if v.failure and v.failure.failure_class == "over_limit"), bad[0])
        return replace(merged, status="fail", reason=first.reason, eligible=False, failure=first.failure)
    weakest = next((v for v in verdicts if v.status == "unproven"), worst)
    return replace(
        merged,
        status=weakest.status,
        reason=f"{weakest.reason} ({len(verdicts)} runs)",
        eligible=all(v.eligible for v in verdicts),
    )


def _outcome_word(verdict: Verdict) -> str:
    if verdict.status == "pass":
        return "pass"
    if verdict.eligible:
        return "completed"
    failure_class = verdict.failure.failure_class if verdict.failure else "unknown"
    if failure_class.startswith("oom"):
        return "OOM"
    return "over the limit" if failure_class == "over_limit" else failure_class
