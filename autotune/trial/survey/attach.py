"""The survey inside a running trial: which setting and which recorder each step has, the same on all ranks.

Before every step rank 0 says what the step is, over a CPU process group, so all ranks switch together or not at all.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.records import dump_json, from_builtins, to_builtins, write_atomically
from autotune.trial.survey.choose import all_settings, choose, highest, join, over
from autotune.trial.survey.freeze import Freezer
from autotune.trial.survey.guards import balance_guard, closing_balance, phases_guard
from autotune.trial.survey.normalise import normalise
from autotune.trial.survey.own_work import checkpoint_own_ms
from autotune.trial.survey.phase_peaks import Predictor
from autotune.trial.survey.plan import SurveyPlan, require_surveyable
from autotune.trial.survey.prices import PriceList
from autotune.trial.survey.recorder import Mode, Recorder
from autotune.trial.survey.report import Guard, SurveyReport, SwitchedSetting
from autotune.trial.survey.summary import summarise
from autotune.trial.survey.switch import Switch, blocks_of
from autotune.trial.survey.timeline import Kind
from autotune.trial.survey.trace import Trace


def attach(session: Any) -> None:
    """Let a session's trial be a survey: its boundary is the base, its ``survey`` the plan.

    Raises:
        RequestError: The workload cannot be surveyed.
    """
    require_surveyable(session.spec.workload)
    plan = from_builtins(dict(session.spec.survey), SurveyPlan, setting="survey")
    conductor = Conductor(session, plan)
    session.on_config.append(conductor.config_built)
    session.on_model.append(conductor.model_built)
    session.probe.on_step_start.append(conductor.start_step)
    session.on_step_end.append(conductor.end_step)


class Conductor:
    """One rank's part of a survey launch."""

    def __init__(self, session: Any, plan: SurveyPlan) -> None:
        self._session, self._plan = session, plan
        self._base: Boundary = session.spec.boundary
        self._freezer = Freezer()
        self._switch = Switch(self._freezer)
        self._optimizer: Any = None
        self._configs: list[Any] = []
        self._group: Any = None
        self._traces: list[Trace] = []
        self._units_total = 0
        self._times: list[list[float | None]] = []
        self._recorder: Recorder | None = None
        kinds = ["plain"] * plan.plain_steps + ["bytes"] * plan.followed_steps + ["plain"]
        kinds += ["plain", "bytes", "plain", "times"] * plan.cost_rounds + ["times"] * plan.timed_steps
        self._queue: list[tuple[str, Boundary]] = [(kind, self._base) for kind in kinds]
        self._near: list[tuple[str, Boundary]] | None = []
        """Steps of settings predicted to be over the limit, which come last; None once they are in the queue."""
        self._current: tuple[str, Boundary] = ("plain", self._base)
        self._phases: dict[str, list[dict[str, int]]] = defaultdict(list)
        self._numbers: dict[Boundary, list[tuple[float | None, float | None]]] = defaultdict(list)
        self._step_ms: dict[str, list[float]] = defaultdict(list)
        self._host_ms: dict[str, list[float]] = defaultdict(list)
        self._began_s = 0.0
        self._interleaved: dict[Boundary, list[float]] = defaultdict(list)
        self._report: SurveyReport | None = None
        self._captures = session.spec.workload.features.cuda_graph_impl != "none"
        self._own_ms: dict[Kind, float] = {}

    # The trial's events

    def config_built(self, config: Any) -> None:
        """Build the model with every label on; full recompute is switched on at run time."""
        model = getattr(config, "model", config)
        model.recompute_granularity = "selective"
        model.recompute_modules = list(self._plan.labels)
        model.recompute_method = model.recompute_num_layers = None
        if getattr(model, "cuda_graph_impl", None) == "transformer_engine":
            # Graphs are captured after the warm-up steps: the survey is all warm-up, and ends before.
            model.cuda_graph_warmup_steps = self._plan.steps + 1

    def model_built(self, chunks: Any, optimizer: Any) -> None:
        """Patch the call sites."""
        import torch

        self._optimizer = optimizer
        self._configs = [block.config for block in blocks_of(chunks)]
        if self._session.counter is not None:
            self._own_ms = checkpoint_own_ms()
        self._switch.install(chunks)
        self._switch.set(self._base)
        self._group = torch.distributed.new_group(backend="gloo")

    def start_step(self, step: int) -> None:
        """Agree on what this step is, and make it so."""
        self._current = self._agree(self._queue.pop(0))
        kind, boundary = self._current
        # The last recorded step still has the weights that a launch has there, and is the first of its kind.
        freeze = step >= self._plan.plain_steps + self._plan.followed_steps
        self._freezer.start_step(self._optimizer, self._configs, freeze=freeze)
        self._switch.set(boundary)
        self._recorder = self._new_recorder(kind) if kind in ("bytes", "times") else None
        self._switch.record(self._recorder)
        gc.collect()
        if self._report is not None and kind == "switched" and self._report.trying != boundary:
            self._write(trying=boundary)
        if self._recorder is not None:
            self._recorder.start()
        self._began_s = time.thread_time()

    def end_step(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Take what the step showed; the last one ends the trial."""
        kind, boundary = self._current
        thread_ms = (time.thread_time() - self._began_s) * 1e3
        self._host_ms[kind].append(thread_ms)
        iteration = self._session.probe.last_iteration
        self._switch.record(None)
        if self._recorder is not None:
            self._recorder.stop()
            if kind == "times":
                self._times.append(self._recorder.times_ms())
            elif len(self._traces) < self._plan.followed_steps:
                self._traces.append(self._recorder.trace(self._session.rank))
                self._units_total = self._recorder.units_total
            self._recorder = None
        self._step_ms[kind].append(iteration["step_ms"])
        if step >= self._plan.plain_steps + self._plan.followed_steps:
            self._numbers[boundary].append((loss, grad_norm))
        self._phases[kind if kind != "switched" else f"switched {boundary.key}"].append(dict(iteration["phases"]))
        if kind == "interleaved":
            own_ms = iteration["step_ms"] if self._session.counter is None else thread_ms
            self._interleaved[boundary].append(max(self._gather(own_ms)))
            if not self._queue or self._queue[0][0] != "interleaved":
                self._timed()
        if self._report is None:
            if not self._queue:
                self._survey()
        elif not self._queue or self._queue[0] != self._current:
            self._setting_done(kind, boundary)
        if self._report is not None and not self._queue:
            self._finish(step)

    # Survey

    def _new_recorder(self, kind: str) -> Recorder:
        mode: Mode = "bytes" if kind == "bytes" else "times"
        staged = self._session.spec.workload.parallel.pipeline_model_parallel_size > 1
        return Recorder(
            self._session.probe,
            self._base,
            mode,
            counter=self._session.counter,
            unit_limit=2**31 if staged else self._plan.recorded_units,
            shares_storage=self._switch.shares_storage,
        )

    def _survey(self) -> None:
        """Predict every setting on every rank and decide what to switch to."""
        began = time.perf_counter()
        timelines = [normalise(trace) for trace in self._traces]
        timeline = timelines[-1]
        prices = PriceList(timeline, self._times[-self._plan.timed_steps :], self._units_total, self._own_ms)
        layers = max((len(timeline.layers_of_unit(unit)) for unit in {r.unit for r in timeline.regions}), default=0)
        found = self._gather((timeline.labels, layers, sorted(self._switch.unknown)))
        labels = tuple(sorted({label for rank_labels, _, _ in found for label in rank_labels}))
        candidates = self._plan.candidates or all_settings(labels, max(count for _, count, _ in found), full=self._plan.full)
        predictors = [Predictor(of_step) for of_step in timelines]

        def phases_of(boundary: Boundary) -> list[dict[str, int]]:
            return [dict(predictor.predict(boundary).phases) for predictor in predictors]

        own = [(phases_of(b), prices.price(self._plan.charged(b))) for b in candidates]
        recorded = self._phases["bytes"][: self._plan.followed_steps]
        base, own_base = highest(recorded), highest(phases_of(self._base))
        balance = closing_balance(timeline)
        retained = sum(2 * r.gradient_input_bytes for r in timeline.regions if r.retains and r.unit == 0 and r.label == "layer")
        gathered = self._gather(
            (
                own,
                base,
                own_base,
                (recorded[-1], self._phases["plain"][-1]),
                (balance.unexplained_bytes, balance.fraction),
                retained,
            )
        )
        predicted = join(candidates, [ranks[0] for ranks in gathered])
        guards = (
            self._unknown_guard([name for _, _, names in found for name in names]),
            balance_guard([ranks[4] for ranks in gathered]),
            phases_guard("surveyed_peak_is_plain_peak", [ranks[3] for ranks in gathered], 0.001),
            phases_guard("base_is_predicted", [(ranks[2], ranks[1]) for ranks in gathered], 0.002),
        )
        chosen = choose(predicted, self._plan, base=self._base)
        steps = [(over(s, self._plan), ("switched", s.boundary)) for s in chosen for _ in range(self._plan.steps_each)]
        self._queue = [step for last, step in steps if not last]
        self._near = [step for last, step in steps if last]
        self._report = SurveyReport(
            base=self._base,
            world_size=self._session.spec.world_size,
            limit_bytes=self._plan.limit_bytes,
            margin=self._plan.margin,
            clock="device" if self._session.counter is None else "main thread",
            labels=labels,
            inert_labels=tuple(sorted(set(self._plan.labels) - set(labels))),
            captured_labels=self._plan.captured,
            warmup_labels=self._plan.warmup_only,
            after_capture="not measured" if self._captures else "no graphs",
            predicted=predicted,
            regions=summarise(timeline, prices),
            base_measured={rank: ranks[1] for rank, ranks in enumerate(gathered)},
            guards=guards,
            surveyed_step_ms={
                **{kind: median(times[-self._plan.timed_steps :]) for kind, times in self._step_ms.items()},
                "prediction": (time.perf_counter() - began) * 1e3,
            },
            recording_cost_ms=self._recording_cost_ms(),
            host_thread_ms={kind: median(times[-self._plan.timed_steps :]) for kind, times in self._host_ms.items()},
            notes=(_BEFORE_CAPTURE,) if self._captures else (),
            retained_bytes={rank: ranks[5] for rank, ranks in enumerate(gathered)},
            sizes={
                "regions": len(timeline.regions),
                "saved": len(timeline.entries),
                "moments": len(timeline.moments),
                "units": self._units_total,
                "recorded_steps": len(timelines),
            },
        )
        self._save()
        self._write()
        if not self._queue:
            self._queue = self._rest()

    def _recording_cost_ms(self) -> dict[str, tuple[float, ...]]:
        """Thread time of each recorded and timed step of the rounds over that of the plain step before it."""
        plain = self._host_ms["plain"][self._plan.plain_steps + 1 :]
        pairs = {"bytes": zip(self._host_ms["bytes"][self._plan.followed_steps :], plain[0::2], strict=False)}
        pairs["times"] = zip(self._host_ms["times"], plain[1::2], strict=False)
        return {kind: tuple(own - before for own, before in of_kind) for kind, of_kind in pairs.items()}

    def _setting_done(self, kind: str, boundary: Boundary) -> None:
        assert self._report is not None
        if kind == "switched":
            steps = self._phases[f"switched {boundary.key}"]
            counted = steps[1:] or steps
            own = {phase: max(step[phase] for step in counted) for phase in counted[0]}
            ranks = dict(enumerate(self._gather(own)))
            loss, grad_norm = self._numbers[boundary][-1]
            losses = [value for value in self._gather(loss) if value is not None]
            setting = SwitchedSetting(
                boundary=boundary,
                peak_bytes=max(max(phases.values()) for phases in ranks.values()),
                ranks=ranks,
                step_ms=(),
                loss=losses[0] if losses else None,
                grad_norm=grad_norm,
                error_fraction=self._error(boundary, ranks),
            )
            self._report = _replaced(self._report, switched=(*self._report.switched, setting), trying=None)
            self._write()
            if not self._queue:
                self._queue = self._rest()

    def _rest(self) -> list[tuple[str, Boundary]]:
        """Interleaved steps of what fitted; after them, since an out-of-memory ends the launch, what may not fit."""
        assert self._report is not None
        near, self._near = self._near, None
        if near is None or self._plan.switch_to == 0:
            return []
        fitting = [s.boundary for s in self._report.switched if self._fits(s.peak_bytes)]
        # In another order each round, the same on all ranks: what ran before a step shows in its time.
        orders = (random.Random(number) for number in range(self._plan.interleaved_rounds))
        settings = [self._base, *fitting]
        return [*(("interleaved", b) for order in orders for b in order.sample(settings, len(settings))), *near]

    def _fits(self, peak_bytes: int) -> bool:
        return self._plan.limit_bytes is None or peak_bytes <= self._plan.limit_bytes

    def _error(self, boundary: Boundary, ranks: dict[int, dict[str, int]]) -> float:
        assert self._report is not None
        predicted = self._report.prediction(boundary)
        if predicted is None:
            return 0.0
        errors = [max(predicted.frozen_ranks[rank].values()) / max(phases.values()) - 1 for rank, phases in ranks.items()]
        return max(errors, key=abs)

    def _timed(self) -> None:
        """Interleaving is over; what comes now may end the launch."""
        assert self._report is not None
        # An eager step pays for replays that a step with captured graphs does not have.
        steps = {b: tuple(times) for b, times in self._interleaved.items() if self._plan.charged(b) == b}
        self._report = _replaced(
            self._report,
            switched=tuple(_replaced(s, step_ms=steps.get(s.boundary, ())) for s in self._report.switched),
            base_step_ms=steps.get(self._base, ()),
        )
        self._write()

    def _finish(self, step: int) -> None:
        assert self._report is not None
        self._report = _replaced(self._report, guards=(*self._report.guards, *self._number_guards()))
        self._write()
        self._session.stop_after = step

    def _number_guards(self) -> tuple[Guard, ...]:
        """Frozen steps of one setting have one loss, and all settings have the same loss and gradient norm."""
        own = [[numbers for numbers in steps if numbers != (None, None)] for steps in self._numbers.values()]
        varied = any(self._gather(any(len({loss for loss, _ in steps}) > 1 for steps in own)))
        losses = [loss for steps in own for loss, _ in steps if loss is not None]
        norms = [norm for steps in own for _, norm in steps if norm is not None]
        loss_spread, norm_spread = max(self._gather(_spread(losses))), max(self._gather(_spread(norms)))
        return (
            Guard(name="frozen_batch", passed=not varied, detail="loss of repeated steps of one setting"),
            Guard(
                name="same_numbers",
                passed=max(loss_spread, norm_spread) <= _SAME_NUMBERS,
                detail=f"over all steps the loss spreads by {loss_spread:.1e}, the gradient norm by {norm_spread:.1e}",
            ),
        )

    def _unknown_guard(self, names: list[str]) -> Guard:
        found = sorted(set(names))
        return Guard(name="unknown_call_sites", passed=not found, detail=", ".join(found) or "none")

    # Ranks and files

    def _agree(self, step: tuple[str, Boundary]) -> tuple[str, Boundary]:
        import torch

        words = [(step[0], to_builtins(step[1]))]
        torch.distributed.broadcast_object_list(words, src=0, group=self._group)
        return words[0][0], from_builtins(words[0][1], Boundary, setting="survey step")

    def _gather(self, value: Any) -> list[Any]:
        import torch

        values: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def _write(self, *, trying: Boundary | None = None) -> None:
        assert self._report is not None
        if trying is not None:
            self._report = _replaced(self._report, trying=trying)
        if self._session.rank == 0:
            write_atomically(Path(self._session.spec.folder) / "survey.json", dump_json(self._report))

    def _save(self) -> None:
        for number, trace in enumerate(self._traces):
            folder = Path(self._session.spec.folder) / "survey" / f"step-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"{self._session.rank:03d}.json", dump_json(trace, indent=-1))
        self._traces = []


_BEFORE_CAPTURE = "surveyed in warm-up steps, before graphs are captured: their memory pools are not in these figures"
_SAME_NUMBERS = 1e-4
"""Relative spread of loss and gradient norm that a changed order of additions in 16 bits may bring."""


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / max(abs(max(values)), 1e-30) if values else 0.0


def _replaced(record: Any, **changes: Any) -> Any:
    import dataclasses

    return dataclasses.replace(record, **changes)
