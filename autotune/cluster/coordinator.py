"""One Tune trial: a coordinator without a GPU that runs one boundary on a group's slots and reports it once.

An out-of-memory or a crash of a rank is a result, never an exception of the Tune trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from autotune.cluster.connection import NAMESPACE
from autotune.cluster.group import Place
from autotune.cluster.ranks import SlotRanks
from autotune.records import dump_json, load_json, write_atomically
from autotune.trial.attend import Limits, attend
from autotune.trial.record import RepeatReason
from autotune.trial.spec import TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a coordinator is to do: ``order.json`` in the trial's folder. ``slots`` are names of actors, by rank."""

    spec: TrialSpec
    slots: tuple[str, ...]
    places: tuple[Place, ...]
    limits: Limits
    workload_digest: str
    repeat_reason: RepeatReason | None = None


def coordinate(config: dict[str, Any]) -> None:
    """Tune's function; ``config["order"]`` is the path of its order."""
    import ray
    from ray import tune

    order = load_json(Path(config["order"]), Order)
    slots = [ray.get_actor(name, namespace=NAMESPACE) for name in order.slots]
    record = attend(order.spec, SlotRanks(slots, order.places), limits=order.limits)
    details = {**record.details, "nodes": len({place.node for place in order.places})}
    record = replace(record, repeat_reason=order.repeat_reason, workload_digest=order.workload_digest, details=details)
    # On disk before it is reported: from here on the result cannot be lost.
    write_atomically(Path(order.spec.folder) / "record.json", dump_json(record))
    peaks = [rank.allocated_peak_bytes for rank in record.ranks.values()]
    hot = max(record.ranks.values(), key=lambda rank: rank.allocated_peak_bytes, default=None)
    known = {"step_ms": median(record.step_ms) if record.step_ms else None, "hot_rank": None if hot is None else hot.rank}
    tune.report(
        {
            **{name: value for name, value in known.items() if value is not None},
            "number": record.number,
            "boundary": record.boundary.key,
            "outcome": "completed" if record.failure is None else record.failure.failure_class,
            "peak_bytes": max(peaks, default=0),
        }
    )
