"""Whole runs for the page: one predicted by the engine, one with trials that were written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.boundary.boundary import Boundary
from autotune.engine.plan import PlanRow, plan
from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.ledger.calibration import Calibration
from autotune.ledger.ledger import Ledger
from autotune.records import dump_json, load_json, write_atomically
from autotune.search.outcome import AtRisk, CertificateRow, Recommendation, ReplayCost, SettingTimeline, TrialSummary
from autotune.trial.record import Failure, RankRecord, TrialRecord
from autotune.trial.survey.prices import Price
from autotune.trial.survey.report import Guard, PredictedSetting, SurveyReport, SwitchedSetting
from autotune.workload.resolve import resolve_workload

CONTROL, MOE, ACT = Boundary.selective(), Boundary.selective(["moe"]), Boundary.selective(["moe_act"])
TARGET = 75 * 10**9
WORLD = 16
HOT = 11


def predicted_run(folder: Path) -> Path:
    """The run of the README."""
    run(Request(recipe="nemotron3nano", mem_target_bytes=TARGET, backend="predict", out=folder))
    return folder


def _trial(number: int, boundary: Boundary, peak: int, *, fits: bool, step_ms: float, world: int) -> TrialRecord:
    ranks = {
        rank: RankRecord(
            rank=rank,
            allocated_peak_bytes=peak - (0 if rank == HOT else 100_000_000 + 7_654_321 * (rank % 16)),
            reserved_peak_bytes=peak + 2_000_000_000 + rank,
            phases={"forward": peak - 900_000_000 - rank, "backward": peak - 300_000_000 - rank, "optimizer": peak - rank},
        )
        for rank in range(world)
    }
    return TrialRecord(
        number=number, kind="measured", boundary=boundary, workload_digest="0" * 16, world_size=world, completed=fits,
        ranks=ranks, step_ms=(step_ms - 1.0, step_ms, step_ms + 2.0) if fits else (), steps_run=10 if fits else 1,
        failure=None if fits else Failure(failure_class="oom_capacity", stage="backward", rank=HOT, step=1),
    )  # fmt: skip


def at_risk(candidates: Sequence[PlanRow]) -> tuple[AtRisk, ...]:
    return tuple(
        AtRisk(name=row.name, boundary=row.boundary, peak_bytes=row.peak_bytes, peak_p95_bytes=row.peak_p95_bytes,
               replay_ms=row.replay_ms, fit_probability=row.fit_probability)
        for row in candidates
        if row.at_risk and None not in (row.peak_bytes, row.peak_p95_bytes, row.replay_ms, row.fit_probability)
    )  # fmt: skip


def surveyed_run(folder: Path) -> Path:
    """As ``measured_run``, but its first trial is a survey that priced four settings and switched to two of them."""
    measured_run(folder)
    full = Boundary.full("uniform", 1)
    launch = replace(_trial(0, full, 76_123_456_789, fits=True, step_ms=0, world=WORLD), kind="switched", step_ms=())
    prices = (
        (CONTROL, 79_222_111_000, 0.0), (ACT, 78_111_222_000, 6.54), (MOE, 71_888_777_000, 57.31), (full, 45_678_912_000, 190.9)
    )  # fmt: skip
    ranks = {rank: {"forward": 40_000_000_000} for rank in range(WORLD)}
    report = SurveyReport(
        base=full, world_size=WORLD, limit_bytes=TARGET, margin=0.005, labels=("moe", "moe_act"), inert_labels=(),
        base_measured=ranks,
        predicted=tuple(
            PredictedSetting(boundary=boundary, peak_bytes=peak, rank=HOT, phase="backward", ranks=ranks,
                             price=Price(replay_ms=replay, standard_error_ms=replay / 40),
                             frozen={0: {"backward": 71_808_777_000}} if boundary == MOE else {})
            for boundary, peak, replay in prices
        ),
        switched=(
            SwitchedSetting(boundary=MOE, peak_bytes=71_999_888_777, ranks=ranks, step_ms=(701.5, 702.5, 703.5)),
            SwitchedSetting(boundary=full, peak_bytes=45_701_234_567, ranks=ranks, step_ms=(812.1,)),
        ),
        guards=(Guard(name="frozen_batch", passed=True, detail="same loss"),),
        trying=ACT,
    )  # fmt: skip
    write_atomically(folder / "trials/000/record.json", dump_json(launch))
    write_atomically(folder / "trials/000/survey.json", dump_json(report))
    answer = load_json(folder / "recommendation.json", Recommendation)
    first = replace(answer.trials[0], name=full.key, boundary=full.to_fields(), kind="switched", peak_bytes=76_123_456_789)
    write_atomically(folder / "recommendation.json", dump_json(replace(answer, trials=(first, *answer.trials[1:]))))
    return folder


def measured_run(folder: Path, *, world: int = WORLD, trials: int = 3) -> Path:
    """A control and a narrow setting that run out of memory, then one that passes; more are repeats of these."""
    workload = resolve_workload("nemotron3nano", overrides=())
    ledger = Ledger(workload)
    made = [
        _trial(0, CONTROL, 79_123_456_789, fits=False, step_ms=0, world=world),
        _trial(1, ACT, 78_222_333_444, fits=False, step_ms=0, world=world),
        _trial(2, MOE, 71_987_654_321, fits=True, step_ms=657.4, world=world),
    ]
    made += [replace(made[number % 3], number=number) for number in range(3, trials)]
    made[2] = replace(made[2], details={"prediction": {"predicted_bytes": 71_111_222_333, "calibrated_bytes": 71_876_543_210}})
    control = ledger.predict(CONTROL)
    planned = plan(Request(recipe="nemotron3nano", mem_target_bytes=TARGET))
    answer = Recommendation(
        recipe="nemotron3nano", kind="measured", backend="cpu", boundary=MOE.to_fields(), name=MOE.key, mem_target_bytes=TARGET,
        mem_metric="allocated", peak_bytes=71_987_654_321, peak_p05_bytes=ledger.predict(MOE).peak_p05_bytes,
        peak_p95_bytes=ledger.predict(MOE).peak_p95_bytes, hot_rank=HOT, reserved_peak_bytes=73_987_654_332,
        ranks_measured=world, world_size=world, steps_run=10, step_ms=657.4,
        replay_cost=ReplayCost(ms=ledger.predict(MOE).replay_ms, ratio=None, reference="[]", basis="predicted"),
        verdict="pass", verdict_reason=f"10 steps run; allocated peak 71.988 GB on rank {HOT}", exit_status=0,
        certificate=(
            CertificateRow(name="[]", boundary=CONTROL.to_fields(), basis="measured", reason="out of memory in backward",
                           peak_bytes=79_123_456_789),
            CertificateRow(name="<i>mlp</i>", boundary=Boundary.selective(["mlp"]).to_fields(), basis="no effect",
                           reason="</script><script>alert(1)</script> has no dense MLP"),
        ),
        trials=tuple(
            TrialSummary(number=t.number, name=t.boundary.key, boundary=t.boundary.to_fields(), kind="measured",
                         status="pass" if t.completed else "fail", reason="as run",
                         peak_bytes=t.ranks[HOT].allocated_peak_bytes, hot_rank=HOT,
                         step_ms=657.4 if t.completed else None)
            for t in made
        ),
        timelines=tuple(
            SettingTimeline(name=b.key, boundary=b.to_fields(), stage=p.stage, rank=p.rank, phases=p.stages[p.stage].phases)
            for b, p in ((CONTROL, control), (MOE, ledger.predict(MOE)))
        ),
        at_risk=at_risk(planned.candidates), breakpoints=planned.breakpoints, remedies=planned.remedies,
        calibration=Calibration(
            offset_bytes=111_222_333, phase_offsets_bytes={"forward": 123_456_789, "grad_sync": -98_765_432},
            usable_bytes=78_777_888_999, load_factor=1.0625, observations=1,
        ),
        claims=("Trials use mock data of one length and load no checkpoint.",), warnings=("two nodes | one fabric",),
    )  # fmt: skip
    files = {
        "workload.json": workload,
        "candidates.json": planned,
        "recommendation.json": answer,
        **{f"trials/{trial.number:03}/record.json": trial for trial in made},
    }
    for name, record in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, dump_json(record))
    return folder
