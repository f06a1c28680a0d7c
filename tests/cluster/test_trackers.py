"""Where teams keep results: which trackers are taken, and what a launch tells them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from autotune.cluster.trackers import check_trackers, tracker_callbacks
from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.errors import RequestError


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(RequestError, match="is neither wandb nor mlflow"):
        check_trackers(["comet:me"])


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"mlflow is not installed here; install it: pip install mlflow"):
        check_trackers(["mlflow"])


def test_a_prediction_has_nothing_to_log(tmp_path: Path) -> None:
    request = Request(
        recipe="nemotron3nano", mem_target_bytes=75 * 10**9, backend="predict", log_to=("wandb",), out=tmp_path / "run"
    )
    with pytest.raises(RequestError, match="the predict backend launches nothing to log"):
        run(request)
    assert not (tmp_path / "run").exists()


def test_callbacks_are_rays_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from ray.air.integrations.wandb import WandbLoggerCallback

    (callback,) = tracker_callbacks(["wandb:team"], group="nemotron3nano")
    assert isinstance(callback, WandbLoggerCallback)
    assert (callback.project, callback.group) == ("team", "nemotron3nano")
    assert tracker_callbacks([], group="x") == []


@pytest.mark.slow
def test_each_launch_is_a_run_of_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline: what would be uploaded lies in a folder."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    answer = run(Request(recipe="llama_tiny", mem_target_bytes=60_000_000, log_to=("wandb:test",), out=tmp_path / "run"))
    assert answer.verdict == "pass"
    launches = len(list((tmp_path / "run").glob("trials/*/record.json")))
    written = [path.read_bytes() for path in tmp_path.rglob("run-*.wandb")]
    assert len(written) == launches >= 1
    # Offline, wandb's writer may be ended with Ray's logging actor before it has flushed a launch of a few seconds.
    assert any(b"peak_bytes" in content for content in written)
    assert os.environ["WANDB_MODE"] == "offline"


def test_an_mlflow_store_that_does_not_answer_is_refused_before_a_launch(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    with pytest.raises(RequestError, match=r"mlflow:sqlite:///mlflow\.db"):
        check_trackers([f"mlflow:file://{tmp_path}/mlruns"])
