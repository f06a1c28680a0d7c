"""Verdicts: what passes, what fails, and what is not known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import GIB, gates, iterations, oom, rank, record

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins, to_builtins
from autotune.trial.gates import GateSettings
from autotune.trial.record import Failure, TrialRecord
from autotune.trial.verdict import judge
from autotune.units import parse_size_bytes
from autotune.workload.catalog import load


def test_units_and_hot_rank() -> None:
    """Case P1: 66.297 GB on rank 0, 72.9 GiB on rank 3, limit 75GB."""
    limit = gates(parse_size_bytes("75GB"))
    rank0, rank3 = rank(0, 66.297e9), rank(3, 72.9 * GIB)
    both = judge([record([rank0, rank3], world_size=2)], limit)
    assert (both.status, both.hot_rank) == ("fail", 3)
    assert both.peak_bytes == pytest.approx(78.28e9, abs=5e6)
    assert "78.276 GB on rank 3, limit 75.000 GB" in both.reason
    alone = judge([record([rank0], world_size=4)], limit)
    assert alone.status == "unproven" and alone.eligible
    assert alone.reason.startswith("rank 0 only, of 4")


def test_peak_is_the_maximum_over_ranks_and_all_steps() -> None:
    early = [{"step": 1, "loss": 7.0, "grad_norm": 1.0, "phases": {"optimizer": round(72.9 * GIB)}}, *iterations(9)]
    found = judge([record([rank(0, 61.7 * GIB), rank(5, 60 * GIB, steps=early)])], gates(70 * GIB))
    assert (found.status, found.hot_rank, found.peak_bytes) == ("fail", 5, round(72.9 * GIB))


def test_every_rank_within_the_limit_passes() -> None:
    found = judge([record([rank(0, 60e9), rank(1, 61e9)])], gates(75e9))
    assert (found.status, found.eligible, found.near_limit, found.step_ms) == ("pass", True, False, 100.0)
    assert found.reason == "10 steps run; allocated peak 61.000 GB on rank 1"


def test_fewer_ranks_than_the_world_is_unproven() -> None:
    found = judge([record([rank(0, 60e9), rank(1, 61e9)], world_size=8)], gates(75e9))
    assert (found.status, found.ranks_measured, found.world_size) == ("unproven", 2, 8)
    assert found.reason.startswith("2 of 8 ranks reported")


@pytest.mark.parametrize(("warmup", "steady", "steps", "status"), [
    (None, 3, 3, "unproven"), (None, 3, 4, "pass"), (3, 3, 6, "unproven"), (3, 3, 7, "pass"), (0, 3, 5, "pass"),
    (3, 5, 8, "unproven"),
])  # fmt: skip
def test_steps_after_optimizer_state_and_graph_capture(warmup: int | None, steady: int, steps: int, status: str) -> None:
    run = record([rank(0, 60e9, steps=iterations(steps))], steps_run=steps)
    assert judge([run], gates(75e9, warmup_steps=warmup, steady_steps=steady)).status == status


def test_graphs_that_were_not_captured_are_unproven() -> None:
    run = record([rank(0, 60e9)], details={"graphs_captured": False})
    assert judge([run], gates(75e9, warmup_steps=3)).status == "unproven"
    assert judge([run], gates(75e9)).status == "pass"


def test_a_later_death_fails_with_its_stage_and_the_peak_is_a_lower_bound() -> None:
    found = judge([oom([rank(0, 60e9, steps=iterations(1))], step=2, on_rank=3)], gates(75e9))
    assert found.status == "fail" and not found.eligible and found.peak_is_lower_bound
    assert found.reason == "oom_capacity in first_forward, rank 3, step 2"
    assert found.step_ms is None


@pytest.mark.parametrize("steps", [iterations(10, grad_norm=0.0), iterations(10, grad_norm=None)])
def test_no_gradient_is_invalid_whatever_memory_and_time(steps: tuple[dict[str, float], ...]) -> None:
    found = judge([record([rank(0, 1e9, steps=steps)])], gates(75e9))
    assert found.status == "invalid" and "no_gradient" in found.reason


@pytest.mark.parametrize("change", [{"loss": float("nan")}, {"grad_norm": float("inf")}, {"skipped": 1}, {"nan": True}])
def test_not_finite_or_skipped_is_invalid(change: dict[str, float]) -> None:
    steps = list(iterations(10))
    steps[4] = {**steps[4], **change}
    found = judge([record([rank(0, 1e9), rank(1, 1e9, steps=steps)])], gates(75e9))
    assert found.status == "invalid" and "rank 1" in found.reason and "5" in found.reason


def test_loss_has_to_match_the_control() -> None:
    control = record([rank(0, 60e9)], boundary=Boundary.selective(), number=0)
    other = record([rank(0, 50e9, steps=iterations(10, loss=6.9 + 1e-6))], number=1)
    assert judge([other], gates(75e9, loss_ratio=0.01), control).status == "pass"
    exact = judge([other], gates(75e9, loss_ratio=0.0), control)
    assert exact.status == "invalid" and exact.reason.startswith("loss 6.900001 at step 1, rank 0; [] has 6.9")
    dropout = judge([other], gates(75e9, loss_ratio=None), control)
    assert dropout.status == "pass" and "dropout" in dropout.flags[0]


def test_growing_peak_is_flagged_not_steady() -> None:
    growing = [{**i, "phases": {"backward": round(50e9 * (1 + 0.006 * i["step"]))}} for i in iterations(10)]
    found = judge([record([rank(0, 50e9, steps=growing)])], gates(75e9))
    assert found.status == "pass" and any(flag.startswith("not steady") for flag in found.flags)
    level = [{**i, "phases": {"backward": round(50e9 + i["step"])}} for i in iterations(10)]
    assert judge([record([rank(0, 50e9, steps=level)])], gates(75e9)).flags == ()


def test_near_the_limit_asks_for_a_repeat_and_two_outcomes_are_flaky() -> None:
    first = record([rank(0, 74e9)], number=0)
    assert judge([first], gates(75e9)).near_limit
    assert not judge([record([rank(0, 73e9)])], gates(75e9)).near_limit
    again = judge([first, record([rank(0, 74.2e9)], number=1, repeat_reason="near_limit")], gates(75e9))
    assert (again.status, again.peak_bytes, again.near_limit, again.runs) == ("pass", 74_200_000_000, False, 2)
    flaky = judge([first, record([rank(0, 75.5e9)], number=1, repeat_reason="near_limit")], gates(75e9))
    assert (flaky.status, flaky.eligible, flaky.peak_bytes) == ("flaky", False, 75_500_000_000)
    assert flaky.reason == "flaky: 1 pass, 1 over the limit"


def test_teardown_hang_keeps_the_result() -> None:
    hang = Failure(failure_class="hang", stage="teardown", rank=1)
    found = judge([record([rank(0, 60e9), rank(1, 60e9)], failure=hang)], gates(75e9))
    assert found.status == "pass" and "result kept" in found.flags[0]


def test_infrastructure_says_nothing_about_the_boundary() -> None:
    lost = Failure(failure_class="rank_killed", stage="backward", rank=1)
    down = record([rank(0, 60e9)], failure=lost, completed=False, world_size=2)
    found = judge([down], gates(75e9))
    assert (found.status, found.infrastructure, found.eligible) == ("unproven", True, False)
    good = record([rank(0, 60e9), rank(1, 60e9)], number=1, repeat_reason="infrastructure")
    assert judge([down, good], gates(75e9)).status == "pass"


def test_config_error_is_invalid_never_out_of_memory() -> None:
    wrong = Failure(failure_class="config_invalid", stage="model_build", rank=0, message="AssertionError")
    found = judge([record([rank(0, 1e9)], failure=wrong, completed=False)], gates(75e9))
    assert found.status == "invalid"


def test_allocator_run_replaces_the_fragmentation_failure() -> None:
    broken = Failure(failure_class="oom_fragmentation", stage="backward", rank=0, step=2)
    first = record([rank(0, 60e9)], failure=broken, completed=False)
    assert judge([first], gates(75e9)).status == "fail"
    second = record([rank(0, 60e9)], number=1, repeat_reason="allocator")
    assert judge([first, second], gates(75e9)).status == "pass"


def test_late_out_of_memory_and_thin_margin() -> None:
    """Case P14 (its figures are made up)."""
    selective, full = Boundary.selective(["core_attn", "moe_act"]), Boundary.full("uniform", 1)
    whole = record([rank(0, 69.9 * GIB)], boundary=selective)
    late = oom([rank(0, 69.9 * GIB)], step=6, boundary=selective, number=1)
    wide = record([rank(0, 64.1 * GIB, reserved=71.5 * GIB)], boundary=full, number=2, step_ms=(106.0,))

    at_75 = judge([whole, late], gates(75e9))
    assert at_75.status == "fail" and at_75.reason.startswith("over the limit: allocated peak 75.055 GB")
    passing = judge([wide], gates(75e9))
    assert passing.status == "pass" and passing.peak_bytes == pytest.approx(68.83e9, abs=1e7)
    assert passing.flags == ("reserved peak 76.773 GB on rank 0 is over the limit 75.000 GB",)
    at_78 = judge([whole, late], gates(78e9))
    assert (at_78.status, at_78.reason, at_78.eligible) == ("flaky", "flaky: 1 pass, 1 OOM", False)
    assert judge([wide], gates(78e9)).status == "pass"


@pytest.mark.parametrize("completed", [True, False])
def test_head_of_a_run_reads_as_its_steps_never_as_fits(completed: bool) -> None:
    """Case P14 b: only steps 1 to 5 were supplied."""
    head = record([rank(0, 69.9 * GIB, steps=iterations(5))], steps_run=5, completed=completed)
    found = judge([head], gates(78e9))
    assert "5 steps run" in found.reason and "fit" not in found.reason
    assert found.status == ("pass" if completed else "unproven")
    assert found.eligible is completed


def test_predicted_and_switched_never_pass() -> None:
    for kind in ("predicted", "switched"):
        found = judge([replace(record([rank(0, 60e9)]), kind=kind)], gates(75e9))
        assert found.status == "unproven" and found.eligible


peaks = st.integers(min_value=10**9, max_value=10**11)
records = st.builds(
    lambda sizes, limit, outcome: (
        [record([rank(i, s, steps=iterations(4)) for i, s in enumerate(sizes)], steps_run=4) if good
         else oom([rank(i, s) for i, s in enumerate(sizes)]) for good in outcome],
        limit,
    ),
    st.lists(peaks, min_size=1, max_size=4), peaks, st.lists(st.booleans(), min_size=1, max_size=3),
)  # fmt: skip


@given(records)
def test_no_pass_with_a_peak_over_the_limit_or_a_failure(case: tuple[list[TrialRecord], int]) -> None:
    runs, limit = case
    found = judge(runs, gates(limit))
    top = max(r.allocated_peak_bytes for run in runs for r in run.ranks.values())
    if found.eligible:
        assert top <= limit and all(run.failure is None for run in runs)
    if all(run.failure is None for run in runs) and top <= limit:
        assert found.status == "pass"
    assert from_builtins(to_builtins(found), type(found), setting="verdict") == found


@given(st.lists(peaks, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_order_in_which_ranks_reported_changes_nothing(sizes: list[int], random: object) -> None:
    ranks = [rank(i, s, steps=iterations(4)) for i, s in enumerate(sizes)]
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert judge([record(ranks)], gates(5e10)) == judge([record(shuffled)], gates(5e10))


def test_a_gated_shared_expert_is_compared_within_a_band() -> None:
    """Its checkpoint adds 16-bit gradients in another order, on any machine: not the control's to the bit, and valid."""
    bands = [
        GateSettings.for_workload(load(alias), 10**9, to_the_bit=True).loss_ratio
        for alias in ("qwen3_moe_tiny", "qwen3_next_tiny")
    ]
    assert bands == [0.0, 0.01]
