"""A small space whose truth is known: six labels, one wall, and whatever the world makes of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import PhasePeak, Prediction, StagePeak
from autotune.search.candidate import Candidate
from autotune.trial.gates import GateSettings
from autotune.trial.record import Failure, RankRecord, RepeatReason, TrialRecord

GB = 10**9
SAVES_GB = {"core_attn": 0.02, "layernorm": 1.0, "mla_up_proj": 2.5, "moe_act": 4.0, "shared_experts": 2.0, "moe": 14.0}
PRICE_MS = {"core_attn": 9.0, "layernorm": 12.0, "mla_up_proj": 15.0, "moe_act": 6.0, "shared_experts": 8.0, "moe": 45.0}
STATIC_GB, ACTIVATIONS_GB, WALL_GB, FULL_MS = 40.0, 42.0, 51.0, 180.0


def predict(boundary: Boundary, *, saves: Mapping[str, float] = SAVES_GB, prices: Mapping[str, float] = PRICE_MS) -> Prediction:
    """A two-phase machine: loss (everything alive) and optimizer (a wall that no label lowers)."""
    kept = ACTIVATIONS_GB - sum(saves[label] for label in boundary.modules)
    replay = {label: prices[label] for label in boundary.modules}
    total = sum(replay.values())
    if boundary.granularity == "full":
        kept, total, replay = 4.0 + boundary.num_layers, FULL_MS + boundary.num_layers, {}
    phases = (
        PhasePeak(iteration="steady", phase="loss", peak_bytes=round((STATIC_GB + kept) * GB),
                  terms={"weights": round(STATIC_GB * GB), "attention": round(kept * GB)}),
        PhasePeak(iteration="steady", phase="optimizer", peak_bytes=round(WALL_GB * GB), terms={"weights": round(WALL_GB * GB)}),
    )  # fmt: skip
    heavy = max(phases, key=lambda p: p.peak_bytes)
    peak = heavy.peak_bytes
    return Prediction(
        peak_bytes=peak, peak_p05_bytes=round(peak * 0.97), peak_p95_bytes=round(peak * 1.03), phase=heavy.phase, stage=0, rank=0,
        stages=(StagePeak(stage=0, rank=0, peak_bytes=peak, phase=heavy.phase, phases=phases),),
        replay_ms=total, replay_ms_by_label=replay,
    )  # fmt: skip


def boundaries(labels: int = 6) -> list[Boundary]:
    names = list(SAVES_GB)[:labels]
    sets = [Boundary.selective(c) for size in range(labels + 1) for c in itertools.combinations(names, size)]
    return [*sets, *(Boundary.full("uniform", n) for n in (1, 2))]


def space(labels: int = 6) -> list[Candidate]:
    return [Candidate(boundary=b, order=i, status="distinct", prediction=predict(b)) for i, b in enumerate(boundaries(labels))]


def settings(limit_gb: float, **changes: object) -> GateSettings:
    return GateSettings(limit_bytes=round(limit_gb * GB), **changes)  # type: ignore[arg-type]


@dataclass
class World:
    """The truth of one play: each label's real saving and price, drawn around the predicted ones, and noise between runs."""

    limit_gb: float
    seed: int = 0
    width: float = 0.1
    run_noise: float = 0.0
    step_noise: float = 0.0
    step_ms: float = 600.0

    def __post_init__(self) -> None:
        draw = random.Random(self.seed)
        self.saves = {label: gb * draw.lognormvariate(0, self.width) for label, gb in SAVES_GB.items()}
        self.prices = {label: ms * draw.lognormvariate(0, self.width) for label, ms in PRICE_MS.items()}
        self.launches: list[Boundary] = []

    def peak_bytes(self, boundary: Boundary) -> int:
        return predict(boundary, saves=self.saves, prices=self.prices).peak_bytes

    def step(self, boundary: Boundary) -> float:
        return self.step_ms + predict(boundary, saves=self.saves, prices=self.prices).replay_ms

    def lacks(self, boundary: Boundary, run_index: int) -> str | None:
        return None

    def run(self, boundary: Boundary, number: int, repeat_reason: RepeatReason | None = None) -> TrialRecord:
        """One launch: out of memory above the limit, else a whole run on both ranks."""
        draw = random.Random(f"{self.seed}/{number}/{boundary.key}")
        peak = round(self.peak_bytes(boundary) * (1 + draw.gauss(0, self.run_noise)))
        self.launches.append(boundary)
        over = peak > self.limit_gb * GB
        seen = min(peak, round(self.limit_gb * GB) - 1)
        iterations = tuple({"step": i + 1, "loss": 7.0 - i, "grad_norm": 1.0} for i in range(4))
        ranks = {r: RankRecord(rank=r, allocated_peak_bytes=seen - r, iterations=iterations) for r in range(2)}
        step = self.step(boundary) * (1 + draw.gauss(0, self.step_noise))
        return TrialRecord(
            number=number, kind="measured", boundary=boundary, workload_digest="toy", world_size=2, completed=not over,
            ranks=ranks,
            step_ms=() if over else (step, step * 1.001, step * 0.999), steps_run=1 if over else 4,
            failure=Failure(failure_class="oom_capacity", stage="backward", rank=0, step=2) if over else None,
            repeat_reason=repeat_reason,
        )  # fmt: skip

    def optimum_ms(self, candidates: list[Candidate]) -> float | None:
        fitting = [c.boundary for c in candidates if self.peak_bytes(c.boundary) <= self.limit_gb * GB]
        return min((self.step(b) for b in fitting), default=None)
