"""What ``--version`` names: this package and the stack it finds, without importing any of it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from autotune import __version__

_STACK = ("megatron-core", "megatron-bridge", "transformer-engine", "torch", "ray", "optuna")


def version_line() -> str:
    """One line: ``autotune 0.1.0 (Python 3.12.1, megatron-core 0.19.2, ..., transformer-engine absent)``."""
    parts = [f"Python {platform.python_version()}"]
    for name in _STACK:
        try:
            parts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} absent")
    return f"autotune {__version__} ({', '.join(parts)})"
