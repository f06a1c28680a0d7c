"""What the rank program touches of Megatron's objects, where their classes do not tell: on real ones, built on a CPU."""

from __future__ import annotations

import json

import pytest
from prelude_process import run_script

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

INSTANCES: dict[str, tuple[str, ...]] = {
    "model": ("output_layer", "post_process"),
    "block": ("layers", "num_layers_per_pipeline_rank", "config"),
    "block.config": ("recompute_granularity", "recompute_method", "recompute_num_layers", "finalize_model_grads_func"),
    "layer": ("forward", "config"),
    "chunk": ("zero_grad_buffer", "broadcast_params", "no_sync"),
    "optimizer": ("step", "zero_grad", "scale_loss", "param_groups"),
    "tracker": ("get_states", "set_states"),
}
"""Object, as our sources name it, and its attributes."""

SCRIPT = """
import json, os, sys
from autotune.boundary.boundary import Boundary
from autotune.trial import core_loop, rank
from autotune.trial.config_builder import field_names, optimizer_arguments
from autotune.trial.launch import free_port
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.switch import blocks_of
from autotune.workload.resolve import resolve_workload
rank.preload("cpu", "core")
import torch
from megatron.core import parallel_state
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel import get_cuda_rng_tracker, random
from megatron.core.utils import unwrap_model
pins, missing, seen = json.loads(sys.argv[1]), [], set()
for alias, more in (("llama_tiny", ()), ("moonlight_tiny", ("model.expert_model_parallel_size=1",)),
                    ("nemotron_tiny", ("model.expert_model_parallel_size=1",))):
    workload = resolve_workload(alias, overrides=("world_size=1", "train.global_batch_size=2", *more))
    spec = TrialSpec(number=0, workload=workload, boundary=Boundary.selective(), world_size=1, steps=1, backend="cpu",
                     loop="core", folder=".", master_port=free_port())
    rank._environment(spec, 0)
    core_loop._initialise(spec)
    config = core_loop.transformer_config(spec)
    chunks = core_loop.build_model(spec, config)
    optimizer = get_megatron_optimizer(OptimizerConfig(**optimizer_arguments(workload, field_names(OptimizerConfig))), chunks)
    blocks = list(blocks_of(chunks))
    objects = {
        "model": [unwrap_model(chunk) for chunk in chunks], "block": blocks, "block.config": [b.config for b in blocks],
        "layer": [layer for block in blocks for layer in block.layers], "chunk": chunks, "optimizer": [optimizer],
        "tracker": [get_cuda_rng_tracker()],
    }
    for name, found in objects.items():
        if not found:
            missing.append(f"{alias}: no {name}")
        missing += [f"{alias}: {name} ({type(one).__name__}) has no {attribute}"
                    for one in found for attribute in pins[name] if not hasattr(one, attribute)]
    if not all(isinstance(group.get("lr"), (int, float)) for group in optimizer.param_groups):
        missing.append(f"{alias}: a parameter group without a learning rate")
    if not all("forward" not in vars(layer) for layer in objects["layer"]):
        missing.append(f"{alias}: a layer whose forward is no method of its class")
    seen |= {type(m).__name__ for chunk in chunks for m in chunk.modules()}
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()
if not any(name.endswith("GroupedMLP") or name == "SequentialMLP" for name in seen):
    missing.append("experts under another name than GroupedMLP or SequentialMLP")
if "__dict__" not in dir(random.CheckpointWithoutOutput) and hasattr(random.CheckpointWithoutOutput, "__slots__"):
    missing.append("CheckpointWithoutOutput takes no attribute of ours")
print("MISSING" + json.dumps(missing))
"""


def missing(pins: dict[str, tuple[str, ...]]) -> list[str]:
    out = run_script(SCRIPT, json.dumps(pins))
    found: list[str] = json.loads(out.rpartition("MISSING")[2])
    return found


def test_attributes_of_real_objects() -> None:
    assert missing(INSTANCES) == []


def test_an_attribute_that_a_release_took_away_would_be_named() -> None:
    lacking = missing({**INSTANCES, "block": (*INSTANCES["block"], "gone")})
    assert {line.partition(": ")[0] for line in lacking} == {"llama_tiny", "moonlight_tiny", "nemotron_tiny"}
    assert all("has no gone" in line for line in lacking)
