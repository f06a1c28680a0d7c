"""Optuna's own samplers on the same space, for comparison: tpe, gp, random."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution

from autotune.boundary.boundary import Boundary
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence, launchable
from autotune.search.proposal import Proposal, Stop
from autotune.search.repeats import Lacks, due_repeats, stuck
from autotune.search.study import constraints, distributions, parameters
from autotune.trial.record import TrialRecord
from autotune.trial.verdict import Verdict

STARTUP = 5
"""Trials before an Optuna sampler has a model."""


class OptunaSampler:
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
        self._name = name
        self._candidates = launchable(candidates)
        self._evidence = evidence
        self._lacks = lacks
        self._seed = seed
        self._pending: set[Boundary] = set()
        self._first = self._cheapest_fitting()[:STARTUP] if ordered else []
        self._distributions: dict[str, BaseDistribution] = distributions([c.boundary for c in self._candidates])

    def ask(self, count: int = 1) -> list[Proposal]:
        """Suggestions, each moved to the nearest untried candidate."""
        if stuck(self._evidence) is not None:
            return []
        proposals: list[Proposal] = []
        for _ in range(count):
            fresh = self._fresh()
            if not fresh:
                break
            first = next((b for b in self._first if b in fresh), None)
            boundary = first if first is not None else self._nearest(self._suggest(), fresh)
            self._pending.add(boundary)
            proposals.append(Proposal(boundary=boundary, why=f"suggested by Optuna's {self._name} sampler"))
        if not proposals and not self._pending:
            proposals = list(due_repeats(self._evidence, self._lacks))[:count]
            self._pending.update(proposal.boundary for proposal in proposals)
        return proposals

    def tell(self, record: TrialRecord) -> Verdict:
        """Take a record."""
        self._pending.discard(record.boundary)
        return self._evidence.add(record)

    def done(self) -> Stop | None:
        """Over when every candidate that can be run was run."""
        halted = stuck(self._evidence)
        if halted is not None:
            return Stop(outcome="open", text="a retry failed by infrastructure too", open_boundaries=(halted,))
        if self._pending or self._fresh() or any(due_repeats(self._evidence, self._lacks)):
            return None
        untried = tuple(c.boundary for c in self._candidates if self._evidence.runs(c.boundary) == 0)
        if self._evidence.best() is not None:
            return Stop(outcome="answer", text="every candidate that can be run was run", open_boundaries=untried)
        text = "no candidate that was run passes"
        return Stop(outcome="open" if untried else "none", text=text, open_boundaries=untried)

    def _cheapest_fitting(self) -> list[Boundary]:
        limit = self._evidence.settings.limit_bytes
        known = [(c.prediction.replay_ms, c.order, c.boundary) for c in self._candidates
                 if c.prediction is not None and c.prediction.peak_bytes <= limit]  # fmt: skip
        return [boundary for _, _, boundary in sorted(known, key=lambda row: row[:2])]

    def _fresh(self) -> list[Boundary]:
        return [
            c.boundary
            for c in self._candidates
            if self._evidence.runs(c.boundary) == 0 and c.boundary not in self._pending and self._lacks(c.boundary, 0) is None
        ]

    def _suggest(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study = optuna.create_study(sampler=self._sampler(), direction="minimize")
            for record in self._evidence.records:
                self._add(study, record)
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

    def _add(self, study: Any, record: TrialRecord) -> None:
        trial = optuna.trial.create_trial(
            params=parameters(record.boundary, self._distributions), distributions=self._distributions, value=None, state=_RUNNING
        )
        study.add_trial(trial)
        asked = optuna.Trial(study, study._storage.get_all_trials(study._study_id)[-1]._trial_id)
        verdict = self._evidence.verdicts[record.boundary]
        for name, value in constraints(record, verdict, self._evidence).items():
            asked.set_constraint(name, value)
        cost = self._evidence.cost_ms(record.boundary)
        study.tell(asked, cost if cost != float("inf") else 0.0)

    def _nearest(self, suggested: dict[str, Any], fresh: Sequence[Boundary]) -> Boundary:
        """The untried candidate that differs in the fewest parameters; the granularity counts most."""

        def distance(boundary: Boundary) -> tuple[int, str]:
            own = parameters(boundary, self._distributions)
            weight = len(self._distributions)
            differing = sum(weight if name == "granularity" else 1 for name in own if own[name] != suggested[name])
            return differing, boundary.key

        return min(fresh, key=distance)


_RUNNING = optuna.trial.TrialState.RUNNING
