"""The ledger's phase peaks against real Megatron Core steps on CPU ranks: layer kinds, layouts, labels, full recompute.

Real forward, loss, backward, gradient synchronisation and optimizer step of tiny random shapes; every phase of a first and of
a second step is compared, and may differ by small blocks alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.boundary.check import check
from autotune.ledger.ledger import Ledger
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import TrialRecord
from autotune.trial.spec import TrialSpec
from autotune.workload.workload import Workload

pytest.importorskip("megatron.core")
pytestmark = pytest.mark.slow

PHASES = ("forward", "loss", "backward", "grad_sync", "optimizer")
SMALL_BLOCKS = 20 * 1024
"""Scalars, flags, counts of tokens, statistics and vectors of the heads' size: each takes a block of at least 512 bytes, of which
the ledger counts what is in it, or nothing."""
TWO = {"world_size": 2}
TENSOR = {**TWO, "tensor_model_parallel_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tp": TENSOR,
    "sp": {**TENSOR, "sequence_parallel": True},
    "pp": {**TWO, "pipeline_model_parallel_size": 2},
    "dp": TWO,
    "ep": {**TWO, "expert_model_parallel_size": 2},
    "sp+ep": {**TENSOR, "sequence_parallel": True, "expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
}
CASES = [  # preset, layout, boundary
    ("dense", "one", "[]"), ("dense", "one", "mlp"), ("dense", "one", "core_attn"), ("dense", "one", "full/uniform/1"),
    ("dense", "one", "full/uniform/2"), ("dense", "one", "full/block/1"), ("dense", "tp", "mlp"), ("dense", "sp", "mlp"),
    ("dense", "sp", "full/uniform/1"), ("dense", "pp", "mlp"), ("dense", "dp", "[]"), ("gqa", "tp", "core_attn"),
    ("gqa_qk_norm", "one", "core_attn+mlp"), ("output_gate", "one", "core_attn"),
    ("moe", "one", "[]"), ("moe", "one", "layernorm"), ("moe", "one", "moe_act"), ("moe", "one", "shared_experts"),
    ("moe", "one", "moe"), ("moe", "one", "layernorm+moe_act+shared_experts"), ("moe", "one", "full/uniform/1"),
    ("moe", "pp", "moe"), ("moe", "ep", "moe_act"), ("moe", "ep", "moe"),
    ("mla", "one", "mla_up_proj"), ("mla", "one", "core_attn+layernorm"), ("mla_query_latent", "one", "mla_up_proj+mlp"),
    ("mla_moe", "one", "mla_up_proj+layernorm+moe_act"), ("mla_moe", "sp+ep", "mla_up_proj+layernorm+moe_act"),
    ("mla_moe", "pp", "full/uniform/1"),
    ("moe", "one", "full/uniform/2"), ("moe_fp32_router", "ep", "moe"), ("moe_gathered", "ep", "moe"),
    ("moe_gathered", "one", "[]"), ("moe_squared_relu", "one", "moe_act"), ("mla_query_latent", "sp", "full/uniform/1"),
    ("mla_moe", "pp", "[]"), ("gdn", "one", "full/uniform/2"), ("output_gate", "tp", "full/uniform/1"),
    ("gdn", "one", "gdn_norm_out"), ("gdn", "tp", "mlp"), ("hybrid", "one", "full/uniform/1"), ("hybrid", "sp", "core_attn"),
]  # fmt: skip


def boundary_of(key: str) -> Boundary:
    if key.startswith("full/"):
        _, method, layers = key.split("/")
        return Boundary.full(method, int(layers))  # type: ignore[arg-type]
    return Boundary.selective([] if key == "[]" else key.split("+"))


def workload_of(preset: str, layout: str, draw: random.Random) -> Workload:
    """A preset with a random sequence, batch and widths."""
    batch = draw.choice([1, 2])
    workload = small(
        preset,
        parallel=LAYOUTS[layout],
        # Several micro batches: a pipeline needs them, and the dummy weight gradients are then there from the second on.
        train={"seq_length": draw.choice([64, 128, 192]), "micro_batch_size": batch, "global_batch_size": 4 * batch},
        stack={"megatron_core": version("megatron-core")},
        model={"ffn_hidden_size": 128 * draw.randint(2, 9), "vocab_size": 256 * draw.randint(2, 5)},
    )
    if workload.model.activation_func == "squared_relu":  # has no fused kernel with a bias
        workload = replace(workload, features=replace(workload.features, bias_activation_fusion=False))
    if workload.model.num_moe_experts:
        count = draw.choice([4, 8])
        experts: dict[str, Any] = {"num_moe_experts": count, "moe_ffn_hidden_size": 64 * draw.randint(2, 9)}
        # Without a coefficient Megatron works out no auxiliary loss, and the coefficient is no field of a workload.
        experts["moe_router_load_balancing_type"] = "none"
        if workload.parallel.expert_model_parallel_size > 1:
            experts["moe_router_topk"] = count  # every expert gets every token: the shares of the ranks are equal
        workload = replace(workload, model=replace(workload.model, **experts))
    return workload


def differences(record: TrialRecord, workload: Workload, boundary: Boundary) -> list[str]:
    """Every phase of every rank that is farther from the ledger than small blocks."""
    prediction = Ledger(workload, variant="stand_in").predict(boundary)
    per_stage = workload.parallel.world_size // workload.parallel.pipeline_model_parallel_size
    wrong = []
    for rank, reported in record.ranks.items():
        said = {(p.iteration, p.phase): p.peak_bytes for p in prediction.stages[rank // per_stage].phases}
        for iteration in reported.iterations:
            name = "first" if iteration["step"] == 1 else "steady"
            for phase in PHASES:
                if phase not in iteration["phases"] or (name, phase) not in said:
                    continue
                measured, expected = iteration["phases"][phase], said[(name, phase)]
                if abs(expected - measured) > SMALL_BLOCKS:
                    wrong.append(f"rank {rank} {name} {phase}: ledger {expected}, measured {measured} ({expected - measured:+d})")
    return wrong


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote("cpu", loop="core", log=tmp_path_factory.mktemp("ledger") / "zygote.log") as made:
        yield made


@pytest.mark.parametrize(("preset", "layout", "key"), CASES)
def test_phases_of_real_steps(zygote: Zygote, tmp_path: Path, preset: str, layout: str, key: str) -> None:
    draw = random.Random(f"{preset} {layout} {key}")
    workload, boundary = workload_of(preset, layout, draw), boundary_of(key)
    spec = TrialSpec(
        number=1,
        workload=workload,
        boundary=boundary,
        world_size=workload.parallel.world_size,
        steps=2,
        backend="cpu",
        loop="core",
        folder=str(tmp_path),
    )
    record = run_trial(spec, zygote=zygote)
    found = check(workload, boundary)
    if found.status == "invalid":  # an older Megatron Core does not know every label
        assert record.failure is not None and record.failure.failure_class == "config_invalid", found.reason
        return
    assert record.completed, record.failure
    wrong = differences(record, workload, Boundary.selective() if found.status == "no_effect" else boundary)
    assert not wrong, f"{workload.train} {workload.model.ffn_hidden_size}\n" + "\n".join(wrong)
