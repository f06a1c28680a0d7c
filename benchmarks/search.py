"""Play the samplers against truth tables: launches to the certified answer, regret, false passes.

    python -m benchmarks.search [--truths DIR] [--plays N] [--samplers planner,tpe,...] [--format json]

Without ``--truths`` tables are drawn (``benchmarks/generator.py``). A play is a table, a memory limit and a noise seed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak
from autotune.records import from_builtins, load_json
from autotune.search.candidate import Candidate
from autotune.search.certificate import certificate
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.optuna_samplers import OptunaSampler
from autotune.search.planner import Planner
from autotune.search.proposal import Sampler
from autotune.search.stop_rule import EXPERT_JITTER, JITTER
from autotune.search.survey import SurveyFindings
from autotune.search.survey_regions import findings_from_table
from autotune.trial.backends.base import TrialRequest
from autotune.trial.backends.replay import ReplayBackend
from autotune.trial.backends.tables import read_table
from autotune.trial.gates import GateSettings, peaks_bytes
from autotune.trial.record import Failure, RankRecord, TrialRecord
from autotune.trial.survey.choose import choose
from autotune.trial.survey.plan import EXPERT_MARGIN, MARGIN, SurveyPlan
from autotune.trial.survey.prices import Price
from autotune.trial.survey.report import PredictedSetting
from autotune.workload.workload import Workload
from benchmarks.generator import Machine

SAMPLERS = (
    "survey_switch", "survey_only", "planner", "tpe", "tpe_ordered", "gp", "gp_ordered", "random", "narrow_first", "exhaustive",
)  # fmt: skip
GPU_HOURS_PER_LAUNCH = 16 * 4 / 60
NOMINAL_SPREAD = 0.03
"""Width of the intervals that the planner is given, whatever the prior's true errors are: a ledger does not know those."""
WITHIN = 0.01
DRAWS = 800
CLEAR_PERCENT = 1.0
"""A play is clear where no peak that decides it is so near the limit: closer, two launches of one boundary may differ."""
STEP_SCATTER = 0.03
"""Of launches; interleaved steps of one process scatter by ``INTERLEAVED_SCATTER``."""
INTERLEAVED_SCATTER = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One play."""

    table: str
    kind: str
    limit_bytes: int
    seed: int
    sampler: str
    launches: int
    switched_steps: int
    oom_launches: int
    answer: str | None
    optimum: str | None
    launches_to_optimum: int | None
    """The launch that first ran an optimum alone; None where none did."""
    margin_percent: float
    """How near to the limit the peaks are that decide the play: the optimum's, and those of what is cheaper."""
    regret_percent_of_step: float | None
    found: bool
    false_pass: bool
    by_chance: bool
    certificate_right: bool
    gpu_hours: float


