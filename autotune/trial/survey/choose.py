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
    candidates: Sequence[Boundary], ranks: Sequence[Sequence[tuple[Mapping[str, int], Price]]]
) -> tuple[PredictedSetting, ...]:
    """All ranks' predictions of each candidate as one: the highest peak, the longest replay."""
    joined = []
    for number, boundary in enumerate(candidates):
        phases = {rank: own[number][0] for rank, own in enumerate(ranks)}
        hot = max(phases, key=lambda rank: max(phases[rank].values()))
        joined.append(
            PredictedSetting(
                boundary=boundary,
                peak_bytes=max(phases[hot].values()),
                rank=hot,
                phase=max(phases[hot], key=lambda phase: phases[hot][phase]),
                ranks=phases,
                price=max((own[number][1] for own in ranks), key=lambda price: price.replay_ms),
            )
        )
    return tuple(joined)


def choose(predicted: Sequence[PredictedSetting], plan: SurveyPlan, *, base: Boundary) -> list[PredictedSetting]:
    """The cheapest settings predicted to fit within the margin, ordered from low to high peak: an out-of-memory ends it.

    Of settings with the same effect the one with the fewest labels stands for all.
    """
    limit = None if plan.limit_bytes is None else plan.limit_bytes * (1 + plan.margin)
    fitting = [setting for setting in predicted if limit is None or setting.peak_bytes <= limit]
    distinct: dict[tuple[object, ...], PredictedSetting] = {}
    for setting in sorted(fitting, key=lambda s: (len(s.boundary.modules), s.boundary.key)):
        effect = tuple((rank, *sorted(phases.items())) for rank, phases in setting.ranks.items())
        distinct.setdefault((*effect, setting.price.replay_ms), setting)
    cheapest = sorted(distinct.values(), key=lambda s: (s.price.replay_ms, s.peak_bytes, s.boundary.key))
    if plan.switch_to >= 0:
        cheapest = cheapest[: plan.switch_to]
    return sorted((s for s in cheapest if s.boundary != base), key=lambda s: (s.peak_bytes, s.price.replay_ms))
