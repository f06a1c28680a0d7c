"""Rules taken away one at a time make the selected rows worse."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks.ablation import WORKLOADS, ablate, main, render
from benchmarks.rows import load_rows

FILE = Path(benchmarks.__file__).parent / "data" / "selected_rows.jsonl"


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[float, float]]:
    return ablate([row for row in load_rows(FILE) if row.table == "mlm_golden"])


def test_each_large_rule_is_worth_something(table: dict[str, tuple[float, float]]) -> None:
    whole = table["everything"][0]
    assert whole < 1
    for name in ("cross entropy assumed in place", "attention assumed fused", "dropout assumed 0", "without workspaces"):
        assert table[name][0] > 2 * whole


def test_every_rule_has_a_line_and_the_costliest_comes_first(table: dict[str, tuple[float, float]]) -> None:
    lines = render(table).splitlines()
    assert len(lines) == len(table) + 1
    assert lines[1].startswith("everything")
    assert set(WORKLOADS) < set(table)
    means = [float(line.split()[-2]) for line in lines[2:]]
    assert means == sorted(means, reverse=True)


def test_bad_file_is_one_line() -> None:
    result = CliRunner().invoke(main, ["--rows", "/nowhere.jsonl"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
