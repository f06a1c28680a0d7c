"""A cluster that does not start or does not answer is one line, never a traceback."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from marked import listening

from autotune.cluster import connection
from autotune.errors import ExitStatus, RequestError, StoppedError
from autotune.trial.processes import descendants


def test_a_cluster_of_our_own_that_does_not_start_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    tried: list[dict[str, Any]] = []

    def init(**options: Any) -> None:
        tried.append(options)
        raise Exception("The current node timed out during startup. This could happen")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(StoppedError, match=r"Ray did not start on this machine \(The current node timed out") as stopped:
        connection.connect(None, local_cpus=2)
    assert len(tried) == 2 and stopped.value.exit_status == ExitStatus.STOPPED
    # What speaks to it does so over loopback.
    assert all(options["_node_ip_address"].startswith("127.") and options["include_dashboard"] is False for options in tried)


def test_an_address_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(**options: Any) -> None:
        raise ConnectionError(f"Could not find any running Ray instance at {options['address']}\nmore")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(RequestError, match=r"--address='10.0.0.9:1': no Ray cluster answers there \(Could not find any"):
        connection.connect("10.0.0.9:1", local_cpus=2)


def test_whose_cluster_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert connection.is_own(None) and connection.is_own("local") and not connection.is_own("auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not connection.is_own(None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_of_our_own_listens_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every listening socket of this process and of all that it started, as the kernel tells it."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = connection.connect(None, local_cpus=1)
    try:
        assert found["CPU"] == 1 and connection.control_store_of(None).startswith("127.0.0.1:")  # type: ignore[union-attr]
        places = listening([os.getpid(), *descendants(os.getpid())])
    finally:
        connection.disconnect()
    assert len(places) > 3  # control store, raylet, agent, ...
    assert set(places) <= {"127.0.0.1", "::1"}


def test_a_listener_on_every_interface_would_be_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)), socket.create_server(("", 0)):
        assert {"127.0.0.1", "0.0.0.0"} <= set(listening([os.getpid()]))
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True):
        assert "::" in listening([os.getpid()])
