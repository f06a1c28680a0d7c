"""Weights & Biases and MLflow, through Ray Tune's own callbacks: each trial is a run there, under the study's project."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from autotune.errors import RequestError

_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow"}
PROJECT = "autotune"
"""Where no other is named."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse what cannot be logged to, before anything is launched.

    Raises:
        RequestError: A tracker that is not known, whose package is not installed, or that does not answer.
    """
    for name in names:
        kind = name.partition(":")[0]
        if kind not in _PACKAGES:
            raise RequestError("--log-to", name, "is neither wandb nor mlflow", "write wandb[:PROJECT] or mlflow[:TRACKING_URI]")
        if importlib.util.find_spec(_PACKAGES[kind]) is None:
            raise RequestError("--log-to", name, f"{kind} is not installed here", f"install it: pip install {_PACKAGES[kind]}")
        if kind == "mlflow":
            _check_mlflow(name)


def _check_mlflow(name: str) -> None:
    """Ask the tracking server before the first launch does."""
    from mlflow import MlflowClient

    try:
        MlflowClient(tracking_uri=name.partition(":")[2] or None).search_experiments(max_results=1)
    except Exception as error:  # MLflow's own, its database's, its server's
        rule = " ".join(str(error).split())[:200]
        raise RequestError("--log-to", name, rule, "name a tracking server or a database: mlflow:sqlite:///mlflow.db") from None


def tracker_callbacks(names: Sequence[str], *, group: str) -> list[Any]:
    """Ray Tune callbacks; ``wandb:PROJECT`` groups its runs by ``group``, ``mlflow:URI`` makes an experiment of it.

    Accounts and keys are read by the packages themselves, from where they keep them.
    """
    callbacks: list[Any] = []
    for name in names:
        kind, _, rest = name.partition(":")
        if kind == "wandb":
            from ray.air.integrations.wandb import WandbLoggerCallback

            callbacks.append(WandbLoggerCallback(project=rest or PROJECT, group=group, log_config=False))
        else:
            from ray.air.integrations.mlflow import MLflowLoggerCallback

            callbacks.append(MLflowLoggerCallback(tracking_uri=rest or None, experiment_name=group))
    return callbacks
