"""Standard output is the answer's alone: what libraries print while it is sought goes to standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def stdout_for_the_answer() -> Iterator[None]:
    """Send what is printed inside to standard error.

    Ray prints what it has lost from a thread of its own (a raylet's last words: worker.py:listen_error_messages, 2.60).
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield
