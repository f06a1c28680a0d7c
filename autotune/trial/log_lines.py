"""Lines of training logs without what launchers put in front of them, and who said each."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_DATED = rf"\d{{4}}-\d\d-\d\d[ T_]{_CLOCK}"
_STAMP = re.compile(rf"\s*\[?({_DATED})Z?(?:[+-]\d\d:?\d\d)?\]?(?:\s+-\s+|\s)")
_RAY = re.compile(r"\((?:([^()]*) )?pid=(\w+)(?:, ip=([\w.:]+))?\)\s?")
"""Of an actor or task (ray/_private/worker.py:print_worker_logs, 2.60)."""
_TORCH = re.compile(r"\s*\[(?:rank|default)\s*(\d+)\]\s*:?\s?")
"""torch's own (``[rank3]:``, global) and torchrun's with ``--tee`` (``[default3]:``, of the node)."""
_SRUN = re.compile(r"\s*(\d{1,5}):(?=\s|\[|$)\s?")
_CONTAINER = re.compile(r"(?:\[(pod/[^\]\s]+)\] ?|([\w.-]+)\s+\| )")
"""``kubectl logs --prefix`` and ``docker compose logs``."""
_MOST_PREFIXES = 6
_NAMED_RANK = re.compile(r"\brank[=_]?(\d+)")

_RANK_IN_NAME = re.compile(r"(?:rank|default)[_.\-]?(\d+)(?![\da-z])", re.IGNORECASE)
_TIMES = re.compile(rf"({_DATED})|\[?\b[EWIF]\d{{3,4}} ({_CLOCK})|^\[?({_CLOCK})")
"""When a line was written: with its date, as glog writes it, or at its start; a time of day elsewhere may be anything."""


@dataclass(frozen=True, slots=True)
class Said:
    """One line.

    Attributes:
        rank: As the prefixes tell; the one nearest to the text counts.
        speaker: What else tells its process from others (process id, container).
        time: As printed, with a blank between date and time.
    """

    rank: int | None
    speaker: str
    time: str | None
    text: str


def said(raw: str) -> Said:
    """Take one line apart."""
    text = _COLOURS.sub("", raw).rstrip("\r\n") if "\x1b" in raw else raw.rstrip("\r\n")
    rank: int | None = None
    speaker = ""
    time: str | None = None
    for _ in range(_MOST_PREFIXES):
        if match := _STAMP.match(text):
            time = _plain(match[1])
        elif match := _RAY.match(text):
            name, pid, node = match.groups()
            speaker += f"{pid}@{node or ''} "
            named = _NAMED_RANK.search(name or "")
            rank = int(named[1]) if named else rank
        elif match := (_TORCH.match(text) or _SRUN.match(text)):
            rank = int(match[1])
        elif match := _CONTAINER.match(text):
            speaker += f"{match[1] or match[2]} "
        else:
            break
        text = text[match.end() :]
    if time is None and (found := _TIMES.search(text)):
        time = _plain(next(group for group in found.groups() if group))
    return Said(rank, speaker, time, text)


def rank_of_file(path: str) -> int | None:
    """The rank in a file's name, or in torchrun's folders (``attempt_0/3/stderr.log``: the rank on its node)."""
    place = Path(path)
    named = _RANK_IN_NAME.search(place.name)
    if named:
        return int(named[1])
    if place.parent.name.isdigit() and place.parent.parent.name.startswith("attempt_"):
        return int(place.parent.name)
    return None


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a log, compressed with gzip or not; what is not text in it is replaced."""
    with gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else path.open(errors="replace") as log:
        yield from log


def _plain(time: str) -> str:
    return time.replace(",", ".").replace("T", " ").replace("_", " ")
