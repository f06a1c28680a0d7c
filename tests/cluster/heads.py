"""A Ray cluster started by its own command, on loopback only: for what a user's running cluster does to a run."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from marked import wait_for

from autotune.trial.launch import free_port
from autotune.trial.processes import descendants

RAY = Path(sys.executable).with_name("ray")


def head_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the head and of its clients: Ray's token, and every port on loopback."""
    return {
        **environment,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "PATH": f"{RAY.parent}{os.pathsep}{environment['PATH']}",
    }


class Head:
    """``ray start --head --block``; stopped and started at the same address."""

    def __init__(self, environment: Mapping[str, str], *options: str, cpus: int = 3) -> None:
        self._environment, self._options, self._cpus = dict(environment), options, cpus
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            str(RAY), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={self.port}",
            f"--num-cpus={self._cpus}", "--object-store-memory=134217728", "--disable-usage-stats", *self._options,
        ]  # fmt: skip
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=self._environment, stdout=null, stderr=null, start_new_session=True)
        if wait_for(self._answers, 180) is None:
            self.kill()
            pytest.fail("Ray's head did not start")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> list[int]:
        """SIGKILL to Ray's own processes at once; workers are left to themselves. The pids that were killed."""
        assert self._process is not None
        own = [self._process.pid, *(pid for pid in descendants(self._process.pid) if not _is_worker(pid))]
        for pid in own:
            os.kill(pid, signal.SIGKILL)
        self._process.wait()
        return own

    def stop(self) -> None:
        """End it as its own command does on SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::") or "zygote" in _line(pid)
    except OSError:
        return True


def _line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
