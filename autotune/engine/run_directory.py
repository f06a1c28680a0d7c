"""The run directory: what is written when, so that a kill at any point loses nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.records import dump_json, load_json, write_atomically
from autotune.trial.record import TrialRecord


class RunDirectory:
    """One run's files. Finished trials are never written again.

    Args:
        path: The folder; made with its parents.
        identity: What makes a run this run and no other (recipe, workload digest, limit, backend ...), kept in
            ``request.json``.
        resume: Whether a run may already be there.

    Raises:
        RequestError: The folder cannot be written, holds something else, another run, or a run that was not to be resumed,
            or another process works in it.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        existing = path / "request.json"
        try:
            if path.exists() and not path.is_dir():
                raise RequestError("--out", str(path), "is a file", "name a directory that does not exist yet")
            if existing.exists():
                _compare(path, load_json(existing, dict), identity, resume)
            elif path.is_dir() and any(not _left_by_a_kill(entry) for entry in path.iterdir()):
                raise RequestError(
                    "--out", str(path), "holds files but no run", "name a directory that is empty or does not exist yet"
                )
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not existing.exists():
                write_atomically(existing, dump_json(dict(identity)))
            (path / "trials").mkdir(exist_ok=True)
        except BlockingIOError:
            raise RequestError(
                "--out", str(path), "another process works in it", "wait for it, or name another directory"
            ) from None
        except OSError as error:
            rule = f"cannot be written ({error.strerror})"
            raise RequestError("--out", str(path), rule, "name a directory that you can write") from None

    @property
    def journal(self) -> Path:
        """The study."""
        return self.path / "study.journal"

    def write(self, name: str, record: object) -> None:
        """Write one of the run's JSON files."""
        write_atomically(self.path / name, dump_json(record))

    def place(self, number: int) -> str:
        """Where a trial's record lies, relative to the run directory."""
        return f"trials/{number:03d}/record.json"

    def open_trial(self, number: int, boundary: Boundary) -> Path:
        """A fresh folder for a trial; what a killed attempt left is kept beside it."""
        folder = self.path / "trials" / f"{number:03d}"
        if folder.exists():
            attempt = 1
            while (kept := folder.with_name(f"{folder.name}.interrupted.{attempt}")).exists():
                attempt += 1
            folder.rename(kept)
        folder.mkdir()
        write_atomically(folder / "boundary.json", dump_json(boundary))
        return folder

    def save(self, record: TrialRecord) -> None:
        """Write a trial's record; from here on its result cannot be lost."""
        write_atomically(self.path / self.place(record.number), dump_json(record))
        _sync_folder(self.path / "trials" / f"{record.number:03d}")

    def saved(self, number: int) -> TrialRecord | None:
        """A trial's record, where it was written."""
        path = self.path / self.place(number)
        return load_json(path, TrialRecord) if path.exists() else None

    def close(self) -> None:
        """Give the directory back."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _left_by_a_kill(entry: Path) -> bool:
    """The lock, or a first write that never got its name: what a run killed at its very start leaves."""
    return entry.name == ".lock" or entry.name.startswith(".request.json.")


def _compare(path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any], resume: bool) -> None:
    for name, value in ours.items():
        if theirs.get(name) != value:
            rule = f"holds another run: its {name.replace('_', ' ')} is {theirs.get(name)!r}, not {value!r}"
            raise RequestError("--out", str(path), rule, "name another directory, or repeat the run's own request")
    if not resume:
        raise RequestError("--out", str(path), "holds a run already", "add --resume to go on with it, or name another directory")


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
