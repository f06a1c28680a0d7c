"""From the lines of all ranks to one TrialRecord. A rank that wrote nothing is unknown; nothing is assumed for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.trial.failure import Symptom, class_of, is_consequence, stage_of
from autotune.trial.record import Failure, RankRecord, RepeatReason, TrialRecord
from autotune.trial.spec import TrialSpec

_ITERATION_FIELDS = (
    "step", "step_ms", "host_ms", "loss", "grad_norm", "skipped", "nan", "phases", "reserved", "tokens_per_expert",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the processes of a trial ended.

    Attributes:
        statuses: Exit status of each rank that ended by itself (minus the signal, if by one); None where it was ended.
        hung: Why the trial was ended as a hang; None where it was not.
        lost: Ranks whose node is gone, and how that showed.
        left_pids: Processes of the trial that would not end.
    """

    statuses: Mapping[int, int | None]
    hung: str | None = None
    lost: Mapping[int, str] = field(default_factory=dict)
    left_pids: tuple[int, ...] = ()
    wall_s: float = 0.0


Lines = Sequence[Mapping[str, Any]]


def assemble(
    spec: TrialSpec,
    ending: Ending,
    lines: Mapping[int, Lines],
    *,
    repeat_reason: RepeatReason | None = None,
) -> TrialRecord:
    """Make the record of a trial from the lines of its ranks; what a survey launch measures is of kind "switched"."""
    devices = {rank: [line for line in of_rank if line["event"] == "device"] for rank, of_rank in lines.items()}
    lines = {rank: [line for line in of_rank if line["event"] != "device"] for rank, of_rank in lines.items()}
    ranks = {rank: record for rank, of_rank in lines.items() if (record := _rank_record(rank, of_rank)) is not None}
    ended = [rank for rank, of_rank in lines.items() if any(line["event"] == "end" for line in of_rank)]
    completed = len(ended) == spec.world_size
    steps_run = min((record.steps_run or 0 for record in ranks.values()), default=0) if len(ranks) == spec.world_size else 0
    loops = [line for of_rank in lines.values() for line in of_rank if line["event"] == "loop"]
    notes = [line["text"] for of_rank in lines.values() for line in of_rank if line["event"] == "note" and "text" in line]
    return TrialRecord(
        number=spec.number,
        kind="measured" if spec.survey is None else "switched",
        boundary=spec.boundary,
        workload_digest=spec.workload.digest,
        world_size=spec.world_size,
        completed=completed,
        ranks=ranks,
        step_ms=_steady_step_ms(spec, ranks) if spec.survey is None else (),  # Its steps are of many settings.
        steps_run=steps_run,
        failure=None if completed else _first_failure(lines, ending),
        repeat_reason=repeat_reason,
        revisions=loops[0]["revisions"] if loops else {},
        details={
            "backend": spec.backend,
            "loop": loops[0]["loop"] if loops else None,
            "capacity_bytes": spec.capacity_bytes,
            "seed": spec.seed,
            "environment": dict(spec.variables),
            "hosts": sorted({line["host"] for of_rank in lines.values() for line in of_rank if line["event"] == "start"}),
            "exit_statuses": {str(rank): status for rank, status in ending.statuses.items()},
            "left_pids": list(ending.left_pids),
            "wall_s": round(ending.wall_s, 3),
            "teardown_hang": completed and any(status is None for status in ending.statuses.values()),
            "notes": notes,
            **_capture(spec, lines),
            **({"devices": found} if (found := _devices(devices, lines)) else {}),
        },
    )


def _capture(spec: TrialSpec, lines: Mapping[int, Lines]) -> dict[str, bool]:
    """Whether every rank got as far as the capture of graphs of its layers, where Transformer Engine captures them.

    Peaks after capture are measured only then: a survey launch ends before.
    """
    if spec.workload.features.cuda_graph_impl != "transformer_engine":
        return {}
    seen = [any(line.get("phase") == "after_capture" for line in of_rank) for of_rank in lines.values()]
    return {"graphs_captured": len(seen) == spec.world_size and all(seen)}


def _devices(looks: Mapping[int, Lines], lines: Mapping[int, Lines]) -> dict[str, dict[str, Any]]:
    """Of each rank's GPU: bytes in use before, at most during and after the trial, by anyone, and its clock after it."""
    found = {}
    for rank, of_rank in looks.items():
        facts: dict[str, Any] = {}
        for line in of_rank:
            gpus = line["gpus"]
            facts[f"used_{line['when']}_bytes"] = sum(gpu["used_bytes"] for gpu in gpus) if gpus else None
            facts |= {name: [gpu[name] for gpu in gpus] for name in ("clock_mhz", "throttled")}
        if facts:
            facts["used_during_bytes"] = max((line.get("device_used_bytes") or 0 for line in lines[rank]), default=0) or None
            found[str(rank)] = facts
    return found


