"""Offsets from observations: the seed tables after one control, phases of their own, routing, limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_workloads import small
from test_seed_tables import MOONLIGHT, NEMOTRON, gigabytes, ledger, moonlight

from autotune.boundary.boundary import Boundary
from autotune.ledger.calibration import TERM, CalibratedLedger, Observation, phase_peaks
from autotune.ledger.ledger import Ledger

CONTROL = Boundary.selective()


def seen(modules: tuple[str, ...], peak_gb: float, iterations: tuple[str, ...] = ("first", "steady")) -> Observation:
    return Observation(boundary=Boundary.selective(modules), peak_bytes=round(peak_gb * 1e9), iterations=iterations)


def test_seed_tables_within_half_a_percent_after_one_control() -> None:
    calibrated = CalibratedLedger(ledger("moonlight16b", 4), [seen((), MOONLIGHT[0][1])])
    errors = [gigabytes(calibrated.predict(Boundary.selective(modules))) / peak - 1 for modules, peak, _ in MOONLIGHT]
    calibrated = CalibratedLedger(ledger("nemotron3nano", 16), [seen((), NEMOTRON[0][1], ("first",))])
    errors += [gigabytes(calibrated.predict(Boundary.selective(modules)), when) / peak - 1 for modules, peak, when in NEMOTRON]
    assert sum(map(abs, errors)) / len(errors) < 0.0025
    assert max(map(abs, errors)) < 0.006


def test_a_row_that_binds_in_another_phase_gives_that_phase_its_own_offset() -> None:
    """The optimizer's offset from ``moe_act`` puts the rows at the same wall within 40 MB."""
    rows = [seen((), 36.618), seen(("moe_act",), 35.941)]
    calibrated = CalibratedLedger(ledger("moonlight16b", 4), rows)
    offsets = calibrated.calibration.phase_offsets_bytes
    assert set(offsets) == {moonlight().phase, "optimizer"}
    for modules, peak in ((("mla_up_proj",), 35.902), (("mla_up_proj", "mlp"), 35.917), (("layernorm", "moe_act"), 35.949)):
        assert gigabytes(calibrated.predict(Boundary.selective(modules))) == pytest.approx(peak, abs=0.04)


def test_no_observation_changes_nothing() -> None:
    plain = Ledger(small("moe"))
    assert CalibratedLedger(plain).predict(CONTROL) == plain.predict(CONTROL)
    assert CalibratedLedger(plain, [Observation(boundary=CONTROL)]).predict(CONTROL) == plain.predict(CONTROL)


@given(
    offsets=st.dictionaries(
        st.sampled_from(["forward", "loss", "backward", "optimizer", "grad_sync"]), st.integers(-(10**6), 10**7), min_size=1
    )
)
def test_offsets_of_phases_are_recovered_and_terms_still_add_up(offsets: dict[str, int]) -> None:
    plain = Ledger(small("moe"))
    said = phase_peaks(plain.predict(CONTROL), ("first", "steady"))
    measured = {phase: said[phase] + offset for phase, offset in offsets.items()}
    control = Observation(boundary=CONTROL, peak_bytes=max(measured.values()), phases=measured)
    calibrated = CalibratedLedger(plain, [control])
    prediction = calibrated.predict(Boundary.selective(["moe"]))
    before = plain.predict(Boundary.selective(["moe"]))
    for stage, old in zip(prediction.stages, before.stages, strict=True):
        for peak, was in zip(stage.phases, old.phases, strict=True):
            assert peak.peak_bytes == sum(peak.terms.values())
            assert peak.terms[TERM] == peak.peak_bytes - was.peak_bytes
            assert peak.phase not in offsets or peak.terms[TERM] == offsets[peak.phase]
        assert stage.peak_bytes == max(peak.peak_bytes for peak in stage.phases)
    assert prediction.peak_bytes == max(stage.peak_bytes for stage in prediction.stages)
    assert prediction.peak_p05_bytes - before.peak_p05_bytes == prediction.peak_bytes - before.peak_bytes


def test_phases_of_one_run_do_not_hide_another_phase() -> None:
    """A control that reports the optimizer's peak, below its own, moves the wall of settings that end there."""
    plain = Ledger(small("dense"))
    said = phase_peaks(plain.predict(CONTROL), ("first", "steady"))
    phases = {"loss": said["loss"], "optimizer": said["optimizer"] + 5_000_000}
    control = Observation(boundary=CONTROL, peak_bytes=max(phases.values()), phases=phases)
    assert CalibratedLedger(plain, [control]).predict(Boundary.full("uniform", 1)).phase == "optimizer"


def test_uneven_routing_and_limits_come_from_the_worst_seen() -> None:
    workload = small("moe", parallel={"world_size": 2, "expert_model_parallel_size": 2}, train={"global_batch_size": 2})
    plain = Ledger(replace(workload, model=replace(workload.model, moe_router_force_load_balancing=False)))
    two = [
        Observation(boundary=CONTROL, load_factor=1.1, usable_bytes=70_000_000),
        Observation(boundary=CONTROL, load_factor=1.3, usable_bytes=80_000_000),
    ]
    found = CalibratedLedger(plain, two)
    assert (found.calibration.load_factor, found.calibration.usable_bytes) == (1.3, 70_000_000)
    assert found.predict(CONTROL).peak_bytes > plain.predict(CONTROL).peak_bytes
    assert found.ledger.load_factor == 1.3
