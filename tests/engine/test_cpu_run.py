"""A measured search on this machine's CPU, from request to recommendation: real training steps, real out-of-memory errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.records import load_json
from autotune.trial.record import TrialRecord

pytestmark = pytest.mark.slow


def test_measured_search_of_a_tiny_recipe(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    control = run(Request(recipe="llama_tiny", mem_target_bytes=60_000_000, out=tmp_path / "wide"))
    assert (control.kind, control.verdict, control.name, control.ranks_measured) == ("measured", "pass", "[]", 2)
    assert control.peak_bytes is not None

    # 85 % of what the control was seen to need: it cannot be the answer, and something has to run out of memory or be left.
    limit = round(control.peak_bytes * 0.85)
    answer = run(Request(recipe="llama_tiny", mem_target_bytes=limit, out=tmp_path / "tight"))
    assert (answer.kind, answer.verdict, answer.exit_status) == ("measured", "pass", 0)
    assert answer.name != "[]" and answer.peak_bytes is not None and answer.peak_bytes <= limit
    assert answer.steps_run >= 4 and answer.ranks_measured == answer.world_size == 2
    paths = sorted((tmp_path / "tight").glob("trials/*/record.json"))
    records = [load_json(path, TrialRecord) for path in paths]
    assert [r.number for r in records] == list(range(len(records))) and len(records) == len(answer.trials)
    for path, record in zip(paths, records, strict=True):
        assert record.kind == ("switched" if (path.parent / "survey.json").exists() else "measured")
        if record.failure is not None:
            assert record.failure.failure_class.startswith("oom") and record.failure.rank is not None
    # A survey holds its batch and its weights still: only fresh launches train.
    whole = [r for r in records if r.completed and r.kind == "measured"]
    losses = {tuple(i["loss"] for i in r.ranks[0].iterations) for r in whole}
    assert len(losses) == 1  # recompute changes no bit of the loss

    again = run(Request(recipe="llama_tiny", mem_target_bytes=limit, out=tmp_path / "tight", resume=True))
    assert (again.name, len(again.trials)) == (answer.name, len(answer.trials))

    # The survey of the first run was of the same workload and stack: another limit needs none of its own.
    reused = run(Request(recipe="llama_tiny", mem_target_bytes=limit, out=tmp_path / "reused", evidence=str(tmp_path / "wide")))
    assert (reused.kind, reused.verdict, reused.name) == ("measured", "pass", answer.name)
    assert not list((tmp_path / "reused").glob("trials/*/survey.json")) and len(reused.trials) < len(answer.trials)
    assert any("survey of an earlier run" in warning and "in place of a launch" in warning for warning in reused.warnings)
