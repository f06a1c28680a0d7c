"""What Ray says: the first line of an error, and what its own threads and loggers print, which belongs in a log."""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LONGEST = 200
_RAYS_THREADS = ("ray_listen_error_messages", "ray_print_logs")
"""Threads of a driver that print what a cluster tells it, a raylet's last lines among it (worker.py:connect, 2.60)."""


def without_colours(text: str) -> str:
    """Text without the codes that colour it on a terminal: Ray's errors have them wherever they are shown."""
    return _COLOURS.sub("", text)


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, without colours; the name of its class where none does."""
    lines = (line.strip() for line in without_colours(str(error)).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:_LONGEST]


class _Sorting:
    """Standard output, but for what Ray's threads print: that is appended to a file, which is made when there is something."""

    def __init__(self, others: TextIO, path: Path) -> None:
        self._others, self._path = others, path

    def write(self, text: str) -> int:
        if threading.current_thread().name not in _RAYS_THREADS:
            return self._others.write(text)
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(without_colours(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._others, name)


class _Appending(logging.Handler):
    """Appends to a file, which is made when there is something; a full disk loses the line, not the run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(without_colours(self.format(record)) + "\n")


@contextlib.contextmanager
def rays_words_to(path: Path) -> Iterator[None]:
    """While it is entered, Ray's threads and loggers write into a file instead of standard output and error.

    Tune logs a traceback for what the search then reports in a line of its own, a full disk for one.
    """
    others, logger = sys.stdout, logging.getLogger("ray")
    sorting = cast(TextIO, _Sorting(others, path))
    handlers, propagate = logger.handlers, logger.propagate
    sys.stdout = sorting
    logger.handlers, logger.propagate = [_Appending(path)], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        if sys.stdout is sorting:
            sys.stdout = others