class Truth:
    """A truth table as candidates to choose from and launches that cost."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.recorded = read_table(table, name=str(table["name"]), evidence=str(table["name"]))
        kind, survey = str(table.get("kind", "table")), table.get("survey")
        self.kind = f"{kind}, no switch" if survey is not None and not survey.get("switchable") else kind
        self.by_chance = bool(table.get("by_chance"))
        self.rows = {boundary: row for boundary, row in zip(self.recorded.runs, table["rows"], strict=True)}
        predicted = (survey or {}).get("predicted", ())
        self._surveyed_ms = {Boundary.from_fields(_prefixed(row)): float(row["replay_ms"]) for row in predicted}
        samples = [s for runs in self.recorded.runs.values() for run in runs for s in run.step_ms]
        self._base_ms = min(samples, default=0.0)
        ledger = _ledger(table)
        self.candidates = [
            Candidate(
                boundary=boundary, order=order, status="distinct",
                prediction=ledger(boundary) if ledger is not None else _prediction(row),
            )
            for order, (boundary, row) in enumerate(self.rows.items())
        ]  # fmt: skip

    def peak_bytes(self, boundary: Boundary) -> int:
        """The true peak: given, else the highest of the recorded runs."""
        given = self.rows[boundary].get("true_peak_bytes")
        if given is not None:
            return int(given)
        return max(r.allocated_peak_bytes for run in self.recorded.runs[boundary] for r in run.ranks.values())

    def step_ms(self, boundary: Boundary) -> float:
        """The true step: given; else by the prices of the table's survey; else the mean of all recorded samples.

        Launches on a shared CPU scatter by more than all prices together, so a measured table is priced by its survey.
        """
        given = self.rows[boundary].get("true_step_ms")
        if given is not None:
            return float(given)
        if boundary in self._surveyed_ms:
            return self._base_ms + self._surveyed_ms[boundary]
        return mean(s for run in self.recorded.runs[boundary] for s in run.step_ms)

    def optimum(self, limit_bytes: int) -> Boundary | None:
        """The cheapest boundary whose true peak is within the limit."""
        fitting = [b for b in self.rows if self.peak_bytes(b) <= limit_bytes]
        return min(fitting, key=lambda b: (self.step_ms(b), b.key), default=None)

    def launch(self, boundary: Boundary, *, number: int, run_index: int, limit_bytes: int, seed: int) -> TrialRecord:
        """One launch on a machine with this limit: a recorded run, out of memory where its peak is over the limit."""
        count = len(self.recorded.runs[boundary])
        request = TrialRequest(
            number=number, boundary=boundary, workload_digest="truth", world_size=2, run_index=(run_index + seed) % count
        )
        record = ReplayBackend(self.recorded).run(request)
        peak = max(peaks_bytes(record).values())
        chance = self.by_chance and peak > 0.95 * limit_bytes and self.rows[boundary]["runs"][request.run_index].get("by_chance")
        if peak <= limit_bytes and not chance:
            return record
        failure = OUT_OF_MEMORY
        seen = {rank: _cut(r, limit_bytes) for rank, r in record.ranks.items()}
        return TrialRecord(
            number=number, kind="replayed", boundary=boundary, workload_digest="truth", world_size=record.world_size,
            completed=False, ranks=seen, failure=failure,
        )  # fmt: skip

    @property
    def jitter(self) -> float:
        """The product's own figure for the scatter of peaks: larger where experts are routed freely."""
        return EXPERT_JITTER if any("moe" in boundary.modules for boundary in self.rows) else JITTER

    def survey(self, launch: TrialRecord, limit_bytes: int, seed: int, *, switch: bool) -> tuple[SurveyFindings, int]:
        """What the launch of a base as a survey finds, and how many switched steps it takes.

        Which settings it switches to is the product's choice. All of them share the launch's routing, so its deviation too.
        """
        survey = self.recorded.survey
        assert survey is not None
        findings = findings_from_table(survey, launch, self.rows)
        if not switch or not survey.get("switchable"):
            return findings, 0
        labels = tuple(survey["switchable"])
        plan = SurveyPlan(
            labels=labels, limit_bytes=limit_bytes, margin=EXPERT_MARGIN if self.jitter == EXPERT_JITTER else MARGIN
        )
        predicted = [
            PredictedSetting(
                boundary=s.boundary, peak_bytes=s.peak_bytes, rank=0, phase="backward", ranks={0: s.phases},
                price=Price(replay_ms=s.replay_ms, standard_error_ms=s.replay_error_ms),
            )
            for s in findings.settings if s.boundary in self.rows
        ]  # fmt: skip
        draw = random.Random(f"{self.recorded.name}/{seed}/switch")
        deviation = max(peaks_bytes(launch).values()) / self.peak_bytes(launch.boundary)
        process = draw.lognormvariate(0, STEP_SCATTER)
        records = []
        for place, setting in enumerate(choose(predicted, plan, base=launch.boundary)):
            boundary = setting.boundary
            peak = round(self.peak_bytes(boundary) * deviation)
            over = peak > limit_bytes
            step = self.step_ms(boundary) * process
            samples = [step * draw.lognormvariate(0, INTERLEAVED_SCATTER) for _ in range(plan.interleaved_rounds)]
            records.append(TrialRecord(
                number=1000 + place, kind="switched", boundary=boundary, workload_digest="truth", world_size=launch.world_size,
                completed=not over, failure=OUT_OF_MEMORY if over else None, step_ms=() if over else tuple(samples),
                ranks={r: RankRecord(rank=r, allocated_peak_bytes=min(peak, limit_bytes)) for r in launch.ranks},
            ))  # fmt: skip
            if over:
                break
        steps = len(records) * (plan.steps_each + plan.interleaved_rounds)
        return replace(findings, switched=tuple(records)), steps


OUT_OF_MEMORY = Failure(failure_class="oom_capacity", stage="backward", rank=0, step=2)


def _cut(rank: Any, limit_bytes: int) -> Any:
    return replace(rank, allocated_peak_bytes=min(rank.allocated_peak_bytes, limit_bytes), phases={})


def _prefixed(row: dict[str, Any]) -> dict[str, Any]:
    return {f"recompute_{name}": row.get(name) for name in ("granularity", "modules", "method", "num_layers")}


def _ledger(table: dict[str, Any]) -> Callable[[Boundary], Prediction] | None:
    """The ledger of a table that holds its whole workload: one measured on real trials, here on a CPU."""
    if "model" not in (table.get("workload") or {}):
        return None
    workload = from_builtins(table["workload"], Workload, setting=f"workload of {table['name']}")
    return Ledger(workload, variant="stand_in").predict


