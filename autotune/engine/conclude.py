"""From the evidence of a finished search to its recommendation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, cast

from autotune.boundary.boundary import Boundary
from autotune.engine.claims import claims
from autotune.engine.prepare import Prepared, revisions
from autotune.engine.request import Request
from autotune.errors import ExitStatus
from autotune.ledger.calibration import Calibration
from autotune.ledger.prediction import Prediction
from autotune.records import to_builtins
from autotune.search.breakpoints import breakpoints, predicted_points, recorded_points
from autotune.search.candidate import Candidate
from autotune.search.certificate import at_risk, certificate
from autotune.search.evidence import TIE_RATIO, Evidence, launchable
from autotune.search.outcome import Breakpoint, CertificateRow, Recommendation, ReplayCost, SettingTimeline, TrialSummary
from autotune.search.proposal import Sampler, Stop
from autotune.trial.backends.base import TrialBackend, TrialRequest
from autotune.trial.backends.replay import ReplayBackend
from autotune.trial.verdict import Verdict, judge
from autotune.units import format_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a search leaves behind."""

    request: Request
    prepared: Prepared
    backend: TrialBackend
    why_backend: str
    evidence: Evidence
    sampler: Sampler
    stop: Stop
    run_directory: Path
    notes: tuple[str, ...] = ()
    """Of the run itself, for the warnings: which earlier evidence counted, and how."""
    calibration: Calibration | None = None


def conclude(end: Conclusion) -> Recommendation:
    """The recommendation of a search that ended."""
    evidence, candidates = end.evidence, _candidates(end)
    limit = evidence.settings.limit_bytes
    context = _context_only(end)
    answer = None if context else evidence.best()
    verdict = evidence.answered(answer) if answer is not None else None
    prediction = _prediction(end, answer)
    status, reason = _reason(end, answer, verdict, context)
    kind = end.backend.kind
    stack = {**revisions(end.prepared.workload), **_recorded_revisions(end)}
    opened = _open_names(end, answer)
    return Recommendation(
        recipe=end.prepared.workload.name,
        kind=kind,
        backend=end.backend.name,
        backend_reason=end.why_backend,
        boundary=answer.to_fields() if answer is not None else None,
        name=answer.key if answer is not None else None,
        mem_target_bytes=limit,
        mem_metric=evidence.settings.mem_metric,
        peak_bytes=verdict.peak_bytes if verdict is not None else None,
        peak_p05_bytes=prediction.peak_p05_bytes if prediction is not None else None,
        peak_p95_bytes=prediction.peak_p95_bytes if prediction is not None else None,
        hot_rank=verdict.hot_rank if verdict is not None else None,
        reserved_peak_bytes=verdict.reserved_peak_bytes if verdict is not None else None,
        ranks_measured=verdict.ranks_measured if verdict is not None else 0,
        world_size=_world_size(end),
        steps_run=verdict.steps_run if verdict is not None else 0,
        step_ms=verdict.step_ms if verdict is not None else None,
        replay_cost=_replay_cost(evidence, answer, prediction, kind),
        verdict=verdict.status if verdict is not None else "unproven",
        verdict_reason=reason,
        exit_status=status,
        certificate=certificate(
            candidates,
            evidence,
            answer,
            why_open=lambda boundary: end.backend.lacks(boundary, 0) if kind != "predicted" else None,
            posterior=_posterior(end.sampler),
            remark=lambda boundary: _on_record(end, boundary),
        ),
        at_risk=at_risk(candidates, evidence, answer),
        open=opened,
        runner_up=_runner_up(end, answer),
        breakpoints=_breakpoints(end, context),
        wall=end.prepared.wall,
        remedies=end.prepared.remedies,
        calibration=end.calibration,
        claims=claims(end.prepared.workload, evidence, verdict, kind),
        warnings=_warnings(end, verdict, context),
        trials=_trials(evidence),
        timelines=_timelines(end, answer),
        sampler=end.request.sampler,
        seed=end.request.seed,
        run_directory=str(end.run_directory),
        workload_source=to_builtins(end.prepared.workload.source),
        revisions=stack,
    )


def _candidates(end: Conclusion) -> tuple[Candidate, ...]:
    """The space with the predictions that hold at the end: the survey's, where there was one."""
    return cast(tuple[Candidate, ...], getattr(end.sampler, "candidates", end.prepared.candidates))


def _on_record(end: Conclusion, boundary: Boundary) -> str | None:
    """What a replayed table holds of a boundary that was not played, because a rule says that it is another or does nothing."""
    if boundary in end.evidence.verdicts or not isinstance(end.backend, ReplayBackend) or boundary not in end.backend.table.runs:
        return None
    records = [
        end.backend.run(
            TrialRequest(number=-1, boundary=boundary, workload_digest="", world_size=_world_size(end), run_index=index)
        )
        for index in range(len(end.backend.runs(boundary)))
    ]
    verdict = judge(records, end.evidence.settings)
    bound = verdict.peak_is_lower_bound and verdict.peak_bytes is not None
    peak = f"; its peak of {format_gb(verdict.peak_bytes)} is a lower bound" if bound and verdict.peak_bytes is not None else ""
    return f"recorded: {verdict.reason}{peak}"