def _rank_record(rank: int, lines: Lines) -> RankRecord | None:
    """None where the rank reported no memory at all."""
    phases: dict[str, int] = {}
    reserved: dict[str, int] = {}
    iterations = []
    for line in lines:
        _raise_to(phases, line.get("phases"))
        _raise_to(reserved, line.get("reserved"))
        if line["event"] == "iteration":
            iterations.append(line)
    if not phases:
        return None
    last = iterations[-1] if iterations else {}
    return RankRecord(
        rank=rank,
        allocated_peak_bytes=max(phases.values()),
        reserved_peak_bytes=max(reserved.values()) if reserved else None,
        phases=phases,
        iterations=tuple({key: line[key] for key in _ITERATION_FIELDS if key in line} for line in iterations),
        tokens_per_expert=tuple(last["tokens_per_expert"]) if last.get("tokens_per_expert") else None,
        allocator_retries=last.get("allocator_retries"),
        device_used_bytes=last.get("device_used_bytes"),
        steps_run=len(iterations),
    )


def _raise_to(peaks: dict[str, int], seen: Mapping[str, int] | None) -> None:
    for phase, size in (seen or {}).items():
        if phase not in ("data", "between_steps"):
            peaks[phase] = max(size, peaks.get(phase, 0))


def _steady_step_ms(spec: TrialSpec, ranks: Mapping[int, RankRecord]) -> tuple[float, ...]:
    """Time of each step after optimizer initialisation and graph capture: that of the slowest rank."""
    features = spec.workload.features
    before = 1 if features.cuda_graph_impl == "none" else max(2, features.cuda_graph_warmup_steps + 1)
    times: dict[int, float] = {}
    for record in ranks.values():
        for iteration in record.iterations:
            if iteration["step"] > before:
                times[iteration["step"]] = max(iteration["step_ms"], times.get(iteration["step"], 0.0))
    return tuple(times[step] for step in sorted(times))


def _first_failure(lines: Mapping[int, Lines], ending: Ending) -> Failure:
    """The failure that came first; later ones are its consequences (a closed connection, a collective that timed out)."""
    if ending.lost:
        rank = min(ending.lost)
        where = _last_phase(lines[rank])
        return Failure(
            failure_class="node_lost",
            stage=stage_of(where["phase"], where["step"]),
            rank=rank,
            step=where["step"],
            message=ending.lost[rank],
        )
    told = [(line["t"], rank, line) for rank, of_rank in lines.items() for line in of_rank if line["event"] == "failure"]
    deaths = [
        (of_rank[-1]["t"] if of_rank else 0.0, rank, _last_phase(of_rank), status)
        for rank, of_rank in lines.items()
        if (status := ending.statuses.get(rank)) not in (None, 0)
        and not any(line["event"] in ("failure", "end") for line in of_rank)
    ]
    if deaths and all(is_consequence(symptom_of(line)) for _, _, line in told):
        _, rank, where, status = min(deaths, key=lambda death: death[:2])
        text = f"ended by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"
        return Failure(
            failure_class="rank_killed",
            stage=stage_of(where["phase"], where["step"]),
            rank=rank,
            step=where["step"],
            message=text,
        )
    if told:
        primary = [entry for entry in told if not is_consequence(symptom_of(entry[2]))] or told
        _, rank, line = min(primary, key=lambda entry: entry[:2])
        return Failure(
            failure_class=class_of(symptom_of(line)),
            stage=stage_of(line["phase"], line["step"]),
            rank=rank,
            step=line["step"],
            requested_bytes=line["requested_bytes"],
            message=f"{line['type']}: {line['message']}",
        )
    last_words = {rank: _last_phase(of_rank) for rank, of_rank in lines.items()}
    behind = min(last_words, key=lambda rank: (last_words[rank]["step"], rank))
    where = last_words[behind]
    return Failure(
        failure_class="hang" if ending.hung else "launch_error",
        stage=stage_of(where["phase"], where["step"]),
        rank=behind,
        step=where["step"],
        message=ending.hung or "a rank ended without a word",
    )


def _last_phase(lines: Lines) -> dict[str, Any]:
    marks = [line for line in lines if line["event"] in ("phase", "iteration", "failure")]
    if not marks:
        return {"phase": "launch", "step": 0}
    return {"phase": marks[-1].get("phase", "between_steps"), "step": marks[-1]["step"]}


def symptom_of(line: Mapping[str, Any]) -> Symptom:
    """A rank's ``failure`` line as a symptom."""
    return Symptom(
        types=tuple(line["types"]),
        message=line["message"],
        where=tuple(line["where"]),
        phase=line["phase"],
        step=line["step"],
    )
