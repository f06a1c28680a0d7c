"""Sizes with units. GB is 10^9 bytes, GiB is 2^30 bytes; a bare number is refused."""

from __future__ import annotations

import re

from autotune.errors import RequestError

_FACTORS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
            "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}  # fmt: skip
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_size_bytes(text: str, *, setting: str = "--mem-target") -> int:
    """Read a size such as ``75GB`` or ``69.85GiB`` as bytes.

    Raises:
        RequestError: No unit, an unknown unit, or a size that is not positive.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise RequestError(
            setting, text, "a size is a positive number with a unit", "write for example 75GB (10^9) or 70GiB (2^30)"
        )
    number, unit = match.groups()
    if not unit:
        raise RequestError(setting, text, "a size needs a unit", f"write {number}GB (10^9) or {number}GiB (2^30)")
    if unit.upper() not in _FACTORS:
        raise RequestError(setting, text, f"unknown unit {unit!r}", "use MB, GB, TB (10^n) or MiB, GiB, TiB (2^n)")
    size_bytes = round(float(number) * _FACTORS[unit.upper()])
    if size_bytes <= 0:
        raise RequestError(setting, text, "a size has to be at least one byte", "write for example 75GB")
    return size_bytes


def format_gb(size_bytes: float) -> str:
    """Write bytes in decimal units, as Megatron Bridge prints them: ``65.325 GB``, below one GB ``70.612 MB``."""
    return f"{size_bytes / 1e9:.3f} GB" if abs(size_bytes) >= 1e9 else f"{size_bytes / 1e6:.3f} MB"


def format_gb_and_gib(size_bytes: float) -> str:
    """Write bytes in both units, for limits: ``75.000 GB (69.849 GiB)``; MB and MiB below one GB."""
    binary = f"{size_bytes / 2**30:.3f} GiB" if abs(size_bytes) >= 1e9 else f"{size_bytes / 2**20:.3f} MiB"
    return f"{format_gb(size_bytes)} ({binary})"
