"""What the measured truth tables say of the survey: its peaks against fresh launches, its prices against interleaved steps.

python -m benchmarks.truth_report [--truths DIR] [--format text|json]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import click

from autotune.records import dump_json, load_json

TRUTHS = Path(__file__).parent / "data" / "truth"


@click.command(help=__doc__)
@click.option("--truths", type=click.Path(path_type=Path), default=TRUTHS)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(*, truths: Path, form: str) -> None:
    """Read and print."""
    rows = [report(load_json(path, dict)) for path in sorted(truths.glob("*.json"))]
    if form == "json":
        click.echo(dump_json(rows), nl=False)
        return
    for row in rows:
        click.echo("\n".join(f"{name}: {value}" for name, value in row.items()) + "\n")


def report(table: dict[str, Any]) -> dict[str, Any]:
    """Figures of one table; step times are those of ``prices`` in it, differences in percent of the control's step."""
    predicted = {_key(row): row for row in table["survey"]["predicted"]}
    pairs = [(row, predicted[_key(row)]) for row in table["rows"]]
    peaks = [(_peak(row), survey["peak_bytes"]) for row, survey in pairs]
    errors: list[float] = [100 * (survey / fresh - 1) for fresh, survey in peaks]
    worst = max(errors, key=abs)
    control = next(row for row in table["rows"] if row["granularity"] == "selective" and not row["modules"])
    found: dict[str, Any] = {
        "recipe": table["name"],
        "measured": f"{table['measured']['began']} to {table['measured']['ended']}, {table['measured']['machine']['cpu']}",
        "settings": len(pairs),
        "predicted before they ran": sum(_predicted_first(row, table["survey"].get("predicted_at")) for row in table["rows"]),
        "survey exact": sum(error == 0 for error in errors),
        "survey worst percent": round(worst, 3),
        "pairs of peaks over 0.5 % apart in order": _ordered(peaks, lambda fresh: 0.005 * fresh),
        "settings whose loss or gradient norm is not the control's to the bit": sum(
            (run["loss"], run["grad_norm"]) != (control["runs"][0]["loss"], control["runs"][0]["grad_norm"])
            for row in table["rows"]
            for run in row["runs"]
        ),
    }
    if "prices" in table:
        step = control["true_step_ms"]
        costs = [(row["true_step_ms"] - step, survey["replay_ms"]) for row, survey in pairs]
        dear = [(true, price) for true, price in costs if true > 0.05 * step]
        found |= {
            "step of the control, ms": step,
            "standard errors of prices, percent of a step": _range([100 * row["true_step_error_ms"] / step for row, _ in pairs]),
            "survey price over independent price, mean of those over 5 % of a step": round(mean(p / t for t, p in dear), 3),
            "survey price, mean error, percent of a step": round(100 * mean(abs(p - t) for t, p in costs) / step, 2),
            "pairs of prices over 5 % of a step apart in order": _ordered(costs, lambda _: 0.05 * step),
            "noise of one step, own effect, percent": [round(100 * table["prices"][n] / step, 2) for n in ("noise_ms", "own_ms")],
            "load while priced": table["prices"]["load_1m"],
        }
    return found


def _ordered(pairs: Sequence[tuple[float, float]], apart: Callable[[float], float]) -> str:
    """How many pairs whose first figures differ by more than ``apart`` have their second figures in the same order."""
    told = [(a, b) for a, b in itertools.combinations(pairs, 2) if abs(a[0] - b[0]) > apart(max(a[0], b[0]))]
    right = sum((a[1] < b[1]) == (a[0] < b[0]) for a, b in told)
    return f"{right} of {len(told)}"


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _predicted_first(row: dict[str, Any], predicted_at: str | None) -> bool:
    return predicted_at is not None and all(run.get("ended_at", "") > predicted_at for run in row["runs"])


def _peak(row: dict[str, Any]) -> int:
    return max(int(rank["allocated_peak_bytes"]) for run in row["runs"] for rank in run["ranks"].values())


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["granularity"], tuple(row["modules"] or ()), row["method"], row["num_layers"]


if __name__ == "__main__":
    main()
