"""JSON both ways for every record of the project, and files that are never half-written."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from autotune.errors import RequestError

T = TypeVar("T")


def to_builtins(record: object) -> Any:
    """A record as dicts, lists and scalars, ready for JSON."""
    return msgspec.to_builtins(record, str_keys=True)


def from_builtins(value: object, type_: type[T], *, setting: str) -> T:
    """Read a record back from plain data.

    Raises:
        RequestError: A field is missing or has the wrong type; ``setting`` names the file or option it came from.
    """
    try:
        return msgspec.convert(value, type_, strict=True, str_keys=True)
    except msgspec.ValidationError as error:
        raise RequestError(setting, None, str(error), f"give a valid {type_.__name__}") from None


def dump_json(record: object, *, indent: int = 2) -> str:
    """A record as JSON text with a final newline; keys keep their order."""
    return msgspec.json.format(msgspec.json.encode(to_builtins(record)), indent=indent).decode() + "\n"


def digest(record: object) -> str:
    """A short content hash (16 hex digits) that does not depend on key order."""
    return hashlib.sha256(msgspec.json.encode(to_builtins(record), order="sorted")).hexdigest()[:16]


def decode_json(text: bytes | str) -> Any:
    """JSON text as plain data.

    Raises:
        msgspec.DecodeError: It is no JSON, or nested deeper than the interpreter can go.
    """
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def load_json(path: Path, type_: type[T]) -> T:
    """Read a record from a JSON file.

    Raises:
        RequestError: The file is absent, is no JSON, or does not hold such a record.
    """
    try:
        value = decode_json(path.read_bytes())
    except OSError as error:
        raise RequestError(str(path), None, f"cannot be read ({error.strerror})", "give a readable JSON file") from None
    except msgspec.DecodeError as error:
        raise RequestError(str(path), None, f"is no valid JSON ({error})", "mend or replace the file") from None
    return from_builtins(value, type_, setting=str(path))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader or a kill sees the old or the new one, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
