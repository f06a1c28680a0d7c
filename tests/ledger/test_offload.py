"""Activations on the host: what leaves the device, and what waits on it."""

from __future__ import annotations

from typing import Any

from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.coverage import coverage
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import PhasePeak
from autotune.workload.workload import Workload

LONG = {"seq_length": 8192, "global_batch_size": 4}
H = 2 * 8192 * 256
DISPATCHED = 2 * 2 * 8192 * 256
FC1 = 2 * 2 * 8192 * 2 * 512


def loss(workload: Workload, *labels: str) -> PhasePeak:
    found = Ledger(workload).predict(Boundary.selective(labels))
    return next(peak for peak in found.stages[0].phases if (peak.iteration, peak.phase) == ("steady", "loss"))


def moe(layers: int = 4, **features: Any) -> Workload:
    return small("moe", model={"num_layers": layers}, train=LONG, features=features)


def fine(*modules: str) -> dict[str, Any]:
    return {"fine_grained_activation_offloading": True, "offload_modules": modules}


def test_expert_activations_leave_all_layers_but_the_last() -> None:
    """ChunkOffloadHandler.should_bulk_offload: the group whose backward comes next stays."""
    here, there = loss(moe()), loss(moe(**fine("expert_fc1", "moe_act")))
    assert here.terms["moe"] - there.terms["moe"] == 3 * (DISPATCHED + FC1)
    assert {name: there.terms[name] for name in ("hidden", "attention", "norm")} == {
        name: here.terms[name] for name in ("hidden", "attention", "norm")
    }


def test_a_tensor_with_a_saver_outside_stays() -> None:
    """The norm's output is the router's input too; only the residual, which the norm alone saves, leaves."""
    here, there = loss(moe()), loss(moe(**fine("mlp_norm")))
    assert here.terms["norm"] == there.terms["norm"]
    assert here.terms["hidden"] - there.terms["hidden"] == 3 * H


def test_tensors_under_two_to_the_twenty_elements_stay() -> None:
    tiny = {"seq_length": 128, "global_batch_size": 4}
    workload = small("moe", train=tiny)
    assert loss(workload) == loss(small("moe", train=tiny, features=fine("expert_fc1", "moe_act", "core_attn")))


def test_what_a_label_drops_is_not_copied() -> None:
    here, there = loss(moe(), "moe"), loss(moe(**fine("mlp_norm")), "moe")
    assert here.terms["hidden"] - there.terms["hidden"] == 3 * H
    assert there.terms["moe"] == 4 * 8192 * (3 * 4 + 8 * 2)  # what the dispatchers' attributes hold, whatever the label


def test_backward_has_what_comes_next_and_what_left_last() -> None:
    """bulk_reload fetches the group before; record_stream keeps the block of a group until its copy to the host has ended."""
    found = Ledger(moe(**fine("expert_fc1", "moe_act"))).predict(Boundary.selective())
    back = next(peak for peak in found.stages[0].phases if (peak.iteration, peak.phase) == ("steady", "backward"))
    assert back.terms["offload"] == 2 * (DISPATCHED + FC1)


def test_forward_has_what_left_last() -> None:
    here, there = (
        next(
            peak
            for peak in Ledger(moe(**features)).predict(Boundary.selective()).stages[0].phases
            if (peak.iteration, peak.phase) == ("steady", "forward")
        )
        for features in ({}, fine("expert_fc1", "moe_act"))
    )
    # Four layers: the last one stays, the one before it is on its way, two are gone.
    assert here.peak_bytes - there.peak_bytes == 2 * (DISPATCHED + FC1)


def test_whole_layers_leave_under_cpu_offloading() -> None:
    plain = small("dense", model={"num_layers": 4}, train=LONG)
    away = small("dense", model={"num_layers": 4}, train=LONG, features={"cpu_offloading": True, "cpu_offloading_num_layers": 3})
    assert 4 * loss(away).terms["attention"] == loss(plain).terms["attention"]
    assert loss(plain).terms["hidden"] - loss(away).terms["hidden"] == 3 * 2 * H
    assert coverage(away).covered
