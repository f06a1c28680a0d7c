"""Traces of real models: the bytes of real steps, with no kernel run, and a model of full size."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.spec import TrialSpec
from autotune.trial.trace.adapt import traceable
from autotune.trial.trace.launch import trace
from autotune.workload.catalog import load
from autotune.workload.workload import Workload

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow
BOUNDARIES = (Boundary.selective(), Boundary.selective(["layernorm", "moe_act"]), Boundary.full("uniform", 1))


def one_rank(alias: str) -> Workload:
    """A tiny recipe on one rank: routing then has no say in the bytes."""
    workload = traceable(load(alias))[0]
    parallel = replace(
        workload.parallel, world_size=1, tensor_model_parallel_size=1, expert_model_parallel_size=1, sequence_parallel=False
    )
    train = replace(workload.train, global_batch_size=2 * workload.train.micro_batch_size)
    return replace(workload, parallel=parallel, train=train)


@pytest.mark.parametrize("alias", ["moonlight_tiny", "llama_tiny"])
def test_a_trace_counts_what_real_steps_allocate(tmp_path: Path, alias: str) -> None:
    workload = one_rank(alias)
    boundaries = [b for b in BOUNDARIES if alias == "moonlight_tiny" or not b.modules]
    traced = {one.boundary: one for one in trace(workload, boundaries)}
    with Zygote("cpu", loop="core", log=tmp_path / "zygote.log") as zygote:
        for number, boundary in enumerate(boundaries):
            assert traced[boundary].error is None
            spec = TrialSpec(
                number=number, workload=workload, boundary=boundary, world_size=1, steps=2, backend="cpu", loop="core",
                folder=str(tmp_path / str(number)),
            )  # fmt: skip
            record = run_trial(spec, zygote=zygote)
            assert record.completed, record.failure
            first, steady = record.ranks[0].iterations
            for found, measured in ((traced[boundary].first, first), (traced[boundary].steady, steady)):
                for phase in ("forward", "loss", "backward", "grad_sync", "optimizer"):
                    assert found[phase] == pytest.approx(measured["phases"][phase], abs=8 * 1024), (boundary.key, phase)


def test_labels_that_the_ledger_does_not_know_are_megatrons_to_refuse() -> None:
    (found,) = trace(one_rank("llama_tiny"), [Boundary.selective(["a_label_of_tomorrow"])])
    assert found.error is not None and "a_label_of_tomorrow" in found.error


def test_a_model_of_full_size_needs_no_memory_and_agrees_with_the_ledger() -> None:
    """Llama 3 8B with tensor and pipeline parallelism: 34 GB of tensors on a stage."""
    base = traceable(load("llama3_8b"))[0]
    parallel = replace(
        base.parallel, world_size=8, tensor_model_parallel_size=2, sequence_parallel=True, pipeline_model_parallel_size=2,
        context_parallel_size=1, virtual_pipeline_model_parallel_size=None,
    )  # fmt: skip
    workload = replace(base, parallel=parallel, train=replace(base.train, seq_length=4096, global_batch_size=8))
    found = trace(workload, [Boundary.selective(["mlp"])])
    ledger = Ledger(workload, variant="stand_in")
    for one in found:
        assert one.error is None
        said = {p.phase: p.peak_bytes for p in ledger.predict(one.boundary).stages[one.stage].phases if p.iteration == "steady"}
        # A steady "forward" begins before the last step's fp32 gradients are dropped: those are the optimizer's.
        for phase, traced in ((phase, size) for phase, size in one.steady.items() if phase != "forward"):
            # While gradients are synchronised the schedule's locals still hold hidden states, which the ledger leaves out.
            assert said[phase] == pytest.approx(traced, rel=0.005 if phase == "grad_sync" else 0.0005), phase
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 6 * 2**20  # KiB: torch itself, and little else
