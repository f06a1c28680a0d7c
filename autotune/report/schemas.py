"""JSON Schemas of the files of a run directory, out of the records that write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from autotune.boundary.boundary import Boundary
from autotune.engine.plan import PlanResult
from autotune.search.outcome import Recommendation
from autotune.trial.record import TrialRecord
from autotune.workload.workload import Workload

FILES: Mapping[str, type] = {
    "workload": Workload,
    "candidates": PlanResult,
    "recommendation": Recommendation,
    "record": TrialRecord,
    "boundary": Boundary,
}
"""File name without ``.json`` and the record it holds; ``record`` and ``boundary`` lie in every trial's folder."""


def schema(name: str) -> dict[str, Any]:
    """The schema (draft 2020-12) of one file. Fields of later versions may be there: a reader ignores what it does not know."""
    found = msgspec.json.schema(FILES[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"{name}.json", **found}
