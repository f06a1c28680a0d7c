"""Ends this process, resumably, when Ray's head is gone: before Ray does it with the status of a defect.

A driver that asks a control store which is gone waits in C++, where no Python exception reaches it, and Ray ends the process
with status 1 once ``gcs_rpc_server_reconnect_timeout_s`` is over (60 s; rpc_client.h, seen with 2.60). A head that was gone and
is back is another cluster: Ray says so in an exception, or fails a check of its own in C++ and ends the process with status 1.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from types import TracebackType

from autotune.errors import ExitStatus

_RAYS_PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
_SHARE = 0.75
"""Of Ray's own patience: enough before it, and as long as can be given to a head that may come back."""
_LOOK_S = 1.0
_LOOK_AGAIN_S = 0.05
"""Once nobody listens there: a head that is back is to be seen before Ray's own client asks it."""


class HeadWatch:
    """While it is entered, a head that is started again, or out of reach for a while, ends the process with exit status 4.

    All that a run has finished is on disk by then: this is a driver killed, which resumes.

    Args:
        address: ``host:port`` of the control store.
        patience_s: How long it may be out of reach; three quarters of Ray's own patience where None.
    """

    def __init__(self, address: str, *, patience_s: float | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port, self._address = host.strip("[]"), int(port), address
        rays_s = float(os.environ.get(_RAYS_PATIENCE) or 60.0)
        self._patience_s = _SHARE * rays_s if patience_s is None else patience_s
        self._left = threading.Event()

    def __enter__(self) -> HeadWatch:
        threading.Thread(target=self._look, name="head watch", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()

    def _look(self) -> None:
        seen, refused = time.monotonic(), False
        while not self._left.wait(_LOOK_AGAIN_S if refused else _LOOK_S):
            try:
                with socket.create_connection((self._host, self._port), timeout=5.0):
                    pass
            except OSError as error:
                # Refused: its process is gone. Silence may be the network's.
                refused = refused or isinstance(error, ConnectionRefusedError)
                gone_s = time.monotonic() - seen
                if gone_s > self._patience_s:
                    self._end(f"Ray's head at {self._address} has not answered for {gone_s:.0f} s; start it and add --resume")
                continue
            if refused:
                self._end(f"Ray's head at {self._address} was started again and knows nothing of this run; add --resume")
            seen = time.monotonic()

    def _end(self, text: str) -> None:
        if not self._left.is_set():
            print(f"autotune: the Ray cluster was lost ({text})", file=sys.stderr, flush=True)
            os._exit(ExitStatus.STOPPED)
