"""A cluster that does not start or does not answer is one line, never a traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from heads import Head, head_environment
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
    monkeypatch.setattr(connection, "knock", lambda address: None)
    with pytest.raises(RequestError, match=r"--address='10.0.0.9:1': no Ray cluster answers there \(Could not find any"):
        connection.connect("10.0.0.9:1", local_cpus=2)


def test_whose_cluster_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert connection.is_own(None) and connection.is_own("local") and not connection.is_own("auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert not connection.is_own(None)


def test_a_niceness_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a cluster that is joined; ``ray.init`` refuses a variable that its job was submitted with."""
    import ray

    tried: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **options: tried.append(options))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(connection, "knock", lambda address: None)
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
    for address in ("auto", "local"):
        connection.connect(address, local_cpus=2)
    monkeypatch.setenv("RAY_worker_niceness", "7")
    for address in ("auto", "local"):
        connection.connect(address, local_cpus=2)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", '{"runtime_env": {"env_vars": {"RAY_worker_niceness": "0"}}}')
    connection.connect("auto", local_cpus=2)
    assert [options.get("runtime_env", options.get("_system_config")) for options in tried] == [
        {"env_vars": {"RAY_worker_niceness": "0"}},
        {"worker_niceness": 0},
        {"env_vars": {"RAY_worker_niceness": "7"}},
        {},
        {},
    ]


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


def doctor(address: str, environment: dict[str, str], answer_s: float = 30.0) -> tuple[int, str, float]:
    """Status, stderr and seconds of ``autotune doctor --address ...`` in a process of its own."""
    imports = "import sys; from autotune.cluster import knock; from autotune.cli.main import main; "
    body = imports + "knock.ANSWER_S = float(sys.argv[1]); main(sys.argv[2:])"
    command = [sys.executable, "-c", body, str(answer_s), "doctor", "--address", address]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stderr, time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_that_wants_a_token_says_so_at_once(toy_environment: dict[str, str]) -> None:
    """Without one, and with another than the head's; ``ray.init`` alone goes on for minutes."""
    theirs = head_environment(toy_environment)
    head = Head(theirs, cpus=1)
    head.start()
    try:
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": theirs["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]}
        for environment in (toy_environment | loopback, theirs | {"RAY_AUTH_TOKEN": "0" * 64}):
            status, told, seconds = doctor(head.address, environment)
            assert (status, told.count("\n")) == (ExitStatus.STOPPED, 1), told
            assert told.startswith(
                f"autotune: the Ray cluster at {head.address} lets nobody in without its token; set RAY_AUTH_MODE"
            )
            print(f"refused without the head's token after {seconds:.1f} s")
            assert seconds < 60  # The imports; the answer itself takes milliseconds.
        status, told, _ = doctor(head.address, theirs)
        assert status == ExitStatus.OK, told
    finally:
        head.stop()


@pytest.mark.slow
def test_a_place_where_nothing_answers_is_given_up_in_the_time_that_is_stated(toy_environment: dict[str, str]) -> None:
    environment = toy_environment | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        status, told, seconds = doctor(address, environment, answer_s=3.0)
    assert (status, told.count("\n")) == (ExitStatus.STOPPED, 1), told
    assert "does not answer (no answer within 3 s)" in told and seconds < 60
    status, told, seconds = doctor(address, environment, answer_s=3.0)  # Now nobody listens there any more.
    assert (status, told.count("\n")) == (ExitStatus.BAD_REQUEST, 1), told
    assert f"--address='{address}': no Ray cluster answers there" in told and seconds < 60
