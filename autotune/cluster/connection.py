"""The connection to Ray: a cluster by its address, or a small one of our own on the loopback interface."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.cluster.knock import knock
from autotune.cluster.rays_words import first_line
from autotune.errors import RequestError, StoppedError

NAMESPACE = "autotune"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # Trials are given absolute paths; a changed directory would only surprise.
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_V2_MIGRATION_WARNINGS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # Results are in the run directory, once.
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000",  # Resume is a new Tuner over the study's journal.
    "TUNE_WARN_THRESHOLD_S": "30",
}
_COMMON: Mapping[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
_NICENESS = "RAY_worker_niceness"
"""How much nicer than its raylet Ray makes a worker, and so all that it starts: 15 by itself (ray_config_def.h, 2.60). A rank
is as nice as who started the cluster, as under torchrun: else every other process of the node is served before it."""
_JOBS_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""What a submitted job was given (ray_constants.py); the same variable twice is an error to ``ray.init``."""
_LOOPBACK = "127.0.0.1"
"""Its servers listen on loopback alone for exactly this address (gcs_server.cc, node_manager.cc), else on every interface."""
_LOCAL_STORE_BYTES = 128 * 2**20


def connect(address: str | None, *, local_cpus: int) -> Mapping[str, float]:
    """Connect to Ray; what the cluster has, by resource.

    Args:
        address: ``host:port``, ``auto`` or ``ray://...``; None is ``RAY_ADDRESS`` (set inside a submitted job), else a
            cluster of our own that ends with this process.
        local_cpus: CPUs to declare for a cluster of our own: a rank slot takes one.

    Raises:
        RequestError: There is no cluster at the address.
        StoppedError: The cluster lets nobody in without its token, or does not answer; one of our own did not start, twice.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    address = address or os.environ.get("RAY_ADDRESS") or None
    if not ray.is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if address is None or address == "local":
                _start_own(local_cpus)
            else:
                _join(address)
    return dict(ray.cluster_resources())


def _start_own(cpus: int) -> None:
    import ray

    for attempt in (1, 2):
        try:
            with _for_this_machine_alone():
                ray.init(
                    address="local",
                    num_cpus=cpus,
                    num_gpus=_local_gpus(),
                    include_dashboard=False,
                    object_store_memory=_LOCAL_STORE_BYTES,
                    _node_ip_address=_LOOPBACK,
                    _system_config={} if _NICENESS in os.environ else {"worker_niceness": 0},
                    **_COMMON,
                )
        except Exception as error:  # Ray has no type of its own for a cluster that does not start.
            disconnect()
            if attempt == 2:
                text = f"Ray did not start on this machine ({first_line(error)}); it may be too busy: try again with --resume"
                raise StoppedError(text) from error
        else:
            return


@contextlib.contextmanager
def _for_this_machine_alone() -> Iterator[None]:
    """Let Ray take the loopback address as it is, which it otherwise replaces by the machine's own (2.60, services.py:
    resolve_ip_for_localhost): what it does by itself on systems where it supports no clusters of several machines.

    The variable for it (RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0) is read when Ray is imported, and would hold for clusters
    that are joined, too.
    """
    from ray._private import ray_constants

    clusters = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = clusters


def _join(address: str) -> None:
    import ray

    try:
        knock(address)
        ray.init(address=address, runtime_env=_workers_as_nice_as_their_raylet(), **_COMMON)
    except (ConnectionError, ValueError, RuntimeError) as error:
        rule = f"no Ray cluster answers there ({first_line(error)})"
        raise RequestError("--address", address, rule, "start one, or leave --address out") from None


def _workers_as_nice_as_their_raylet() -> Mapping[str, Any]:
    """What workers on a cluster that is not ours are started with; a niceness that the user has chosen stays."""
    if _NICENESS in os.environ.get(_JOBS_CONFIG, ""):
        return {}
    return {"env_vars": {_NICENESS: os.environ.get(_NICENESS, "0")}}


def disconnect() -> None:
    """Leave the cluster; one of our own ends."""
    import ray

    with contextlib.suppress(Exception):
        ray.shutdown()


def control_store_of(address: str | None) -> str | None:
    """``host:port`` of the connected cluster's control store; None for a client of it (``ray://``), which does not reach it."""
    import ray

    if (address or os.environ.get("RAY_ADDRESS") or "").startswith("ray://"):
        return None
    return str(ray.get_runtime_context().gcs_address)


def is_own(address: str | None) -> bool:
    """Whether ``connect`` starts a cluster of its own for the address."""
    return (address or os.environ.get("RAY_ADDRESS") or "local") == "local"


def _local_gpus() -> int:
    from autotune.cluster.gpus import read_gpus

    return len(read_gpus())
