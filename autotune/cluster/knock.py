"""Whether a cluster answers, and lets this client in: asked before ``ray.init``, which goes on trying without an end in sight.

A control store that asks for a token refuses one without it at once (``Unauthenticated``), and Ray's own client tries again;
with 2.60 it did for 170 s.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from autotune.cluster.rays_words import first_line
from autotune.errors import RequestError, StoppedError

ANSWER_S = 30.0
"""How long a control store may take to answer the first question; on a busy machine it takes one or two seconds."""


def knock(address: str, *, within_s: float | None = None) -> None:
    """Return if the cluster at an address answers and lets this client in.

    Args:
        address: ``host:port`` or ``auto``. A client of a cluster (``ray://``) asks another server and is not looked at.
        within_s: How long it may take; ``ANSWER_S`` where None.

    Raises:
        RequestError: Nothing listens there, or no cluster can be found.
        StoppedError: It wants another token, or has not answered in time.
    """
    if address.startswith("ray://"):
        return
    import ray
    from ray._private import services

    limit_s = ANSWER_S if within_s is None else within_s
    place = services.canonicalize_bootstrap_address_or_die(address)
    answer: queue.Queue[Exception | None] = queue.Queue()
    with _without_native_words():
        threading.Thread(target=_ask, args=(place, answer), name="knock", daemon=True).start()
        try:
            error = answer.get(timeout=limit_s)
        except queue.Empty:
            error = TimeoutError(f"no answer within {limit_s:.0f} s")
    if error is None:
        return
    if isinstance(error, ray.exceptions.AuthenticationError):
        raise StoppedError(
            f"the Ray cluster at {address} lets nobody in without its token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
            "as its head has them and start again"
        ) from None
    if not _listens(place):
        rule = f"no Ray cluster answers there ({first_line(error)})"
        raise RequestError("--address", address, rule, "start one, or leave --address out") from None
    raise StoppedError(
        f"the Ray cluster at {address} does not answer ({first_line(error)}); see its head, then start again"
    ) from None


def _ask(place: str, answer: queue.Queue[Exception | None]) -> None:
    import ray._raylet

    native: Any = ray._raylet
    try:
        native.GcsClient(address=place)
    except Exception as error:
        answer.put(error)
    else:
        answer.put(None)


def _listens(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5.0):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def _without_native_words() -> Iterator[None]:
    """Without what Ray's C++ client writes to file descriptor 2 of each of its attempts: the error says it once."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
