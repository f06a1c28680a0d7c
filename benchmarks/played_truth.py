"""A truth table as candidates to choose from and launches that cost."""

from __future__ import annotations

import random
from dataclasses import replace
from math import hypot, inf
from statistics import NormalDist, mean
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.ledger.ledger import Ledger, Variant
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak
from autotune.ledger.spread import Z95, standard_deviation
from autotune.records import from_builtins
from autotune.search.candidate import Candidate
from autotune.search.stop_rule import EXPERT_JITTER, JITTER, peak_scatter
from autotune.search.survey import SurveyFindings
from autotune.search.survey_regions import findings_from_table
from autotune.trial.backends.base import TrialRequest
from autotune.trial.backends.replay import ReplayBackend
from autotune.trial.backends.tables import read_table
from autotune.trial.gates import peaks_bytes
from autotune.trial.record import Failure, RankRecord, TrialRecord
from autotune.trial.survey.choose import choose
from autotune.trial.survey.plan import EXPERT_MARGIN, MARGIN, SurveyPlan
from autotune.trial.survey.prices import Price
from autotune.trial.survey.report import PredictedSetting
from autotune.workload.workload import Workload
from benchmarks.generator import BY_CHANCE
from benchmarks.seed_rows import seed_rows_workload

GROUPS = {"states": "weights", "activations": "hidden", "experts": "moe", "levels": "workspaces"}
"""The drawn prior's terms by the ledger's groups: the planner is told the ledger's own spread of each, whatever the prior's true
errors are, which a ledger does not know."""
STEP_SCATTER = 0.03
"""Of launches; interleaved steps of one process scatter by ``INTERLEAVED_SCATTER``."""
INTERLEAVED_SCATTER = 0.005
NEAR_BY_CHANCE = 0.95
"""Above this share of the limit a launch may fail by chance, in a table where that happens."""


class Truth:
    """A truth table as candidates to choose from and launches that cost."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.recorded = read_table(table, name=str(table["name"]), evidence=str(table["name"]))
        kind, survey = str(table.get("kind", "table" if self.recorded.complete else "seed")), table.get("survey")
        self.kind = f"{kind}, no switch" if survey is not None and not survey.get("switchable") else kind
        self.by_chance = bool(table.get("by_chance"))
        self._repeats = self.kind.startswith("table")
        self._peak_scatter = float(table.get("peak_scatter", 0.0))
        self.rows = dict(zip(self.recorded.runs, table["rows"], strict=True))
        predicted = (survey or {}).get("predicted", ())
        self._surveyed_ms = {Boundary.from_fields(_prefixed(row)): float(row["replay_ms"]) for row in predicted}
        samples = [s for runs in self.recorded.runs.values() for run in runs for s in run.step_ms]
        self._base_ms = min(samples, default=0.0)
        self._workload = _workload(table)
        variant: Variant = "stand_in" if "parallel" in (table.get("workload") or {}) else "te"  # A recipe's name: an H100 study.
        ledger = Ledger(self._workload, variant=variant).predict if self._workload is not None else None
        self.candidates = [
            Candidate(
                boundary=boundary, order=order, status="distinct",
                prediction=ledger(boundary) if ledger is not None else _prediction(row),
            )
            for order, (boundary, row) in enumerate(self.rows.items())
        ]  # fmt: skip

    def peak_bytes(self, boundary: Boundary) -> float:
        """The true peak: given, else the highest of the recorded runs; no limit is enough for one that never ended well."""
        given = self.rows[boundary].get("true_peak_bytes")
        if given is not None:
            return float(given)
        runs = self.recorded.runs[boundary]
        whole = [r.allocated_peak_bytes for run in runs if run.completed for r in run.ranks.values()]
        return max(whole, default=inf)

    def fail_chance(self, boundary: Boundary, limit_bytes: int) -> float:
        """How often a launch fails under this limit: by the scatter of its peak, or near the limit for no reason of its own.

        A measured table says nothing of scatter: there every launch of a setting ends as the recorded one.
        """
        peak = self.peak_bytes(boundary)
        if peak == inf:
            return 1.0
        over = float(peak > limit_bytes)
        if self._peak_scatter:
            over = 1 - NormalDist(peak, self._peak_scatter * peak).cdf(limit_bytes)
        chance = BY_CHANCE if self.by_chance and peak > NEAR_BY_CHANCE * limit_bytes else 0.0
        return 1 - (1 - over) * (1 - chance)

    def dearer_ms(self, boundary: Boundary, other: Boundary) -> float:
        """How much dearer a boundary is than another: 0 within two standard errors of the truth's own prices."""
        errors = [float(self.rows[b].get("true_step_error_ms", 0.0)) for b in (boundary, other)]
        apart = self.step_ms(boundary) - self.step_ms(other)
        return apart if abs(apart) > 2 * hypot(*errors) else 0.0

    def step_ms(self, boundary: Boundary) -> float:
        """The true step: given; else by the prices of the table's survey; else the mean of all recorded samples.

        Launches on a shared CPU scatter by more than all prices together, so a measured table is priced by its survey.
        """
        given = self.rows[boundary].get("true_step_ms")
        if given is not None:
            return float(given)
        if boundary in self._surveyed_ms:
            return self._base_ms + self._surveyed_ms[boundary]
        samples = [s for run in self.recorded.runs[boundary] for s in run.step_ms]
        return mean(samples) if samples else inf

    @property
    def range_bytes(self) -> tuple[float, float]:
        """Lowest and highest true peak of the settings that can run at all."""
        peaks = [peak for peak in map(self.peak_bytes, self.rows) if peak < inf]
        return min(peaks), max(peaks)

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
        peak = max(peaks_bytes(record).values(), default=0) if record.completed else inf
        chance = self.by_chance and peak > NEAR_BY_CHANCE * limit_bytes
        chance = chance and self.rows[boundary]["runs"][request.run_index].get("by_chance")
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
        """The product's own figure for the scatter of peaks: larger where experts are routed freely; launches on a CPU repeat."""
        if self._workload is not None:
            return peak_scatter(self._workload, to_the_bit=self._repeats)
        return EXPERT_JITTER if any("moe" in boundary.modules for boundary in self.rows) and not self._repeats else JITTER

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
        base_ms = self.step_ms(launch.boundary) * process
        base_steps = tuple(base_ms * draw.lognormvariate(0, INTERLEAVED_SCATTER) for _ in range(plan.interleaved_rounds))
        steps = len(records) * plan.steps_each + (len(records) + 1) * plan.interleaved_rounds
        return replace(findings, switched=tuple(records), base_step_ms=base_steps), steps


