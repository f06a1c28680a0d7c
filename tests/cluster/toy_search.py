"""A whole search through Ray over toy ranks: ``python toy_search.py FOLDER [--resume] [--address A]``.

Prints one JSON line: exit status, how the search stopped, the records with their outcomes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.cli.streams import stdout_for_the_answer
from autotune.cluster.backend import ClusterBackend
from autotune.engine.events import Event
from autotune.engine.run_directory import RunDirectory
from autotune.engine.search_loop import SearchLoop
from autotune.errors import StoppedError
from autotune.search.candidate import Candidate
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.study import StudyLog
from autotune.trial.attend import Limits
from autotune.trial.gates import GateSettings
from autotune.workload.resolve import resolve_workload

LABELS = ("core_attn", "layernorm", "mlp", "moe_act")
BOUNDARIES = (Boundary.selective(()), *(Boundary.selective((label,)) for label in LABELS))
LIMITS = Limits(wall_s=60.0, silent_s=20.0, silent_step_s=8.0, silent_steps=3.0)
"""Silence ends a trial well after a failure has to: else what ended a trial within 5 s could be either."""
LIMIT_BYTES = 1950
"""Toy ranks use 1000 and 2000 bytes, 100 less with a label: the control is over the limit, each label fits."""


def search(
    folder: Path, *, resume: bool = False, address: str | None = None, bundle: Mapping[str, float] | None = None, steps: int = 3
) -> dict[str, Any]:
    workload = resolve_workload("moonlight_tiny", overrides=())
    candidates = [Candidate(boundary=b, order=i, status="distinct") for i, b in enumerate(BOUNDARIES)]
    evidence = Evidence(candidates, GateSettings(limit_bytes=LIMIT_BYTES, steady_steps=steps))
    directory = RunDirectory(folder, {"recipe": "toy"}, resume=resume)
    notes: list[str] = []

    def on_event(event: Event) -> None:
        if event.kind != "trial_progress":
            notes.append(event.text)
            print(event.text, file=sys.stderr, flush=True)

    backend = ClusterBackend(
        workload, backend="cpu", program="toy_rank", address=address, bundle=bundle, limits=LIMITS, place_s=20.0,
        on_note=lambda text: on_event(Event(kind="note", text=text)),
    )  # fmt: skip
    status = 0
    try:
        loop = SearchLoop(
            backend=backend,
            sampler=ExhaustiveSampler(candidates, evidence, backend.lacks),
            evidence=evidence,
            study=StudyLog(directory.journal, [c.boundary for c in candidates]),
            directory=directory,
            workload_digest="toy",
            world_size=workload.parallel.world_size,
            on_event=on_event,
        )
        stop = loop.run().text
    except StoppedError as error:
        stop, status = str(error), 4
    finally:
        backend.close()
        directory.close()
    best = evidence.best()
    return {
        "status": status,
        "stop": stop,
        "best": best.key if best is not None else None,
        "notes": notes,
        "records": [
            [r.number, r.boundary.key, r.failure.failure_class if r.failure else "completed", r.details.get("wall_s")]
            for r in evidence.records
        ],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--address")
    given = parser.parse_args()
    with stdout_for_the_answer():
        told = search(given.folder, resume=given.resume, address=given.address)
    print(json.dumps(told))
    sys.exit(told["status"])
