"""What the ledger's terms may be, given what trials showed: weighted draws of the physics.

Each draw is one world: a factor for every term group, an offset for every phase and for all of them, for every label a
factor of what it saves, a price factor and a chance of being inert, and a small own deviation of every boundary. In each
world every boundary has a peak (the maximum over phases and stages of factor times term, plus offset) and a price. Trials
weigh the worlds: passes by how near they came (heavy tails), failures one-sided by the bytes they prove.
docs/decisions/040-posterior.md says why draws and not a formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from autotune.boundary.boundary import Boundary
from autotune.ledger.prediction import AFTER_CAPTURE, PHASES, Prediction
from autotune.search.densities import heavy_tail, normal_cdf
from autotune.search.observations import IN_PROCESS, FailureSeen, PeakSeen, PriorSpread, StepSeen
from autotune.search.points import leading_points, totals_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_FULL = "full"
FULL_OF_A_STEP, FULL_OF_A_STEP_ERROR = 0.3, 0.15
"""What full recompute replays, as a share of a step without recompute, and the deviation of its logarithm."""
UNKNOWN_GROUP = 0.06
"""Relative deviation of term groups where the ledger says nothing of any of them, before scaling."""


class Posterior:
    """Draws over all boundaries that have a prediction.

    Args:
        predictions: Prediction of every launchable boundary.
        spread: The prior's width.
        seed: Of all random numbers.
        draws: How many worlds.
    """

    def __init__(
        self,
        predictions: Mapping[Boundary, Prediction],
        *,
        spread: PriorSpread | None = None,
        seed: int = 0,
        draws: int = 2000,
    ) -> None:
        self._spread = spread or PriorSpread()
        self._seed = seed
        self._draws = draws
        # Sorted, so that the order in which candidates are listed changes nothing.
        self.boundaries = sorted(predictions, key=lambda b: b.key)
        self._index = {boundary: i for i, boundary in enumerate(self.boundaries)}
        self._predictions = [predictions[boundary] for boundary in self.boundaries]
        self._scale = max(prediction.peak_bytes for prediction in self._predictions)
        self._labels = sorted({label for boundary in self.boundaries for label in boundary.modules})
        self._build_points()
        self._build_prices()
        self._seen: list[PeakSeen | FailureSeen | StepSeen] = []
        self._draw_worlds()

    # ---- the physics -------------------------------------------------------------------------------------------------

    def _build_points(self) -> None:
        groups = sorted({g for p in self._predictions for s in p.stages for ph in s.phases for g in ph.terms})
        column = {group: i for i, group in enumerate(groups)}
        rows: list[list[float]] = []
        savings: list[list[float]] = []
        totals = [totals_of(prediction) for prediction in self._predictions]
        phases: list[int] = []
        eager: list[bool] = []
        starts: list[int] = []
        for boundary, prediction in zip(self.boundaries, self._predictions, strict=True):
            starts.append(len(rows))
            narrower, own = [self._index.get(b) for b in self._without(boundary)], self._index[boundary]
            for (stage, iteration, phase), terms in leading_points(prediction):
                here = sum(terms.values())
                saved = [0 if n is None else totals[n].get((stage, iteration, phase), here) - here for n in narrower]
                savings.append([
                    # A label that saves next to nothing may still move the peak a little, up or down.
                    max(size / self._scale, self._spread.least_saving) if other is not None and other != own else 0.0
                    for size, other in zip(saved, narrower, strict=True)
                ])  # fmt: skip
                row = [0.0] * len(groups)
                for group, size in terms.items():
                    row[column[group]] = size / self._scale
                rows.append(row)
                phases.append(PHASES.index(phase) if phase in PHASES else len(PHASES))
                eager.append(iteration != AFTER_CAPTURE)
        self._terms = np.array(rows, dtype=np.float64).reshape(len(rows), len(groups))
        self._group = np.array([self._spread.of_group(group) for group in groups])
        if self._spread.group is None and not self._spread.surveyed and not self._group.any():
            self._group[:] = UNKNOWN_GROUP  # terms that the ledger has no word on: their share alone is scaled
        self._savings = np.array(savings, dtype=np.float64).reshape(len(rows), len(self._labels) + 1)
        self._phase = np.array(phases, dtype=np.intp)
        self._eager = np.array(eager, dtype=np.bool_)
        self._starts = np.array(starts, dtype=np.intp)
        self._counts = np.diff([*starts, len(rows)])

    def _without(self, boundary: Boundary) -> list[Boundary]:
        """For every label, and last for full recompute, the boundary without it (itself where it has none of it)."""
        if boundary.granularity == "full":
            return [boundary] * len(self._labels) + [Boundary.selective()]
        less = [Boundary.selective(m for m in boundary.modules if m != label) for label in self._labels]
        return [*(b if boundary.granularity == "selective" else boundary for b in less), boundary]

    def _build_prices(self) -> None:
        names = sorted({label for p in self._predictions for label in p.replay_ms_by_label} | {_FULL})
        self._price_names = names
        table = np.zeros((len(self.boundaries), len(names)))
        for i, prediction in enumerate(self._predictions):
            for label, ms in prediction.replay_ms_by_label.items():
                table[i, names.index(label)] = ms
            # A price that labels do not explain (full recompute, overlaps) is scaled as one.
            table[i, names.index(_FULL)] += prediction.replay_ms - sum(prediction.replay_ms_by_label.values())
        self._price_table = table

    def _draw_worlds(self) -> None:
        spread, draws = self._spread, self._draws
        generator = self._generator = np.random.default_rng(self._seed)
        chances = np.array(list(spread.widths.values()))
        # One width a world: a ledger that is wrong about one term by far is not to be trusted on the others either.
        width = self._width = generator.choice(np.array(list(spread.widths)), size=draws, p=chances / chances.sum())
        groups = self._terms.shape[1]
        factors = generator.standard_normal((groups, draws))
        offsets = generator.standard_normal((len(PHASES) + 1, draws)) * spread.phase_offset * width
        # After a survey this is how the launch deviated: launches scatter no more than they do, however wrong the survey is.
        self._shared = generator.standard_normal(draws) * spread.offset * (1.0 if spread.surveyed else width)
        scale = self._calibration()
        # Errors of parts average out in their sum, so what one label saves is known no better than all terms together.
        saving = spread.saving if spread.surveyed else max(spread.saving, 2 * scale * self._mean_group_spread())
        self._saved = generator.standard_normal((len(self._labels) + 1, draws)) * saving * width
        self._own = generator.standard_normal((len(self.boundaries), draws)) * self._own_widths()[:, None] * width
        self._inert = generator.random((len(self._labels), draws)) < spread.inert
        # Whoever is wrong about bytes is not to be trusted on times either, within reason.
        price = spread.price * np.minimum(width, spread.price_width)
        self._price = np.exp(generator.standard_normal((len(self._price_names), draws)) * price)
        self._factors = 1 + factors * (self._group * scale)[:, None] * width
        self._offsets = offsets
        self._weights = np.full(draws, 1 / draws)
        self._pair_up()
        self._rebuild_peaks()

    @property
    def widened(self) -> float:
        """How many times wider than the ledger says its errors are taken to be (mean over the worlds)."""
        return float(self._width @ self._weights)

    def _pair_up(self) -> None:
        """For every label the boundaries that have it, and those without it."""
        self._pairs: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
        for label in self._labels:
            having = [b for b in self.boundaries if label in b.modules]
            pairs = [(self._index[b], self._index.get(Boundary.selective(m for m in b.modules if m != label))) for b in having]
            known = [(i, j) for i, j in pairs if j is not None]
            self._pairs.append((np.array([i for i, _ in known], dtype=np.intp), np.array([j for _, j in known], dtype=np.intp)))

    def _own_widths(self) -> Floats:
        if self._spread.own is not None:
            return np.full(len(self.boundaries), self._spread.own)
        return np.array([(p.peak_p95_bytes - p.peak_bytes) / 1.645 / self._scale for p in self._predictions])

    def _calibration(self) -> float:
        """Scale of the group factors that makes the draws as wide as the ledger's own intervals (median over boundaries)."""
        spread, ratios = self._spread, []
        for i, prediction in enumerate(self._predictions):
            stop = self._starts[i + 1] if i + 1 < len(self._starts) else len(self._terms)
            rows = self._terms[self._starts[i] : stop]
            terms = rows[int(np.argmax(rows.sum(axis=1)))]
            ours = float(np.sqrt(((terms * self._group) ** 2).sum()))
            theirs = (prediction.peak_p95_bytes - prediction.peak_bytes) / 1.645 / self._scale
            rest = spread.offset**2 + spread.phase_offset**2 + (spread.own or 0.0) ** 2
            if ours > 0:
                ratios.append(math.sqrt(max(theirs**2 - rest, (theirs / 4) ** 2)) / ours)
        return float(np.median(ratios)) if ratios else 1.0

    def _mean_group_spread(self) -> float:
        """Relative deviation of all uncertain terms together, over the heaviest points."""
        uncertain = self._terms[:, self._group > 0].sum()
        return float(np.sqrt(((self._terms * self._group) ** 2).sum(axis=1)).sum() / uncertain) if uncertain > 0 else 0.0

    def _rebuild_peaks(self) -> None:
        self._points = self._terms @ self._factors
        self._points -= self._savings @ self._saved
        self._points += self._offsets[self._phase]
        # The highest point of each boundary; few have more than two, so this is faster than reduceat along the draws.
        self._peaks = self._points[self._starts]
        for place in range(1, int(self._counts.max())):
            more = np.flatnonzero(self._counts > place)
            self._peaks[more] = np.maximum(self._peaks[more], self._points[self._starts[more] + place])
        self._peaks += self._own
        self._peaks += self._shared
        self._prices = self._price_table @ self._price
        for inert, (having, without) in zip(self._inert, self._pairs, strict=True):
            if len(having):
                self._peaks[having] = np.where(inert, self._peaks[without], self._peaks[having])
                self._prices[having] = np.where(inert, self._prices[without], self._prices[having])

    # ---- what was seen -----------------------------------------------------------------------------------------------

    def see(self, seen: Sequence[PeakSeen | FailureSeen | StepSeen]) -> None:
        """Condition on observations, in their order; those of unknown boundaries are left out."""
        for one in seen:
            if one.boundary in self._index:
                self._learn(one)
                self._seen.append(one)

    def _learn(self, seen: PeakSeen | FailureSeen | StepSeen) -> None:
        """Weigh all worlds by one observation, in as many tempered steps as keep a fifth of them alive."""
        left = 1.0
        for _ in range(12):
            likelihood = np.log(np.maximum(self._likelihood(seen), 1e-300))
            step = self._temper(likelihood, left)
            weights = self._weights * np.exp(step * (likelihood - likelihood.max()))
            self._weights = weights / weights.sum()
            left -= step
            if left <= 0:
                break
            self._rejuvenate()
        if self.effective_draws < self._draws / 4:
            self._rejuvenate()

    def _temper(self, likelihood: Floats, left: float) -> float:
        """The largest exponent up to ``left`` after which a fifth of the draws still counts (found by halving)."""
        step = left
        for _ in range(12):
            weights = self._weights * np.exp(step * (likelihood - likelihood.max()))
            if weights.sum() ** 2 / (weights**2).sum() >= self._draws / 5:
                return step
            step /= 2
        return step

    def _likelihood(self, seen: PeakSeen | FailureSeen | StepSeen) -> Floats:
        """How likely the observation is in each world, up to a constant."""
        i, spread = self._index[seen.boundary], self._spread
        if isinstance(seen, PeakSeen):
            if seen.in_process:
                inside = self._in_process(i)
                if inside is None:
                    return np.ones(self._draws)
                return heavy_tail((inside - seen.peak_bytes / self._scale) / IN_PROCESS)
            noise = spread.run if seen.scatter is None else seen.scatter * seen.peak_bytes / self._scale
            likelihood = heavy_tail((self._peaks[i] - seen.peak_bytes / self._scale) / noise)
            return likelihood * self._phase_likelihood(i, seen.phases)
        if isinstance(seen, FailureSeen):
            noise = IN_PROCESS if seen.in_process else spread.run
            inside = self._in_process(i) if seen.in_process else self._peaks[i]
            if inside is None:
                return np.ones(self._draws)
            sure = normal_cdf((inside - seen.above_bytes / self._scale) / noise)
            chance = spread.by_chance_in_process if seen.in_process else spread.by_chance
            return chance + (1 - chance) * sure
        return self._step_likelihood(i, seen)

    def _in_process(self, i: int) -> Floats | None:
        """Peaks of a boundary inside a survey launch, which ends before graphs are captured; None where none could be high."""
        stop = self._starts[i + 1] if i + 1 < len(self._starts) else len(self._terms)
        eager = self._eager[self._starts[i] : stop]
        inside: Floats = self._peaks[i] - self._shared
        if not eager.all():
            points = self._points[self._starts[i] : stop][eager]
            if not len(points):
                return None
            inside = points.max(axis=0) + self._own[i]
        return inside

    def _phase_likelihood(self, i: int, phases: Mapping[str, int]) -> Floats:
        likelihood: Floats = np.ones(self._draws)
        stop = self._starts[i + 1] if i + 1 < len(self._starts) else len(self._terms)
        for number, phase in enumerate(PHASES):
            rows = [r for r in range(self._starts[i], stop) if self._phase[r] == number]
            if phase not in phases or not rows:
                continue
            ours = self._points[rows].max(axis=0) + self._own[i] + self._shared
            # Phases share most of their terms: each counts less than a peak of its own would.
            likelihood = likelihood * np.sqrt(heavy_tail((ours - phases[phase] / self._scale) / (2 * self._spread.run)))
        return likelihood

    def _step_likelihood(self, i: int, seen: StepSeen) -> Floats:
        """How near each world's price differences come to the steps; the base of the step is free in every world."""
        earlier = [s for s in self._seen if isinstance(s, StepSeen) and s.process == seen.process]
        if not earlier:
            return self._anchor_likelihood(i, seen)
        bases = np.mean([s.step_ms - self._prices[self._index[s.boundary]] for s in earlier], axis=0)
        width = (seen.scatter or self._spread.step) * seen.step_ms * math.sqrt(1 + 1 / len(earlier))
        return heavy_tail((bases + self._prices[i] - seen.step_ms) / width)

    def _anchor_likelihood(self, i: int, seen: StepSeen) -> Floats:
        """How near each world's price of full recompute comes to a forward pass, a share of the first step without its replays.

        A backward pass has two matrix products for every one of a forward pass, so that is a third of a step that does nothing
        else (Narayanan et al. 2021, section 3.5); head, optimizer and communication are in the step and are not replayed.
        """
        full = self._index.get(Boundary.full("uniform", 1))
        if self._spread.surveyed or full is None:
            return np.ones(self._draws)
        plain = np.maximum(seen.step_ms - self._prices[i], 0.05 * seen.step_ms)
        off = np.log(np.maximum(self._prices[full], 1e-9) / plain / FULL_OF_A_STEP)
        return heavy_tail(off / FULL_OF_A_STEP_ERROR)

    def _rejuvenate(self) -> None:
        """Draw the worlds again by weight and shake them, keeping mean and spread (Liu and West 2001, a = 0.97)."""
        a, generator = 0.97, self._generator
        chosen = generator.choice(self._draws, size=self._draws, p=self._weights)
        self._inert, self._width = self._inert[:, chosen], self._width[chosen]
        for name in ("_factors", "_offsets", "_shared", "_saved", "_own", "_price"):
            values = np.atleast_2d(getattr(self, name))
            values = np.log(values) if name == "_price" else values
            mean = values @ self._weights
            deviation = np.sqrt(np.maximum(((values - mean[:, None]) ** 2) @ self._weights, 0))
            noise = generator.standard_normal(values.shape) * deviation[:, None] * math.sqrt(1 - a * a)
            values = a * values[:, chosen] + (1 - a) * mean[:, None] + noise
            setattr(self, name, np.exp(values) if name == "_price" else values[0] if name == "_shared" else values)
        self._weights = np.full(self._draws, 1 / self._draws)
        self._rebuild_peaks()

    # ---- questions ---------------------------------------------------------------------------------------------------

    @property
    def effective_draws(self) -> float:
        """1 / sum of squared weights."""
        return float(1 / (self._weights**2).sum())

    def knows(self, boundary: Boundary) -> bool:
        """Whether a boundary has a prediction."""
        return boundary in self._index

    def peak(self, boundary: Boundary) -> tuple[float, float]:
        """Mean and standard deviation of a boundary's peak, in bytes."""
        values = self._peaks[self._index[boundary]]
        mean = float(values @ self._weights)
        deviation = math.sqrt(max(float(((values - mean) ** 2) @ self._weights), 0.0))
        return mean * self._scale, deviation * self._scale

    def fit(self, boundary: Boundary, limit_bytes: int) -> float:
        """Probability that one more run of a boundary stays within the limit."""
        values = self._peaks[self._index[boundary]]
        return float(normal_cdf((limit_bytes / self._scale - values) / self._spread.run) @ self._weights)

    def safe(self, boundary: Boundary, limit_bytes: int) -> float:
        """Probability that the mean of a boundary's launches is within the limit, and that one more launch is too."""
        return float(self._safe(self._index[boundary], limit_bytes) @ self._weights)

    def _safe(self, i: int, limit_bytes: int) -> Floats:
        room = limit_bytes / self._scale - self._peaks[i]
        return np.where(room >= 0, normal_cdf(room / self._spread.run), 0.0)

    def over(self, boundary: Boundary, limit_bytes: int) -> float:
        """Probability that the mean peak of a boundary's launches is over the limit."""
        return float((self._peaks[self._index[boundary]] > limit_bytes / self._scale) @ self._weights)

    def price_ms(self, boundary: Boundary) -> float:
        """Mean replay price of a boundary."""
        return float(self._prices[self._index[boundary]] @ self._weights)

    def better(self, boundary: Boundary, other: Boundary, limit_bytes: int, by_ms: float) -> float:
        """Probability that a boundary's mean peak is within the limit and its price below another's by more than ``by_ms``."""
        i, j = self._index[boundary], self._index[other]
        both = (self._peaks[i] <= limit_bytes / self._scale) & (self._prices[j] - self._prices[i] > by_ms)
        return float(both @ self._weights)

    def lost(self, boundary: Boundary, other: Boundary) -> float:
        """What preferring a boundary to another costs on average, in ms a step: what it is dearer in the worlds where it is."""
        dearer = self._prices[self._index[boundary]] - self._prices[self._index[other]]
        return float(np.maximum(dearer, 0) @ self._weights)

    def savings_ms(self, boundary: Boundary, other: Boundary) -> Floats:
        """What a boundary is cheaper than another by in each world; after a survey the mean in all of them. Shape: draws."""
        saves = self._prices[self._index[other]] - self._prices[self._index[boundary]]
        return np.full_like(saves, saves @ self._weights) if self._spread.surveyed else saves

    @property
    def weights(self) -> Floats:
        """Weight of each world; they add up to 1. Shape: draws."""
        return self._weights

    @property
    def run_bytes(self) -> float:
        """Standard deviation of one launch's peak around its boundary's mean."""
        return self._spread.run * self._scale