OUT_OF_MEMORY = Failure(failure_class="oom_capacity", stage="backward", rank=0, step=2)


def _cut(rank: Any, limit_bytes: int) -> Any:
    return replace(rank, allocated_peak_bytes=min(rank.allocated_peak_bytes, limit_bytes), phases={})


def _prefixed(row: dict[str, Any]) -> dict[str, Any]:
    return {f"recompute_{name}": row.get(name) for name in ("granularity", "modules", "method", "num_layers")}


def _workload(table: dict[str, Any]) -> Workload | None:
    """Of a table that holds it whole (measured on real trials, here on a CPU) or names a catalog recipe."""
    facts = table.get("workload") or {}
    if "recipe" in facts:
        try:
            return seed_rows_workload(table)
        except RequestError:
            return None
    if "parallel" not in facts:
        return None
    return from_builtins(table["workload"], Workload, setting=f"workload of {table['name']}")


def _prediction(row: dict[str, Any]) -> Prediction | None:
    prior = row.get("prior")
    if prior is None:
        return None
    phases = tuple(
        PhasePeak(
            iteration="steady", phase=name, peak_bytes=sum(terms.values()),
            terms={GROUPS[group]: size for group, size in terms.items()},
        )
        for name, terms in prior["phases"].items()
    )  # fmt: skip
    heavy = max(phases, key=lambda p: p.peak_bytes)
    width = round(Z95 * standard_deviation(heavy.terms, balanced=False))
    return Prediction(
        peak_bytes=heavy.peak_bytes, peak_p05_bytes=heavy.peak_bytes - width, peak_p95_bytes=heavy.peak_bytes + width,
        phase=heavy.phase, stage=0, rank=0,
        stages=(StagePeak(stage=0, rank=0, peak_bytes=heavy.peak_bytes, phase=heavy.phase, phases=phases),),
        replay_ms=sum(prior["replay_ms"].values()), replay_ms_by_label=prior["replay_ms"],
    )  # fmt: skip
