"""What a trial's loop (Bridge's or ours) tells, and who listens: the probe always, the survey where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autotune.trial.lines import LineWriter
from autotune.trial.probe import Probe
from autotune.trial.spec import TrialSpec


class Session:
    """One rank of one trial.

    Listeners are called in the order in which they were added; ``on_config`` before anything is built, ``on_model`` with
    (model chunks, optimizer) when both are built, ``on_step_end`` with (step, loss, grad_norm).
    ``probe.on_step_start`` is called with the step before its first phase.
    """

    def __init__(self, spec: TrialSpec, rank: int, lines: LineWriter, probe: Probe, counter: Any = None) -> None:
        self.spec, self.rank, self.lines, self.probe = spec, rank, lines, probe
        self.counter = counter
        """The counting allocator on a CPU, else None."""
        self.built = False
        self.stop_after: int | None = None
        """Set to a step by whoever knows that it is the last; the loop ends there. None runs all of the spec's steps."""
        self.on_config: list[Callable[[Any], None]] = []
        self.on_model: list[Callable[[Any, Any], None]] = []
        self.on_step_end: list[Callable[[int, float | None, float | None], None]] = []

    def config_built(self, config: Any) -> None:
        """The loop's configuration is made, nothing else is."""
        for call in self.on_config:
            call(config)

    def model_built(self, model: Any, optimizer: Any) -> None:
        """Model chunks (a list) and optimizer are built, no data is."""
        self.built = True
        self.probe.wrap_model(model)
        self.probe.built()
        for call in self.on_model:
            call(model, optimizer)

    def step_ended(self, loss: float | None, grad_norm: Any, skipped: bool) -> None:
        """An optimizer step is over."""
        norm = None if grad_norm is None else float(grad_norm)
        self.probe.end_step(loss=loss, grad_norm=norm, skipped=skipped)
        for call in self.on_step_end:
            call(self.probe.step, loss, norm)
