"""Predicted against measured peaks, row by row, then the figures.

    python -m benchmarks.accuracy --rows FILE [--format text|json] [--half A|B] [--peers]

``FILE`` holds rows in the schema of the public measured rows (JSON lines) or tables in the form of the seed's (JSON).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from autotune.errors import AutotuneError
from autotune.records import dump_json
from benchmarks.accuracy_text import render
from benchmarks.rows import load_rows
from benchmarks.score import Scored, after_offset, deltas, score_row, setting_pairs, share, summarize


@click.command(help=__doc__)
@click.option("--rows", required=True, type=click.Path(path_type=Path), help="Measured rows (JSON lines) or tables (JSON).")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--half", type=click.Choice(["A", "B"]), help="Only the rows of one half (benchmarks/split.py).")
@click.option("--peers", is_flag=True, help="Also the estimators of installed packages, side by side.")
def main(rows: Path, form: str, half: str | None, peers: bool) -> None:
    """Print the table."""
    try:
        scored = [score_row(row) for row in load_rows(rows) if half is None or row.half == half]
        table = _peers(scored) if peers else {}
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    click.echo(dump_json(as_json(scored, table)) if form == "json" else render(scored, table), nl=form == "text")


def _peers(scored: list[Scored]) -> dict[str, dict[str, int | str]]:
    from benchmarks.peers import peer_table

    return peer_table([item.row for item in scored])


def as_json(scored: list[Scored], peers: dict[str, dict[str, int | str]] | None = None) -> dict[str, Any]:
    """The answer as plain data: ``rows`` and ``summary`` with at least the contract's keys."""
    figures = summarize(scored)
    offsets = after_offset(scored)
    pairs = setting_pairs(scored)
    answer: dict[str, Any] = {
        "kind": "predicted against measured",
        "rows": [_row(item, offsets) for item in scored],
        "summary": {
            "rows": figures.rows,
            "covered": figures.covered,
            "coverage": figures.coverage,
            "mape_percent": figures.mape_percent,
            "median_percent": figures.median_percent,
            "bias_percent": figures.bias_percent,
            "within_1_percent": figures.within_1_percent,
            "within_5_percent": figures.within_5_percent,
            "max_percent": figures.max_percent,
            "inside_interval_percent": figures.inside_interval_percent,
            "pairs": len(pairs),
            "pairs_ordered_percent": share(pair.ordered for pair in pairs),
            "over_30_gb": summarize(item for item in scored if (item.row.measured_bytes or 0) > 30e9),
            "families": {name: summarize(items) for name, items in by_family(scored).items()},
        },
        "deltas": deltas(scored),
    }
    if offsets:
        answer["summary"]["after_one_offset_mape_percent"] = sum(offsets.values()) / len(offsets)
    if peers:
        answer["peers"] = peers
    return answer


def by_family(scored: list[Scored]) -> dict[str, list[Scored]]:
    """Rows by family, in order of appearance."""
    families: dict[str, list[Scored]] = {}
    for item in scored:
        families.setdefault(item.row.family, []).append(item)
    return families


def _row(item: Scored, offsets: dict[str, float]) -> dict[str, Any]:
    row = item.row
    fields: dict[str, Any] = {
        "id": row.id,
        "table": row.table,
        "family": row.family,
        "half": row.half,
        "measured_bytes": row.measured_bytes,
        "predicted_bytes": item.predicted_bytes,
        "p05_bytes": item.p05_bytes,
        "p95_bytes": item.p95_bytes,
        "phase": item.phase,
        "stage": item.stage,
        "error_percent": None if item.error is None else 100 * item.error,
        "boundary": None if row.boundary is None else row.boundary.key,
        "marks": row.marks,
        "reason": item.reason,
    }
    if row.id in offsets:
        fields["after_one_offset_error_percent"] = offsets[row.id]
    return fields


if __name__ == "__main__":
    main()
