"""The lines of ``benchmarks/gpu_check.py`` as tables for the documentation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Line = Mapping[str, Any]


def read_results(path: Path) -> list[Line]:
    """All lines of a ``results.jsonl``."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def table(lines: Sequence[Line], cpu: Sequence[Line] = ()) -> str:
    """Markdown.

    Args:
        lines: What was measured.
        cpu: Lines of a run with ``--device cpu``, for the columns that compare with it.
    """
    by: dict[str, list[Line]] = {}
    for line in lines:
        by.setdefault(line["part"], []).append(line)
    of_cpu = {(line["recipe"], line["boundary"]): line for line in cpu if line["part"] == "label"}
    text = [*_machine(by), *_start(by), *_labels(by.get("label", []), of_cpu), *_survey(by), *_memory(by), *_not(by)]
    return "\n".join(text) + "\n"


def _rows(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    if not rows:
        return []
    text = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    text += ["| " + " | ".join("-" if value is None else str(value) for value in row) + " |" for row in rows]
    return [*text, ""]


def _mb(size: int | None) -> str | None:
    return None if size is None else f"{size / 1e6:,.3f}"


def _percent(value: int | None, of: int | None) -> str | None:
    return None if value is None or not of else f"{100 * (value / of - 1):+.2f}"


def _machine(by: Mapping[str, Sequence[Line]]) -> list[str]:
    said = []
    for line in by.get("machine", []):
        where = f"{line['gpu']}, driver {line['driver']}" if line["gpu"] else f"{line['cpus']} CPUs, load {line['load']:.1f}"
        stack = f"Python {line['python']}, torch {line['torch']}, megatron-core {line['megatron_core']}"
        said += [f"{line['device']} on {line['date']} UTC: {where}; {stack}.", ""]
    return said


def _start(by: Mapping[str, Sequence[Line]]) -> list[str]:
    cold = {line["number"] for line in by.get("cold", [])}
    rows: list[list[Any]] = [
        [f"zygote made ({', '.join(made['environment']) or 'no variables'})", made["seconds"], made["unfit"]]
        for made in by.get("zygote", [])
    ]
    trials = [trial for trial in by.get("trial", []) if trial["ready_s"] is not None]
    for name in ("forked", "cold"):
        chosen = [trial["ready_s"] for trial in trials if (trial["number"] in cold) == (name == "cold")]
        if chosen:
            rows.append([f"{name} rank has imported all it needs, median of {len(chosen)}", median(chosen), None])
    rows += [["functions run eager, not compiled", None, line["why"]] for line in by.get("not_compiled", [])]
    return _rows(("start", "s", "why not warm"), rows)


def _labels(lines: Sequence[Line], of_cpu: Mapping[tuple[str, str], Line]) -> list[str]:
    rows = []
    for line in lines:
        other = of_cpu.get((line["recipe"], line["boundary"]))
        phase = max(line["phases"], key=lambda name: line["phases"][name])
        worst = None
        if other is not None:
            differences = {name: size - other["phases"].get(name, 0) for name, size in line["phases"].items()}
            name = max(differences, key=lambda key: abs(differences[key]))
            worst = f"{differences[name]:+,} B ({name})"
        rows.append(
            [
                line["recipe"], line["boundary"], phase, _mb(line["peak_bytes"]),
                _percent(line["ledger_bytes"], line["peak_bytes"]),
                _percent(other["peak_bytes"], line["peak_bytes"]) if other else None, worst,
            ]
        )  # fmt: skip
    head = ("recipe", "setting", "phase", "measured, MB", "ledger, %", "cpu backend, %", "phase farthest from the cpu backend")
    return _rows(head, rows)


def _survey(by: Mapping[str, Sequence[Line]]) -> list[str]:
    fresh = {line["boundary"]: line for line in by.get("fresh", [])}
    rows = []
    for line in by.get("switched", []):
        own = fresh.get(line["boundary"], {})
        steps = f"{median(line['step_ms']):.2f}" if line["step_ms"] else None
        rows.append(
            [
                line["boundary"], _mb(line["switched_bytes"]), _percent(line["predicted_bytes"], line["switched_bytes"]),
                _percent(own.get("fresh_bytes"), line["switched_bytes"]), _mb(own.get("reserved_bytes")),
                f"{line['replay_ms']:.2f}" if line["replay_ms"] is not None else None, steps,
            ]
        )  # fmt: skip
    head = ("setting", "switched, MB", "predicted, %", "fresh, %", "fresh reserved, MB", "priced replay, ms", "switched step, ms")
    guards = [
        f"- guard {line['name']}: {'passed' if line['passed'] else 'FAILED'}, {line['detail']}" for line in by.get("guard", [])
    ]
    return [*_rows(head, rows), *guards, *([""] if guards else [])]


def _memory(by: Mapping[str, Sequence[Line]]) -> list[str]:
    said = [
        f"Out of memory at {_mb(line['capacity_bytes'])} MB of {_mb(line['peak_bytes'])} MB: {line['failure_class']} in "
        f"{line['stage']}, {line['requested_bytes']} B asked for, snapshot {line['snapshot_bytes']} B, "
        f"all ended after {line['wall_s']:.1f} s."
        for line in by.get("out_of_memory", [])
    ]
    said += [
        f"The same setting after it: {line['peak_after_bytes']} B, before it {line['peak_before_bytes']} B."
        for line in by.get("after_out_of_memory", [])
    ]
    pairs = [(trial["used_before_bytes"], trial["used_after_bytes"]) for trial in by.get("trial", [])]
    moved = [after - before for before, after in pairs if before is not None and after is not None]
    if moved:
        most = f"{min(moved):+,} to {max(moved):+,} B"
        said.append(f"GPU memory in use after a trial minus before it: {most} over {len(moved)} trials.")
    return [*said, *([""] if said else [])]


def _not(by: Mapping[str, Sequence[Line]]) -> list[str]:
    said = [f"- not reached: {line['what']} ({line['why']})" for line in by.get("not_reached", [])]
    return said + [f"- failed: {line['what']}: {line['error']}" for line in by.get("failed", [])]