def _prediction(row: dict[str, Any]) -> Prediction | None:
    prior = row.get("prior")
    if prior is None:
        return None
    phases = tuple(
        PhasePeak(iteration="steady", phase=name, peak_bytes=sum(terms.values()), terms=terms)
        for name, terms in prior["phases"].items()
    )
    heavy = max(phases, key=lambda p: p.peak_bytes)
    width = round(1.645 * NOMINAL_SPREAD * heavy.peak_bytes)
    return Prediction(
        peak_bytes=heavy.peak_bytes, peak_p05_bytes=heavy.peak_bytes - width, peak_p95_bytes=heavy.peak_bytes + width,
        phase=heavy.phase, stage=0, rank=0,
        stages=(StagePeak(stage=0, rank=0, peak_bytes=heavy.peak_bytes, phase=heavy.phase, phases=phases),),
        replay_ms=sum(prior["replay_ms"].values()), replay_ms_by_label=prior["replay_ms"],
    )  # fmt: skip


def play(truth: Truth, limit_bytes: int, seed: int, sampler_name: str) -> Play:
    """One play to its end."""
    settings = GateSettings(limit_bytes=limit_bytes, loss_ratio=None)
    evidence = Evidence(truth.candidates, settings)
    sampler = _sampler(sampler_name, truth, evidence, seed)
    optimum = truth.optimum(limit_bytes)
    number, switched_steps, reached = 0, 0, None
    while sampler.done() is None:
        (proposal,) = sampler.ask(1)
        record = truth.launch(
            proposal.boundary, number=number, run_index=evidence.runs(proposal.boundary), limit_bytes=limit_bytes, seed=seed
        )
        number += 1
        if proposal.survey and isinstance(sampler, Planner):
            findings = None
            if record.completed:
                findings, steps = truth.survey(record, limit_bytes, seed, switch=sampler_name == "survey_switch")
                switched_steps += steps
            sampler.tell_survey(record, findings)
            continue
        sampler.tell(record if proposal.repeat_reason is None else _as_repeat(record, proposal.repeat_reason))
        best = evidence.best()
        if optimum is not None and reached is None and record.completed and _as_good(truth, proposal.boundary, optimum):
            reached = number
        if sampler_name == "narrow_first" and best is not None:
            break
        # Optuna has no certificate: its samplers are stopped by an oracle, as soon as an optimum has passed.
        oracle = isinstance(sampler, OptunaSampler) or sampler_name == "exhaustive"
        if oracle and best is not None and optimum is not None and _as_good(truth, best, optimum):
            break
    answer = evidence.best()
    regret = None
    if answer is not None and optimum is not None:
        regret = 100 * (truth.step_ms(answer) / truth.step_ms(optimum) - 1)
    found = (answer is None and optimum is None) or (regret is not None and regret <= 100 * WITHIN)
    return Play(
        table=truth.recorded.name,
        kind=truth.kind,
        limit_bytes=limit_bytes,
        seed=seed,
        sampler=sampler_name,
        launches=number,
        switched_steps=switched_steps,
        oom_launches=sum(r.failure is not None for r in evidence.records),
        answer=answer.key if answer is not None else None,
        optimum=optimum.key if optimum is not None else None,
        launches_to_optimum=reached,
        margin_percent=_margin_percent(truth, optimum, limit_bytes),
        regret_percent_of_step=None if regret is None else round(max(regret, 0.0), 4),
        found=found,
        false_pass=answer is not None and truth.peak_bytes(answer) > limit_bytes,
        by_chance=truth.by_chance,
        certificate_right=_certificate_right(truth, evidence, answer, limit_bytes),
        gpu_hours=round(number * GPU_HOURS_PER_LAUNCH, 3),
    )


def _as_good(truth: Truth, boundary: Boundary, optimum: Boundary) -> bool:
    return truth.step_ms(boundary) <= truth.step_ms(optimum) * (1 + WITHIN)


def _margin_percent(truth: Truth, optimum: Boundary | None, limit_bytes: int) -> float:
    """Distance to the limit of the nearest peak that decides the play, in percent of the limit."""
    decisive = [b for b in truth.rows if optimum is None or truth.step_ms(b) <= truth.step_ms(optimum)]
    return round(min(abs(100 * (truth.peak_bytes(b) / limit_bytes - 1)) for b in decisive), 3)


def _sampler(name: str, truth: Truth, evidence: Evidence, seed: int) -> Sampler:
    def lacks(boundary: Boundary, run_index: int) -> str | None:
        return None

    if name in ("planner", "survey_only", "survey_switch"):
        survey = name != "planner"
        return Planner(truth.candidates, evidence, lacks, seed=seed, draws=DRAWS, jitter=truth.jitter, survey=survey)
    if name in ("narrow_first", "exhaustive"):
        return ExhaustiveSampler(truth.candidates, evidence, lacks)
    stem, _, order = name.partition("_")
    return OptunaSampler(stem, truth.candidates, evidence, lacks, seed=seed, ordered=bool(order))


