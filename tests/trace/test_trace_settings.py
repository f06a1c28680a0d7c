"""What is traced, as what, and how it is held against the ledger. Starts nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from autotune.boundary.boundary import Boundary
from autotune.engine.trace import _row, chosen
from autotune.errors import RequestError
from autotune.ledger.ledger import Ledger
from autotune.trial.config_builder import refuse_on_cpu
from autotune.trial.trace.adapt import enough_micro_batches, traceable
from autotune.trial.trace.launch import Traced
from autotune.workload.catalog import load
from autotune.workload.workload import Workload

pytest.importorskip("megatron.core")


def test_settings_are_lists_of_labels_joined_by_plus() -> None:
    assert chosen("[],layernorm, moe_act+moe ,full/block/2") == (
        Boundary.selective(),
        Boundary.selective(["layernorm"]),
        Boundary.selective(["moe_act", "moe"]),
        Boundary.full("block", 2),
    )
    assert chosen("a_label_of_tomorrow")[0].modules == ("a_label_of_tomorrow",)


@pytest.mark.parametrize("text", ["", "mlp,,moe", "mlp+", "full/uniform", "full/other/1", "full/uniform/x"])
def test_settings_that_cannot_be_read(text: str) -> None:
    with pytest.raises(RequestError, match="--trace-labels"):
        chosen(text)


@pytest.mark.parametrize("alias", ["nemotron3nano", "moonlight16b", "llama3_70b_sft", "qwen3_30b_a3b"])
def test_what_has_no_stand_in_is_replaced_and_named(alias: str) -> None:
    workload = load(alias)
    adapted, differences = traceable(workload)
    refuse_on_cpu(adapted)
    assert adapted.num_microbatches == enough_micro_batches(workload) <= workload.num_microbatches
    assert adapted.parallel.world_size == workload.parallel.world_size
    for setting, text in (
        (workload.features.cuda_graph_impl != "none", "CUDA graphs"),
        (workload.model.moe_token_dispatcher_type == "flex" and bool(workload.model.num_moe_experts), "alltoall"),
        (workload.precision.fp8 is not None, "BF16"),
        (workload.parallel.context_parallel_size > 1, "context-parallel"),
    ):
        assert setting == any(text in difference for difference in differences)


def test_a_context_parallel_rank_keeps_its_tokens_and_its_optimizer_shard() -> None:
    workload = load("llama3_70b_sft")
    parallel = replace(workload.parallel, context_parallel_size=2)
    adapted, _ = traceable(replace(workload, parallel=parallel))
    assert adapted.train.seq_length == workload.train.seq_length // 2
    assert adapted.parallel.data_parallel_size == 2 * parallel.data_parallel_size


def tiny() -> tuple[Workload, Ledger]:
    workload = traceable(load("moonlight_tiny"))[0]
    return workload, Ledger(workload, variant="stand_in")


def test_differences_of_more_than_two_percent_are_listed() -> None:
    _, ledger = tiny()
    control = Boundary.selective()
    said = {p.phase: p.peak_bytes for p in ledger.predict(control).stages[0].phases if p.iteration == "steady"}
    near = _row(Traced(boundary=control, stage=0, rank=0, steady={phase: round(1.01 * b) for phase, b in said.items()}), ledger)
    assert near.kind == "traced" and not near.apart and near.difference_ratio == pytest.approx(1 / 1.01 - 1, rel=0.01)
    far = {**said, "optimizer": round(0.9 * said["optimizer"])}
    row = _row(Traced(boundary=control, stage=0, rank=0, steady=far), ledger)
    assert set(row.apart or ()) == {"optimizer"} and "apart: optimizer +11.1 %" in row.text
    refused = _row(Traced(boundary=control, stage=0, rank=0, error="AssertionError: no"), ledger)
    assert refused.peak_bytes is None and "AssertionError: no" in refused.text


def test_the_client_imports_no_torch() -> None:
    code = "import sys, autotune.engine.trace, autotune.trial.trace.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
