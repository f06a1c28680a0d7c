"""What a person asks for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Backend = Literal["auto", "gpu", "cpu", "predict", "replay"]
Sampler = Literal["planner", "exhaustive", "tpe", "gp", "random"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as ``autotune run`` and ``autotune plan`` read it.

    Attributes:
        recipe: Alias, Bridge recipe function, ``module:function``, workload file or Hugging Face ``config.json``.
        mem_target_bytes: Limit of every rank's peak; only ``plan`` works without one.
        overrides: Hydra-form settings (``train.global_batch_size=16``).
        evidence: ``FILE[:TABLE]`` of recorded trials.
        space: A search space of the user's own.
        out: Run directory; None is ``runs/<recipe>-<time>``.
        max_gpu_hours: No trial is begun after so many GPU-hours of trials.
        prove: Go on until every immediate neighbour of the answer was launched.
        log_to: Trackers that trials are logged to: ``wandb:PROJECT``, ``mlflow:URI``.
        max_slowdown: Largest replay cost as a share of the reference's step.
    """

    recipe: str
    mem_target_bytes: int | None = None
    mem_metric: Literal["allocated", "reserved"] = "allocated"
    overrides: tuple[str, ...] = ()
    backend: Backend = "auto"
    evidence: str | None = None
    space: Path | None = None
    sampler: Sampler = "planner"
    max_trials: int | None = None
    max_gpu_hours: float | None = None
    prove: bool = False
    steady_steps: int = 3
    max_slowdown: float | None = None
    out: Path | None = None
    resume: bool = False
    address: str | None = None
    log_to: tuple[str, ...] = ()
    seed: int = 0
