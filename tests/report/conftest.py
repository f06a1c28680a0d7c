"""Run directories of hand-written runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_samples import sample_workload

from autotune.records import dump_json, write_atomically
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord
from autotune.workload.workload import Workload


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run directory of given records and return it."""

    def write(recommendation: Recommendation, *trials: TrialRecord, workload: Workload | None = None) -> Path:
        folder = tmp_path / "run"
        folder.mkdir(exist_ok=True)
        files: dict[str, Any] = {"recommendation.json": recommendation, "workload.json": workload or sample_workload()}
        for trial in trials:
            (folder / "trials" / f"{trial.number:03}").mkdir(parents=True)
            files[f"trials/{trial.number:03}/record.json"] = trial
        for name, record in files.items():
            write_atomically(folder / name, dump_json(record))
        return folder

    return write
