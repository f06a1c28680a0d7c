"""What a trial on Ray costs beyond its ranks' own time: real Megatron trials in a row, forked from zygotes or cold.

    python -m benchmarks.overhead [--recipe moonlight_tiny] [--trials 10] [--cold] [--format text|json]

A trial's own time is from the moment its last rank has imported all it needs to the last line that a rank writes. The rest,
from one trial's request to the next one's, is the cost: request, order, fork or start, imports, notice of the end, clean-up,
record. ``--cold`` takes a rank program that keeps a thread, so that the slots' self-test refuses to fork from it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import click

from autotune.boundary.boundary import Boundary
from autotune.cluster.backend import ClusterBackend
from autotune.records import dump_json
from autotune.trial.backends.base import TrialRequest
from autotune.trial.lines import read_lines
from autotune.trial.record import TrialRecord
from autotune.workload.resolve import resolve_workload

STEPS = 3


class Row:
    """A source of equal trials, one after the other."""

    def __init__(self, folder: Path, world_size: int, trials: int) -> None:
        self._folder, self._world_size, self._left = folder, world_size, trials
        self.began_s: list[float] = []
        self.records: list[TrialRecord] = []
        self.folders: list[Path] = []

    @property
    def finished(self) -> bool:
        """Whether all were asked for."""
        return not self._left

    def next_request(self) -> TrialRequest | None:
        """The next one."""
        if not self._left:
            return None
        self._left -= 1
        number = len(self.began_s)
        self.folders.append(self._folder / f"{number:03d}")
        self.folders[-1].mkdir()
        self.began_s.append(time.time())
        return TrialRequest(
            number=number,
            boundary=Boundary.selective(()),
            workload_digest="overhead",
            world_size=self._world_size,
            steps=STEPS,
            folder=self.folders[-1],
        )

    def accept(self, request: TrialRequest, record: TrialRecord) -> None:
        """Keep a result."""
        if record.failure is not None:
            raise RuntimeError(f"trial {record.number} failed: {record.failure}")
        self.records.append(record)

    def progress(self, request: TrialRequest, figures: Mapping[str, Any]) -> None:
        """Nothing: only the ends count."""


def own_s(folder: Path) -> tuple[float, float]:
    """Of one trial: seconds until its last rank had all imported, and from there to the last line, by the ranks' clocks."""
    ranks = [read_lines(path) for path in sorted((folder / "ranks").glob("*.jsonl"))]
    started = min(lines[0]["t"] for lines in ranks)
    ready = max(line["t"] for lines in ranks for line in lines if line["event"] == "loop")
    ended = max(lines[-1]["t"] for lines in ranks)
    return ready - started, ended - ready


def measure(recipe: str, trials: int, *, cold: bool) -> dict[str, Any]:
    """Run the trials on a cluster of our own; one more than asked for, since a cost is from one start to the next."""
    workload = resolve_workload(recipe, overrides=())
    notes: list[str] = []
    program = "benchmarks.threaded_rank" if cold else "autotune.trial.rank"
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        backend = ClusterBackend(workload, backend="cpu", program=program, on_note=notes.append)
        row = Row(Path(name), workload.parallel.world_size, trials + 1)
        try:
            backend.open()
            backend.drive(row, Path(name))
        finally:
            backend.close()
        own = [own_s(folder) for folder in row.folders]
    cost = [after - before - ranks for (before, after), (_, ranks) in zip(pairwise(row.began_s), own, strict=False)]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "recipe": recipe,
        "ranks": workload.parallel.world_size,
        "cold": cold,
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "cost_s": [round(seconds, 2) for seconds in cost],
        "median_s": round(median(cost), 2),
        "most_s": round(max(cost), 2),
        "imports_s": [round(imports, 2) for imports, _ in own[:-1]],
        "own_s": [round(ranks, 2) for _, ranks in own[:-1]],
        "notes": notes,
    }


@click.command(help=__doc__)
@click.option("--recipe", default="moonlight_tiny", show_default=True)
@click.option("--trials", type=int, default=10, show_default=True)
@click.option("--cold", is_flag=True, help="Each rank is a new program.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(*, recipe: str, trials: int, cold: bool, form: str) -> None:
    """Measure and print."""
    told = measure(recipe, trials, cold=cold)
    if form == "json":
        click.echo(dump_json(told), nl=False)
        return
    how = "cold processes" if cold else "zygotes"
    load = f"load {told['load_before']} to {told['load_after']}"
    click.echo(f"{told['date']}, {told['ranks']} ranks of {recipe}, {how}, {load}; {'; '.join(told['notes'])}")
    click.echo(f"seconds a trial beyond its ranks' own time: median {told['median_s']}, most {told['most_s']}")
    click.echo(f"  each: {' '.join(map(str, told['cost_s']))}")
    click.echo(f"  of it imports: {' '.join(map(str, told['imports_s']))}")
    click.echo(f"  the ranks' own: {' '.join(map(str, told['own_s']))}")


if __name__ == "__main__":
    main()
