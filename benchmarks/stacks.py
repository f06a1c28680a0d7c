"""The software a measured row ran on: rows name a test environment, the container follows from the day of the recording."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from autotune.workload.workload import Stack

_DATA = Path(__file__).parent / "data"


@cache
def _history() -> Mapping[str, Any]:
    history: Mapping[str, Any] = json.loads((_DATA / "container_history.json").read_text())
    return history


@cache
def _recorded() -> Mapping[str, str]:
    recorded: Mapping[str, str] = json.loads((_DATA / "recorded.json").read_text())["recorded"]
    return recorded


@cache
def _usual_days() -> Mapping[str, str]:
    """The middle recording day of each environment's known rows."""
    days: dict[str, list[str]] = defaultdict(list)
    for row_id, day in _recorded().items():
        days[environment(row_id)].append(day)
    return {name: sorted(found)[len(found) // 2] for name, found in days.items()}


def environment(row_id: str) -> str:
    """The test environment in a row's id: ``dev_dgx_h100``, ``lts_dgxa100_dracooci``."""
    return row_id.rsplit(":", 1)[-1]


def golden_stack(
    row_id: str, *, recorded_on: str | None = None, own: Mapping[str, str] | None = None
) -> tuple[Stack, str | None]:
    """Stack of a Megatron-LM golden row.

    Args:
        row_id: The row's id, whose last part is its environment.
        recorded_on: Day of the recording (``2026-05-08``) where the row itself says it.
        own: What the row itself says of its software (``container``, ``megatron_core``, ``transformer_engine``).

    Returns:
        The stack, and a note where the day had to be assumed.
    """
    day = recorded_on or _recorded().get(row_id)
    note = None
    if day is None:
        day = _usual_days().get(environment(row_id), "2026-05-19")
        note = f"stack assumed: recording day unknown, {day} is usual for {environment(row_id)}"
    lts = environment(row_id).startswith("lts")
    own = own or {}
    container = own.get("container") or _at("lts" if lts else "dev", day)
    core = own.get("megatron_core") or _at("megatron_core", day)
    if container == "24.01":
        image = _history()["lts_24_01"]
        packages = {name: image[name] for name in ("transformer_engine", "flash_attn")}
        return Stack(container=container, megatron_core=core, **packages), note
    engine = own.get("transformer_engine") or _at("transformer_engine", day)
    return Stack(container=container, megatron_core=core, transformer_engine=engine), note


def _at(name: str, day: str) -> str:
    steps: Sequence[tuple[str, str]] = _history()[name]
    return steps[max(0, bisect_right([since for since, _ in steps], day) - 1)][1]
