"""Optuna's own samplers on the same space, for comparison: tpe, gp, random."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.every_candidate import EveryCandidate
from autotune.search.evidence import Evidence
from autotune.search.repeats import Lacks
from autotune.search.study import constraints, distributions, parameters
from autotune.trial.record import TrialRecord

STARTUP = 5
"""Trials before an Optuna sampler has a model."""


class OptunaSampler(EveryCandidate):
    """Asks an Optuna sampler, and takes the untried candidate nearest to what it suggests.

    The sampler sees a study in memory that holds exactly the finished trials, so that a suggestion that is invalid or known
    already leaves no trace in the run's own journal. It stops when every candidate has been tried: Optuna has no certificate.

    Args:
        name: Which of Optuna's samplers.
        seed: Its seed.
        ordered: Its start is not random: the cheapest candidates whose predicted peak is within the limit.
    """

    def __init__(
        self,
        name: Literal["tpe", "gp", "random"] | str,
        candidates: Sequence[Candidate],
        evidence: Evidence,
        lacks: Lacks,
        *,
        seed: int = 0,
        ordered: bool = False,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        super().__init__(candidates, evidence, lacks)
        self.why = f"suggested by Optuna's {name} sampler"
        self._name = name
        self._seed = seed
        self._first = self._cheapest_fitting()[:STARTUP] if ordered else []
        self._distributions: dict[str, BaseDistribution] = distributions([c.boundary for c in self._candidates])

    def choose(self, fresh: Sequence[Boundary]) -> Boundary:
        """The suggestion, moved to the nearest untried candidate."""
        first = next((b for b in self._first if b in fresh), None)
        return first if first is not None else self._nearest(self._suggest(), fresh)

    def _cheapest_fitting(self) -> list[Boundary]:
        limit = self._evidence.settings.limit_bytes
        known = [(c.prediction.replay_ms, c.order, c.boundary) for c in self._candidates
                 if c.prediction is not None and c.prediction.peak_bytes <= limit]  # fmt: skip
        return [boundary for _, _, boundary in sorted(known, key=lambda row: row[:2])]

    def _suggest(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(sampler=self._sampler(), direction="minimize")
            study.add_trials([self._finished(record) for record in self._evidence.records])
            trial = study.ask(self._distributions)
        return dict(trial.params)

    def _sampler(self) -> Any:
        # Another seed for each suggestion: the study in memory is new every time.
        seed = self._seed * 1009 + len(self._evidence.records) + len(self._pending)
        if self._name == "tpe":
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
        if self._name == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=STARTUP, deterministic_objective=False)
        return optuna.samplers.RandomSampler(seed=seed)

    def _finished(self, record: TrialRecord) -> optuna.trial.FrozenTrial:
        cost = self._evidence.cost_ms(record.boundary)
        return optuna.trial.create_trial(
            params=parameters(record.boundary, self._distributions), distributions=self._distributions,
            value=cost if cost != float("inf") else 0.0,
            constraints=constraints(record, self._evidence.verdicts[record.boundary], self._evidence),
        )  # fmt: skip

    def _nearest(self, suggested: dict[str, Any], fresh: Sequence[Boundary]) -> Boundary:
        """The untried candidate that differs in the fewest parameters; the granularity counts most."""

        def distance(boundary: Boundary) -> tuple[int, str]:
            own = parameters(boundary, self._distributions)
            weight = len(self._distributions)
            differing = sum(weight if name == "granularity" else 1 for name in own if own[name] != suggested[name])
            return differing, boundary.key

        return min(fresh, key=distance)
