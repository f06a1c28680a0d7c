"""Where teams keep results: which trackers are taken, and what a launch tells them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from autotune.cluster.trackers import check_trackers, tracker_callbacks
from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.errors import RequestError
from autotune.search.outcome import Recommendation


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
def test_each_launch_is_a_run_of_every_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One search on this machine, logged to MLflow in a database of its own and, where it is installed, to W&B offline."""
    pytest.importorskip("mlflow")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    wandb = ("wandb:test",) if importlib.util.find_spec("wandb") else ()
    answer = run(
        Request(recipe="llama_tiny", mem_target_bytes=60_000_000, log_to=(f"mlflow:{store}", *wandb), out=tmp_path / "run")
    )
    assert answer.verdict == "pass"
    launches = len(list((tmp_path / "run").glob("trials/*/record.json")))
    assert launches >= 1
    _check_mlflow(store, answer, launches)
    if wandb:
        written = [path.read_bytes() for path in tmp_path.rglob("run-*.wandb")]
        assert len(written) == launches
        # Offline, wandb's writer may be ended with Ray's logging actor before it has flushed a launch of a few seconds.
        assert any(b"peak_bytes" in content for content in written)


def _check_mlflow(store: str, answer: Recommendation, launches: int) -> None:
    """Every launch is a run of the recipe's experiment, with the figures of the answer among them."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("llama_tiny")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == launches
    assert answer.peak_bytes in [run.data.metrics.get("peak_bytes") for run in runs]
    assert {run.info.status for run in runs} == {"FINISHED"}


def test_an_mlflow_store_that_does_not_answer_is_refused_before_a_launch(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    with pytest.raises(RequestError, match=r"mlflow:sqlite:///mlflow\.db"):
        check_trackers([f"mlflow:file://{tmp_path}/mlruns"])