def _context_only(end: Conclusion) -> bool:
    return isinstance(end.backend, ReplayBackend) and end.backend.table.context_only


def _recorded_revisions(end: Conclusion) -> dict[str, str | None]:
    """Revisions of the trials themselves, where they report them, beside those of the workload."""
    reported = next((record.revisions for record in end.evidence.records if record.revisions), {})
    return {f"trials: {name}": value for name, value in reported.items()}


def _world_size(end: Conclusion) -> int:
    records = end.evidence.records
    return records[0].world_size if records else end.prepared.workload.parallel.world_size


def _prediction(end: Conclusion, boundary: Boundary | None) -> Prediction | None:
    return next((c.prediction for c in _candidates(end) if c.boundary == boundary), None)


def _reason(end: Conclusion, answer: Boundary | None, verdict: Verdict | None, context: bool) -> tuple[int, str]:
    """Exit status, and the verdict's reason in one line."""
    if context:
        return ExitStatus.STOPPED, "context only: no matched control and no step times, so these rows rank nothing"
    if answer is not None and verdict is not None:
        short = "; not covered by the ledger: " + ", ".join(end.prepared.coverage.reasons[:3])
        gap = short if end.backend.kind == "predicted" and not end.prepared.coverage.covered else ""
        return ExitStatus.OK, f"{verdict.reason}{gap}"
    if end.evidence.max_slowdown is not None and (fastest := _fastest_too_slow(end)) is not None:
        step = end.evidence.verdicts[fastest].step_ms
        bound = f"nothing within --max-slowdown {end.evidence.max_slowdown:.0%}"
        return ExitStatus.NO_BOUNDARY, f"{bound}; the cheapest that passes is {fastest.key}, {step:.2f} ms a step"
    if end.stop.outcome == "none":
        return ExitStatus.NO_BOUNDARY, end.stop.text
    names = _open_names(end, answer)
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return ExitStatus.STOPPED, f"{end.stop.text}; open: {shown or 'nothing named'}"


def _fastest_too_slow(end: Conclusion) -> Boundary | None:
    slow = [b for b, v in end.evidence.verdicts.items() if v.eligible and end.evidence.too_slow(b)]
    return min(slow, key=end.evidence.cost_ms, default=None)


def _open_names(end: Conclusion, answer: Boundary | None) -> tuple[str, ...]:
    """Names of what is left open. Without an answer the widest settings come first: they decide whether anything passes."""
    named = set(end.stop.open_boundaries)
    rows = [c for c in launchable(end.prepared.candidates) if c.boundary in named]
    known = {c.boundary for c in rows}
    if answer is None and end.backend.kind != "predicted":
        rows.sort(
            key=lambda c: (c.boundary.granularity != "full", c.boundary.method != "uniform", -len(c.boundary.modules), c.order)
        )
    elif end.backend.kind == "predicted":
        rows.sort(key=lambda c: list(end.stop.open_boundaries).index(c.boundary))
    names = [c.boundary.key for c in rows] + sorted(b.key for b in named - known)
    if answer is None and end.backend.kind != "predicted":
        names = [*_full_elsewhere(end), *names]
    return tuple(names)


def _full_elsewhere(end: Conclusion) -> list[str]:
    """Full recompute where a rule of this workload forbids it: another workload (without CUDA graphs, say) might use it."""
    full = [c for c in end.prepared.candidates if c.boundary == Boundary.full("uniform", 1) and c.status == "invalid"]
    return [f"{c.boundary.key} (not in this workload: {c.reason})" for c in full]


def _replay_cost(evidence: Evidence, answer: Boundary | None, prediction: Prediction | None, kind: str) -> ReplayCost | None:
    if answer is None:
        return None
    reference, verdict = evidence.reference, evidence.verdicts[answer]
    interleaved = _interleaved_cost(evidence, answer)
    if interleaved is not None:
        return interleaved
    timed = reference is not None and reference.step_ms and verdict.step_ms is not None
    if timed and reference is not None and verdict.step_ms is not None and (reference.boundary != answer or answer.is_control):
        base = median(reference.step_ms)
        basis: Literal["recorded steps", "pair of fresh launches"] = (
            "recorded steps" if kind == "replayed" else "pair of fresh launches"
        )
        return ReplayCost(
            ms=round(verdict.step_ms - base, 4), ratio=verdict.step_ms / base - 1, reference=reference.boundary.key, basis=basis
        )
    if prediction is None:
        return None
    return ReplayCost(ms=prediction.replay_ms, ratio=None, reference="[]", basis="predicted")


def _interleaved_cost(evidence: Evidence, answer: Boundary) -> ReplayCost | None:
    """From steps that took turns in a survey launch: the answer's against the setting with the least replay there."""
    timed = {b: [ms for r in records for ms in r.step_ms] for b, records in evidence.switched.items()}
    least = min((b for b in timed if timed[b]), key=lambda b: (not b.is_control, evidence.replay_ms(b), b.key), default=None)
    if least is None or not timed.get(answer) or (least == answer and not answer.is_control):
        return None
    ours, base = median(timed[answer]), median(timed[least])
    basis: Literal["interleaved steps of one process"] = "interleaved steps of one process"
    return ReplayCost(ms=round(ours - base, 4), ratio=ours / base - 1, reference=least.key, basis=basis)


