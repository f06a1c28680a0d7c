"""The configuration of a trial out of the live Bridge recipe, where the workload came from one.

A Workload holds what moves memory; a recipe also sets what does not (initialisation, router coefficients, schedules).
Where Bridge has the recipe, the trial trains it as it is, with the trial's own settings over it.
"""

from __future__ import annotations

from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.trial.spec import TrialSpec
from autotune.workload import catalog
from autotune.workload.fields import LAUNCHER_PATHS
from autotune.workload.hydra_values import parse_override
from autotune.workload.workload import Workload


def recipe_of(workload: Workload) -> tuple[str, tuple[str, ...]] | None:
    """The Bridge function a workload came from and the overrides that Bridge applies to it; None for other sources."""
    source = workload.source
    reference, overrides = source.reference, source.overrides
    if source.kind == "catalog":
        entry = catalog.find(source.reference)
        if entry is None or entry.bridge_function is None:
            return None
        reference, overrides = entry.bridge_function, (*entry.base_overrides, *overrides)
    elif source.kind != "bridge_recipe":
        return None
    own = tuple(text for text in overrides if parse_override(text).path not in LAUNCHER_PATHS)
    return reference, own


def load(reference: str, overrides: tuple[str, ...]) -> Any:
    """Call the recipe and apply the overrides, as Bridge's own launcher does. Not finalised: ``pretrain`` does that."""
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    from autotune.workload.bridge_loader import find_recipe

    function, _ = find_recipe(reference)
    return process_config_with_overrides(function(), cli_overrides=list(overrides) or None)


def apply_trial(config: Any, plain: Any, spec: TrialSpec) -> Any:
    """Put the trial's settings over a recipe's: its boundary, steps and seed, mock data, no checkpoint, no evaluation.

    Args:
        plain: The configuration that ``bridge_loop`` builds from the workload alone; its sections for what a trial never
            takes from a recipe (schedule, tokenizer, checkpoint, logging, process group) are used here as well.
    """
    set_boundary(config.model, spec.boundary)
    config.model.vocab_size, config.model.should_pad_vocab = spec.workload.model.vocab_size, spec.workload.model.should_pad_vocab
    train = spec.workload.train
    config.train.train_iters, config.train.train_samples = spec.steps, None
    config.train.global_batch_size, config.train.micro_batch_size = train.global_batch_size, train.micro_batch_size
    config.train.exit_duration_in_mins = config.train.exit_interval = None
    config.rng.seed = spec.seed
    for section in ("validation", "scheduler", "tokenizer", "checkpoint", "logger", "dist", "rerun_state_machine", "dataset"):
        if hasattr(config, section):
            setattr(config, section, getattr(plain, section))
    config.ft = config.straggler = config.nvrx_straggler = config.inprocess_restart = None
    if spec.backend == "cpu":
        config.ddp.average_in_collective = False
    return config


def set_boundary(model: Any, boundary: Boundary) -> None:
    """Write all four fields into a model configuration."""
    for name, value in boundary.to_fields().items():
        setattr(model, name, value)
    if boundary.granularity != "selective":
        model.recompute_modules = None
