"""The rank program as one that must not be forked from: its imports leave a thread behind, as those of some packages do."""

from __future__ import annotations

import sys
import threading

from autotune.trial import rank
from autotune.trial.spec import Backend, Loop

main = rank.main
revisions = rank.revisions


def preload(backend: Backend, loop: Loop | None = None) -> Loop:
    """As ``rank.preload``, with a thread that waits for ever."""
    threading.Thread(target=threading.Event().wait, name="left by an import", daemon=True).start()
    return rank.preload(backend, loop)


if __name__ == "__main__":
    sys.exit(rank.run_from_command_line())
