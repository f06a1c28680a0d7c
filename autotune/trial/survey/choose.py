"""Which settings a survey predicts, and which of them it switches to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from autotune.boundary.boundary import Boundary
from autotune.trial.survey.plan import SurveyPlan
from autotune.trial.survey.prices import Price
from autotune.trial.survey.report import PredictedSetting


def all_settings(labels: Sequence[str], layers: int, *, full: bool = True) -> tuple[Boundary, ...]:
    """Every set of labels, and full recompute by every depth and every chunk size that divides the layers of a stage.

    Args:
        labels: Those with a region.
        layers: Of the longest stage.
        full: Whether full recompute can run.

    Other chunk sizes fail in Megatron Core before 0.17 (transformer_block.py:_checkpointed_forward does not clamp the last).
    """
    sets = [Boundary.selective(chosen) for size in range(len(labels) + 1) for chosen in itertools.combinations(labels, size)]
    if not full:
        return tuple(sets)
    sizes = range(1, layers + 1)
    uniform = [Boundary.full("uniform", size) for size in sizes if layers % size == 0]
    return (*sets, *uniform, *(Boundary.full("block", size) for size in sizes))


def join(
    candidates: Sequence[Boundary], ranks: Sequence[Sequence[tuple[Sequence[Mapping[str, int]], Price]]]
) -> tuple[PredictedSetting, ...]:
    """All ranks' predictions of each candidate as one: the highest peak, the longest replay.

    Args:
        candidates: The settings.
        ranks: For each rank and setting: phase peaks in bytes of each recorded step, and the price.
    """
    joined = []
    for number, boundary in enumerate(candidates):
        steps = [own[number][0] for own in ranks]
        phases = {rank: highest(of_rank) for rank, of_rank in enumerate(steps)}
        several = len(steps[0]) > 1
        hot = max(phases, key=lambda rank: max(phases[rank].values()))
        joined.append(
            PredictedSetting(
                boundary=boundary,
                peak_bytes=max(phases[hot].values()),
                rank=hot,
                phase=max(phases[hot], key=lambda phase: phases[hot][phase]),
                ranks=phases,
                price=max((own[number][1] for own in ranks), key=lambda price: price.replay_ms),
                step_peaks_bytes=tuple(max(max(step.values()) for step in of_step) for of_step in zip(*steps, strict=True))
                if several
                else (),
                frozen={rank: of_rank[-1] for rank, of_rank in enumerate(steps)} if several else {},
            )
        )
    return tuple(joined)


def highest(steps: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Of each phase the highest peak over some steps."""
    return {
        phase: max(step[phase] for step in steps if phase in step) for phase in {phase: None for step in steps for phase in step}
    }


def choose(predicted: Sequence[PredictedSetting], plan: SurveyPlan, *, base: Boundary) -> list[PredictedSetting]:
    """The cheapest settings predicted to fit, and cheaper ones over the limit by less than the margin, from low to high peak.

    Of settings with the same effect the one with the fewest labels stands for all. An out-of-memory ends the launch, so those
    over the limit come last (``over``).
    """
    limit = None if plan.limit_bytes is None else plan.limit_bytes * (1 + plan.margin)
    fitting = [setting for setting in predicted if limit is None or setting.peak_bytes <= limit]
    distinct: dict[tuple[object, ...], PredictedSetting] = {}
    for setting in sorted(fitting, key=lambda s: (len(s.boundary.modules), s.boundary.key)):
        effect = tuple((rank, *sorted(phases.items())) for rank, phases in setting.ranks.items())
        distinct.setdefault((*effect, setting.price.replay_ms), setting)
    cheapest = sorted(distinct.values(), key=lambda s: (s.price.replay_ms, s.peak_bytes, s.boundary.key))
    within = [s for s in cheapest if not over(s, plan)]
    near = [s for s in cheapest if over(s, plan) and (not within or s.price.replay_ms < within[0].price.replay_ms)]
    if plan.switch_to >= 0:
        within, near = within[: plan.switch_to], near[: plan.switch_to]
    return sorted((s for s in (*within, *near) if s.boundary != base), key=lambda s: (s.peak_bytes, s.price.replay_ms))


def over(setting: PredictedSetting, plan: SurveyPlan) -> bool:
    """Whether a setting is predicted to be over the limit."""
    return plan.limit_bytes is not None and setting.peak_bytes > plan.limit_bytes