def _runner_up(end: Conclusion, answer: Boundary | None) -> CertificateRow | None:
    """The next cheapest that is eligible too: tried where trials ran, predicted otherwise."""
    if answer is None:
        return None
    evidence, limit = end.evidence, end.evidence.settings.limit_bytes
    tried = [b for b, v in evidence.verdicts.items() if v.eligible and b != answer]
    if tried:
        other = min(tried, key=lambda b: (evidence.cost_ms(b), b.key))
        verdict, prediction = evidence.verdicts[other], _prediction(end, other)
        return CertificateRow(
            name=other.key,
            boundary=other.to_fields(),
            basis=verdict.kind,
            reason=verdict.reason,
            peak_bytes=verdict.peak_bytes,
            replay_ms=prediction.replay_ms if prediction is not None else None,
            step_ms=verdict.step_ms,
        )
    fitting = [
        c
        for c in launchable(_candidates(end))
        if c.prediction is not None
        and c.prediction.peak_p95_bytes <= limit
        and c.boundary != answer
        and c.boundary not in evidence.verdicts
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda c: (cast(Prediction, c.prediction).replay_ms, c.order))
    prediction = cast(Prediction, best.prediction)
    return CertificateRow(
        name=best.boundary.key,
        boundary=best.boundary.to_fields(),
        basis="predicted",
        reason="next cheapest whose predicted 95 % peak is within the limit",
        peak_bytes=prediction.peak_bytes,
        peak_p95_bytes=prediction.peak_p95_bytes,
        replay_ms=prediction.replay_ms,
    )


def _breakpoints(end: Conclusion, context: bool) -> tuple[Breakpoint, ...]:
    """From trials where any completed, else from predictions; never both in one list.

    A survey predicts every setting; the launches after it are one or two, which would make a poor list.
    """
    recorded = recorded_points(end.evidence)
    if recorded and not context and not end.evidence.switched:
        return breakpoints(recorded, tie_ratio=TIE_RATIO)
    return breakpoints(predicted_points(_candidates(end)))


def _warnings(end: Conclusion, verdict: Verdict | None, context: bool) -> tuple[str, ...]:
    found = list(end.notes)
    if not end.prepared.coverage.covered:
        found += [f"not covered by the ledger: {reason}" for reason in end.prepared.coverage.reasons]
    if context:
        found.append("context only: no matched control")
    if verdict is not None:
        found += verdict.flags
    if verdict is not None and verdict.near_limit:
        why = end.backend.lacks(end.evidence.records[-1].boundary, verdict.runs) or "it was not repeated"
        found.append(f"the peak is close to the limit and was seen once: {why}")
    if end.stop.outcome == "answer" and end.stop.text.startswith("stopped"):
        found.append(f"{end.stop.text}: the best so far, not certified")
    if end.request.max_slowdown is not None and end.backend.kind == "predicted":
        found.append("--max-slowdown was not checked: predictions price the replay, not the step")
    table = end.backend.table if isinstance(end.backend, ReplayBackend) else None
    ours = end.prepared.workload.parallel.world_size
    if table is not None and table.world_size is not None and table.world_size != ours:
        found.append(f"the table was recorded on {table.world_size} GPUs, the workload has {ours}")
    return tuple(dict.fromkeys(found))


def _trials(evidence: Evidence) -> tuple[TrialSummary, ...]:
    rows = []
    for record in evidence.records:
        alone = judge([record], evidence.settings, evidence.reference)
        rows.append(
            TrialSummary(
                number=record.number,
                name=record.boundary.key,
                boundary=record.boundary.to_fields(),
                kind=record.kind,
                status=alone.status,
                reason=alone.reason,
                peak_bytes=alone.peak_bytes,
                hot_rank=alone.hot_rank,
                step_ms=alone.step_ms,
                repeat_reason=record.repeat_reason,
            )
        )
    return tuple(rows)


def _timelines(end: Conclusion, answer: Boundary | None) -> tuple[SettingTimeline, ...]:
    """Control and answer, each on its heaviest stage."""
    wanted = dict.fromkeys((Boundary.selective(), *(() if answer is None else (answer,))))
    # The ledger's, also after a survey: a survey has no term groups.
    ledgers = {c.boundary: c.prediction for c in end.prepared.candidates}
    found = ((boundary, ledgers.get(boundary)) for boundary in wanted)
    return tuple(
        SettingTimeline(
            name=boundary.key,
            boundary=boundary.to_fields(),
            stage=prediction.stage,
            rank=prediction.rank,
            phases=prediction.stages[prediction.stage].phases,
        )
        for boundary, prediction in found
        if prediction is not None
    )


def _posterior(sampler: Sampler) -> Callable[[Boundary], float | None]:
    """The planner's probability after the trials; other samplers have none."""
    return cast(Callable[[Boundary], float | None], getattr(sampler, "fit", lambda boundary: None))
