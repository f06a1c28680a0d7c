"""Real searches of a tiny recipe, one a memory limit, judged by its exhaustive table: launches, optimum, false passes.

    python -m benchmarks.limits RECIPE --out FILE [--truths DIR] [--every N] [--format text|json]

The limits are the ten of the table. Each search is a whole ``autotune run`` of its own, with launches on this machine; what
is cheapest is what the table's independent prices say, settings closer than two standard errors tie. Rows are written as
they come; a file that holds some goes on with the others.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import click

from autotune.boundary.boundary import Boundary
from autotune.engine.request import Request
from autotune.engine.run import run
from autotune.errors import AutotuneError
from autotune.records import dump_json, load_json, write_atomically
from benchmarks.played_truth import Truth
from benchmarks.truth_report import TRUTHS

WITHIN = 0.01
"""Of a step: the table's launches and prices tell settings apart no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """One search; bytes and prices of ``true_`` fields are the table's."""

    limit_bytes: int
    answer: str | None
    verdict: str
    kind: str
    exit_status: int
    peak_bytes: int | None
    optimum: str | None
    true_peak_bytes: int | None
    nearest_percent: float
    """How near to the limit, in percent of it, the nearest true peak is of the settings as cheap as the optimum or cheaper."""
    launches: int
    """Whole ones, the survey's among them."""
    launched: tuple[str, ...]
    """Each of them: setting, repeat reason, status."""
    dearer_percent: float | None
    found: bool
    false_pass: bool
    certificate_wrong: tuple[str, ...]
    """Settings that the certificate excludes, although they fit and are cheaper by more than 1 % of a step."""
    left_open: tuple[str, ...]
    wall_s: float


@click.command(help=__doc__)
@click.argument("recipe")
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--truths", type=click.Path(path_type=Path), default=TRUTHS)
@click.option("--every", type=int, default=1, show_default=True, help="Only each N-th limit.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(*, recipe: str, out: Path, truths: Path, every: int, form: str) -> None:
    """Search, write, print."""
    table = load_json(truths / f"{recipe}.json", dict)
    truth = Truth(table)
    rows: list[dict[str, Any]] = load_json(out, dict)["rows"] if out.exists() else []
    try:
        for limit in table["mem_targets_bytes"][::every]:
            if limit not in {row["limit_bytes"] for row in rows}:
                rows.append(asdict(search(truth, recipe, limit)))
                write_atomically(out, dump_json({"recipe": recipe, "rows": rows}))
                click.echo(render([rows[-1]]), err=True, nl=False)
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    click.echo(dump_json({"recipe": recipe, "rows": rows, **summary(rows)}) if form == "json" else render(rows), nl=False)
    if form == "text":
        click.echo("\n".join(f"{name}: {value}" for name, value in summary(rows).items()))


def search(truth: Truth, recipe: str, limit_bytes: int) -> SearchRow:
    """One search, and what the table says of its answer."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="limits-") as folder:
        found = run(Request(recipe=recipe, mem_target_bytes=limit_bytes, out=Path(folder) / "run"))
    wall_s = time.monotonic() - began
    answer = Boundary.from_fields(found.boundary) if found.boundary is not None else None
    optimum = truth.optimum(limit_bytes)
    dearer = None
    if answer is not None and optimum is not None:
        dearer = 100 * truth.dearer_ms(answer, optimum) / truth.step_ms(optimum)
    fitting = [b for b in truth.rows if truth.peak_bytes(b) <= limit_bytes]
    cheaper = {b.key for b in fitting if answer is None or truth.dearer_ms(answer, b) > WITHIN * truth.step_ms(answer)}
    left_open = {row.name for row in found.certificate if row.basis == "open"}
    decisive = [b for b in truth.rows if optimum is None or truth.step_ms(b) <= truth.step_ms(optimum)]
    return SearchRow(
        limit_bytes=limit_bytes,
        answer=found.name,
        verdict=found.verdict,
        kind=found.kind,
        exit_status=found.exit_status,
        peak_bytes=found.peak_bytes,
        optimum=optimum.key if optimum is not None else None,
        true_peak_bytes=round(truth.peak_bytes(answer)) if answer is not None else None,
        nearest_percent=round(min(abs(100 * (truth.peak_bytes(b) / limit_bytes - 1)) for b in decisive), 3),
        launches=len(found.trials),
        launched=tuple(f"{t.name}{f' ({t.repeat_reason})' if t.repeat_reason else ''}: {t.status}" for t in found.trials),
        dearer_percent=None if dearer is None else round(max(0.0, dearer), 3),
        found=answer == optimum or (dearer is not None and dearer <= 100 * WITHIN),
        false_pass=answer is not None and truth.peak_bytes(answer) > limit_bytes,
        certificate_wrong=tuple(sorted(cheaper - left_open)),
        left_open=tuple(sorted(left_open)),
        wall_s=round(wall_s, 1),
    )


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all searches of a recipe."""
    return {
        "searches": len(rows),
        "launches mean": round(mean(row["launches"] for row in rows), 2),
        "in two launches or fewer": sum(row["launches"] <= 2 for row in rows),
        "optimum found": sum(row["found"] for row in rows),
        "dearer than the optimum, mean percent of a step": round(mean(row["dearer_percent"] or 0.0 for row in rows), 3),
        "false passes": sum(row["false_pass"] for row in rows),
        "certificates right": sum(not row["certificate_wrong"] for row in rows),
        "wall seconds mean": round(mean(row["wall_s"] for row in rows), 1),
    }


def render(rows: list[dict[str, Any]]) -> str:
    """A line a search."""
    lines = []
    for row in rows:
        words = [
            f"{row['limit_bytes'] / 1e6:.2f} MB: {row['answer'] or 'none'} ({row['verdict']}",
            f"{row['launches']} launches: {', '.join(row['launched'])}; {row['wall_s']:.0f} s)",
            f"optimum {row['optimum'] or 'none'}, dearer {row['dearer_percent']} %, found {row['found']}",
            f"false pass {row['false_pass']}, nearest peak {row['nearest_percent']} %",
            f"certificate wrong {', '.join(row['certificate_wrong']) or 'nowhere'}, open {len(row['left_open'])}",
        ]
        lines.append(", ".join(words) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
