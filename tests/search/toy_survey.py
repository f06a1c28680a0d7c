"""What a survey launch of the toy space leaves behind."""

from __future__ import annotations

from dataclasses import replace

from toy_space import World, predict, space

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.prices import Price
from autotune.trial.survey.report import PredictedSetting, SurveyReport

FULL = Boundary.full("uniform", 1)


def report_of(world: World, *, limit_gb: float | None = None, over: Boundary | None = None, **changes: object) -> SurveyReport:
    """The report of a survey of all settings, exact in bytes; ``over``: the setting in which it ran out of memory."""
    predicted = []
    for candidate in space():
        truth = predict(candidate.boundary, saves=world.saves, prices=world.prices)
        phases = {p.phase: p.peak_bytes for p in truth.stages[0].phases}
        price = Price(replay_ms=truth.replay_ms, standard_error_ms=truth.replay_ms * 0.05)
        predicted.append(PredictedSetting(
            boundary=candidate.boundary, peak_bytes=truth.peak_bytes, rank=0, phase=truth.phase, ranks={0: phases}, price=price,
        ))  # fmt: skip
    report = SurveyReport(
        base=FULL, world_size=2, limit_bytes=None if limit_gb is None else round(limit_gb * 10**9), margin=0.005,
        labels=(), inert_labels=(), predicted=tuple(predicted), base_measured={0: {"loss": world.peak_bytes(FULL)}},
        trying=over,
    )  # fmt: skip
    return replace(report, **changes)
