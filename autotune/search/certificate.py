"""The certificate: for every cheaper candidate, why it is not the answer, and what that rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence
from autotune.search.fit import fit_probability
from autotune.search.outcome import AtRisk, Basis, CertificateRow
from autotune.search.stop_rule import CERTIFIED
from autotune.trial.verdict import Verdict, judge
from autotune.units import format_gb

_RULED: dict[str, Basis] = {
    "invalid": "invalid",
    "no_effect": "no effect",
    "same_as": "same effect",
}


def certificate(
    candidates: Sequence[Candidate],
    evidence: Evidence,
    answer: Boundary | None,
    *,
    why_open: Callable[[Boundary], str | None] = lambda boundary: None,
    posterior: Callable[[Boundary], float | None] = lambda boundary: None,
    remark: Callable[[Boundary], str | None] = lambda boundary: None,
) -> tuple[CertificateRow, ...]:
    """Rows for all candidates cheaper than the answer (all candidates where there is none), in the candidates' order.

    Args:
        candidates: The whole space, ruled-out ones included.
        evidence: What trials showed.
        answer: The recommended boundary.
        why_open: Why a candidate without a verdict could not be tried, where that is so.
        remark: What is on record of a candidate that is ruled out all the same.
        posterior: Probability of fitting after the trials; the prediction's own interval is used where it is None.
    """
    rows = []
    answer_cost = evidence.cost_ms(answer) if answer is not None else float("inf")
    for candidate in sorted(candidates, key=lambda c: c.order):
        boundary = candidate.boundary
        verdict = evidence.verdicts.get(boundary)
        if boundary == answer:
            continue
        if verdict is not None:
            rows.append(_left_open(_tried(candidate, verdict, evidence, answer), candidate, evidence, answer))
        elif candidate.status in _RULED:
            reason = candidate.reason or candidate.status.replace("_", " ")
            rows.append(_row(candidate, _RULED[candidate.status], "; ".join(filter(None, (reason, remark(boundary))))))
        elif answer is None or evidence.cost_ms(boundary) < answer_cost:
            switched = _switched(candidate, evidence)
            row = switched or _untried(candidate, evidence, answer, why_open(boundary), posterior(boundary))
            rows.append(_left_open(row, candidate, evidence, answer))
    return tuple(rows)


def _left_open(row: CertificateRow, candidate: Candidate, evidence: Evidence, answer: Boundary | None) -> CertificateRow:
    """The row as open where all that is known leaves more than ``CERTIFIED`` that the setting fits and is cheaper.

    So of one that a launch at the limit failed and the next may pass: it is not the answer, and it is not ruled out either.
    """
    chance = evidence.chance(candidate.boundary, answer) if evidence.chance is not None else None
    if chance is None or chance <= CERTIFIED:
        return row
    cheaper = " and cheaper by more than 1 % of a step" if answer is not None else ""
    text = f"{row.reason}; not ruled out: within the limit in the mean of its launches{cheaper} with {chance:.0%}"
    return replace(row, basis="open", reason=text)


def at_risk(candidates: Sequence[Candidate], evidence: Evidence, answer: Boundary | None) -> tuple[AtRisk, ...]:
    """Untried candidates cheaper than the answer whose point fits and whose 95 % peak does not, cheapest first."""
    limit = evidence.settings.limit_bytes
    answer_cost = evidence.cost_ms(answer) if answer is not None else float("inf")
    rows = []
    for candidate in candidates:
        prediction = candidate.prediction
        if prediction is None or candidate.status not in ("distinct", "not_checkable"):
            continue
        if candidate.boundary in evidence.verdicts or evidence.cost_ms(candidate.boundary) >= answer_cost:
            continue
        if prediction.peak_bytes <= limit < prediction.peak_p95_bytes:
            rows.append(
                AtRisk(
                    name=candidate.boundary.key,
                    boundary=candidate.boundary.to_fields(),
                    peak_bytes=prediction.peak_bytes,
                    peak_p95_bytes=prediction.peak_p95_bytes,
                    replay_ms=prediction.replay_ms,
                    fit_probability=round(fit_probability(prediction, limit), 4),
                )
            )
    return tuple(sorted(rows, key=lambda row: (row.replay_ms, -row.fit_probability, row.name)))


def _row(
    candidate: Candidate, basis: Basis, reason: str, verdict: Verdict | None = None, fit: float | None = None
) -> CertificateRow:
    prediction = candidate.prediction
    peak = verdict.peak_bytes if verdict is not None else prediction.peak_bytes if prediction is not None else None
    return CertificateRow(
        name=candidate.boundary.key,
        boundary=candidate.boundary.to_fields(),
        basis=basis,
        reason=reason,
        peak_bytes=peak,
        peak_p95_bytes=prediction.peak_p95_bytes if prediction is not None and verdict is None else None,
        replay_ms=prediction.replay_ms if prediction is not None else None,
        step_ms=verdict.step_ms if verdict is not None else None,
        fit_probability=fit,
    )


def _tried(candidate: Candidate, verdict: Verdict, evidence: Evidence, answer: Boundary | None) -> CertificateRow:
    basis = cast(Basis, verdict.kind)
    if not verdict.eligible:
        reason = verdict.reason
        if verdict.peak_is_lower_bound and verdict.peak_bytes is not None:
            reason += f"; its peak of {format_gb(verdict.peak_bytes)} is a lower bound"
        return _row(candidate, basis, reason, verdict)
    if evidence.too_slow(candidate.boundary):
        return _row(candidate, basis, f"slower than --max-slowdown allows ({verdict.step_ms:.2f} ms a step)", verdict)
    if answer is None:
        return _row(candidate, basis, verdict.reason, verdict)
    doubt = evidence.doubted(candidate.boundary)
    if doubt is not None:
        return _row(candidate, basis, doubt, verdict)
    ours, theirs = evidence.cost_ms(answer), evidence.cost_ms(candidate.boundary)
    if verdict.kind != "predicted" and verdict.step_ms is None:
        return _row(candidate, basis, f"completed, but without a step time to rank it by: {verdict.reason}", verdict)
    if theirs > ours:
        return _row(candidate, basis, f"dearer: {theirs:.2f} ms a step against {ours:.2f} ms", verdict)
    return _row(
        candidate, basis, f"a tie in time ({theirs:.2f} ms against {ours:.2f} ms) with more labels or a higher peak", verdict
    )


def _switched(candidate: Candidate, evidence: Evidence) -> CertificateRow | None:
    """What a survey launch showed of a cheaper setting that was not launched alone: over the limit, or no verdict."""
    records = evidence.switched.get(candidate.boundary, [])
    verdict = judge(records, evidence.settings) if records else None
    if verdict is None or verdict.failure is None:
        return None
    return _row(candidate, "switched", f"in the survey launch: {verdict.reason}", verdict)


def _untried(
    candidate: Candidate, evidence: Evidence, answer: Boundary | None, why_open: str | None, posterior: float | None
) -> CertificateRow:
    prediction, limit = candidate.prediction, evidence.settings.limit_bytes
    if prediction is None:
        return _row(candidate, "open", why_open or "not tried, and not predicted")
    fit = posterior if posterior is not None else fit_probability(prediction, limit)
    peaks = f"peak {format_gb(prediction.peak_bytes)}, 95 % {format_gb(prediction.peak_p95_bytes)}, limit {format_gb(limit)}"
    chance = (
        f"fits with probability {fit:.0%}" if 0.005 < fit < 0.995 else f"fits with probability {'< 1' if fit < 0.5 else '> 99'} %"
    )
    if why_open is not None:
        return _row(candidate, "open", f"{why_open}; predicted {peaks}, {chance}", fit=round(fit, 4))
    if fit >= 0.05:
        on_hand = "at risk" if prediction.peak_bytes <= limit else "unlikely"
        return _row(candidate, "predicted", f"{on_hand}: predicted {peaks}, {chance}; only a launch can tell", fit=round(fit, 4))
    return _row(candidate, "predicted", f"ruled out by prediction: {peaks}, {chance}", fit=round(fit, 4))
