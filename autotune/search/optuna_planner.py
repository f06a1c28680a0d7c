"""A sampler of this project as an Optuna sampler: ``study.optimize`` and ``study.ask`` follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from autotune.boundary.boundary import Boundary
from autotune.records import to_builtins
from autotune.search.proposal import Proposal, Sampler
from autotune.search.study import distributions, parameters
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict


class PlannerSampler(BaseSampler):  # type: ignore[misc]
    """Asks a planner (or another of this project's samplers) for the parameters of a trial.

    The objective reads ``proposal(trial.number).boundary``, launches it and hands the record to ``tell``. When the planner is
    done the study is stopped; a trial that was already asked for is pruned by the objective, since ``proposal`` is None.

    Args:
        sampler: Who proposes.
        boundaries: The launchable boundaries, from which the parameters are made.

    Example:
        >>> study = optuna.create_study(sampler=PlannerSampler(planner, boundaries))  # doctest: +SKIP
    """

    def __init__(self, sampler: Sampler, boundaries: Sequence[Boundary]) -> None:
        self._sampler = sampler
        self._distributions = distributions(boundaries)
        self._proposals: dict[int, Proposal] = {}

    def proposal(self, number: int) -> Proposal | None:
        """What a trial is to launch; None where the planner has nothing left."""
        return self._proposals.get(number)

    def tell(self, record: TrialRecord) -> Verdict:
        """Give the record of a launch to the planner."""
        return self._sampler.tell(record)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters, always."""
        return dict(self._distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Parameters of the planner's next proposal."""
        proposals = self._sampler.ask(1) if self._sampler.done() is None else []
        if not proposals:
            return {}
        self._proposals[trial.number] = proposals[0]
        study._storage.set_trial_user_attr(trial._trial_id, "proposal", to_builtins(proposals[0]))
        return parameters(proposals[0].boundary, self._distributions)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Only reached when the planner has nothing left: recompute off stands for no trial."""
        return parameters(Boundary.off(), self._distributions).get(param_name)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: Any, values: Sequence[float] | None) -> None:
        """Stop ``optimize`` when the planner is done."""
        if self._sampler.done() is not None and study._thread_local.in_optimize_loop:
            study.stop()