def _as_repeat(record: TrialRecord, reason: Any) -> TrialRecord:
    return replace(record, repeat_reason=reason)


def _certificate_right(truth: Truth, evidence: Evidence, answer: Boundary | None, limit_bytes: int) -> bool:
    """No boundary that the certificate excludes is cheaper by more than 1 % of a step and fits."""
    bound = truth.step_ms(answer) * (1 - WITHIN) if answer is not None else float("inf")
    opened = {row.name for row in certificate(truth.candidates, evidence, answer) if row.basis == "open"}
    claimed = [b for b in truth.rows if b.key not in opened]
    return not any(truth.peak_bytes(b) <= limit_bytes and truth.step_ms(b) < bound for b in claimed)


def summarise(plays: Sequence[Play]) -> list[dict[str, Any]]:
    """One row by kind of truth and sampler; tables that fail by chance are counted apart."""
    rows = []
    keys = sorted({(p.kind, p.sampler, p.by_chance) for p in plays}, key=lambda k: (k[0], k[2], SAMPLERS.index(k[1])))
    for kind, sampler, by_chance in keys:
        own = [p for p in plays if (p.kind, p.sampler, p.by_chance) == (kind, sampler, by_chance)]
        regrets = sorted(p.regret_percent_of_step for p in own if p.regret_percent_of_step is not None)
        launches = sorted(p.launches for p in own)
        reached = [p.launches_to_optimum for p in own if p.launches_to_optimum is not None]
        clear = [p for p in own if p.margin_percent > CLEAR_PERCENT]
        rows.append({
            "kind": kind, "sampler": sampler, "by_chance": by_chance, "plays": len(own), "tables": len({p.table for p in own}),
            "switched_plays": sum(p.switched_steps > 0 for p in own),
            "launches_mean": round(mean(launches), 2), "launches_p95": launches[int(0.95 * (len(launches) - 1))],
            "to_optimum_mean": round(mean(reached), 2) if reached else None,
            "oom_launches_mean": round(mean(p.oom_launches for p in own), 2),
            "found_percent": round(100 * mean(p.found for p in own), 1),
            "found_clear_percent": round(100 * mean(p.found for p in clear), 1) if clear else None,
            "regret_mean_percent": round(mean(regrets), 3) if regrets else None,
            "regret_p95_percent": regrets[int(0.95 * (len(regrets) - 1))] if regrets else None,
            "false_passes": sum(p.false_pass for p in own),
            "certificate_right_percent": round(100 * mean(p.certificate_right for p in own), 1),
            "gpu_hours_mean": round(mean(p.gpu_hours for p in own), 2),
        })  # fmt: skip
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--truths", type=Path, help="folder of truth tables; drawn ones where it is not given")
    parser.add_argument("--plays", type=int, default=200, help="plays of each kind and sampler")
    parser.add_argument("--samplers", default="planner,narrow_first", help=f"of {', '.join(SAMPLERS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    options = parser.parse_args(arguments)
    plays = []
    for truth, limit, seed in _plays(options.truths, options.plays, options.seed):
        plays += [play(truth, limit, seed, sampler) for sampler in options.samplers.split(",")]
    summary = summarise(plays)
    if options.format == "json":
        print(json.dumps({"plays": [asdict(p) for p in plays], "summary": summary}, indent=2))
        return 0
    columns = list(summary[0]) if summary else []
    widths = [max(len(c), *(len(str(row[c])) for row in summary)) for c in columns]
    for line in [dict(zip(columns, columns, strict=True)), *summary]:
        print("  ".join(str(line[c]).rjust(w) for c, w in zip(columns, widths, strict=True)))
    return 0


def _plays(folder: Path | None, count: int, seed: int) -> Any:
    """Tables with a limit and a noise seed each; every table is used in turn until there are enough plays."""
    if folder is None:
        for index in range(count):
            table = Machine(seed * 100_000 + index // 3).table()
            yield Truth(table), table["mem_targets_bytes"][index % 3], index % 4
        return
    paths = sorted(folder.glob("*.json"))
    if not paths:
        sys.exit(f"benchmarks.search: no truth table in {folder}")
    tables = [load_json(path, dict) for path in paths]
    draw = random.Random(seed)
    for index in range(count):
        table = tables[index % len(tables)]
        truth = Truth(table)
        limits = table.get("mem_targets_bytes") or []
        peaks = [truth.peak_bytes(b) for b in truth.rows]
        between = round(draw.uniform(min(peaks) * 0.95, max(peaks) * 1.05))
        yield truth, limits[index // len(tables) % len(limits)] if limits else between, index // len(tables) % 4


if __name__ == "__main__":
    sys.exit(main())
