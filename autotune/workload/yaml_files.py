"""Reading the project's YAML data files into records."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import RequestError
from autotune.records import from_builtins

T = TypeVar("T")


def read_yaml(path: Path) -> Any:
    """Plain data of a YAML file.

    Raises:
        RequestError: The file cannot be read or is no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(path.read_bytes(), Loader=loader)
    except OSError as error:
        raise RequestError(str(path), None, f"cannot be read ({error.strerror})", "give a readable YAML file") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise RequestError(str(path), None, f"is no valid YAML ({problem})", "mend or replace the file") from None


def load_yaml(path: Path, type_: type[T]) -> T:
    """A record from a YAML file.

    Raises:
        RequestError: The file cannot be read, is no YAML, or does not hold such a record.
    """
    return from_builtins(read_yaml(path), type_, setting=str(path))
