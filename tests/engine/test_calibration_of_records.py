"""Each trial's prediction against its measurement, and what records teach the ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.engine.calibration import Calibrator, observation_of
from autotune.ledger.ledger import Ledger
from autotune.trial.record import Failure, RankRecord, TrialRecord
from autotune.workload.catalog import load

WORKLOAD = load("moonlight16b")
LEDGER = Ledger(WORKLOAD)
CONTROL, OTHER = Boundary.selective(), Boundary.selective(["moe_act"])


def record(boundary: Boundary, peak_bytes: int, **changes: Any) -> TrialRecord:
    rank = RankRecord(rank=0, allocated_peak_bytes=peak_bytes)
    plain = TrialRecord(
        number=1,
        kind="measured",
        boundary=boundary,
        workload_digest="w",
        world_size=1,
        completed=True,
        ranks={0: rank},
        steps_run=4,
    )
    return replace(plain, **changes)


def test_error_of_the_first_trial_is_the_ledgers_and_of_the_next_the_calibrated_ones() -> None:
    calibrator = Calibrator(LEDGER)
    said = {boundary: LEDGER.predict(boundary).peak_bytes for boundary in (CONTROL, OTHER)}
    first = record(CONTROL, said[CONTROL] + 10**9)
    error = calibrator.error(first)
    assert error is not None and error.calibrated_bytes is None
    assert error.error_ratio == pytest.approx(said[CONTROL] / (said[CONTROL] + 10**9) - 1)
    calibrator.take(first)
    after = calibrator.error(record(OTHER, said[OTHER] + 10**9))
    assert after is not None and after.calibrated_bytes == said[OTHER] + 10**9
    assert after.error_ratio == pytest.approx(0.0, abs=1e-9)
    assert "(+0.00 %)" in after.text


def test_predictions_and_runs_out_of_memory_teach_no_offset() -> None:
    calibrator = Calibrator(LEDGER)
    calibrator.take(record(CONTROL, 10**9, kind="predicted"))
    oom = Failure(failure_class="oom_step", stage="forward", rank=0, step=2, requested_bytes=2**30)
    failed = record(CONTROL, 70 * 10**9, completed=False, failure=oom)
    calibrator.take(failed)
    assert calibrator.error(failed) is None
    assert calibrator.calibration.observations == 0 and calibrator.calibration.offset_bytes == 0
    assert calibrator.calibration.usable_bytes == 70 * 10**9 + 2**30


@pytest.mark.parametrize("kind", ["measured", "switched", "replayed"])
def test_every_kind_of_measurement_teaches(kind: str) -> None:
    calibrator = Calibrator(LEDGER)
    calibrator.take(record(CONTROL, LEDGER.predict(CONTROL).peak_bytes + 5, kind=kind))
    assert calibrator.calibration.offset_bytes == 5


def test_hot_expert_rank_and_the_device_outside_the_allocator() -> None:
    ranks = {
        0: RankRecord(rank=0, allocated_peak_bytes=1, tokens_per_expert=(10, 20), reserved_peak_bytes=5, device_used_bytes=1005),
        1: RankRecord(rank=1, allocated_peak_bytes=2, tokens_per_expert=(30, 60)),
    }
    seen = observation_of(record(CONTROL, 0, ranks=ranks, world_size=2), WORKLOAD)
    assert seen is not None
    assert seen.load_factor == pytest.approx(90 / 60)
    assert seen.usable_bytes is not None and 70e9 < seen.usable_bytes < 90e9
    partly = observation_of(record(CONTROL, 0, ranks=ranks, world_size=4), WORKLOAD)
    assert partly is not None and partly.load_factor is None
