"""One look at one GPU without Transformer Engine: do the figures of the cpu backend and of the ledger hold on CUDA?

    python -m benchmarks.gpu_check --device cuda --out DIR [--against CPU_DIR/results.jsonl] [--minutes 8]
    python -m benchmarks.gpu_check --device cpu --out CPU_DIR

The same recipes through the same rank program, with the stand-ins for Transformer Engine, on the device that is asked for.
``--device cpu`` runs every line of it but the CUDA calls, on the counting allocator, and leaves the bytes to compare with.
Parts, each written to ``results.jsonl`` as soon as it is known: the machine; zygote and cold process; peaks of every label by
phase against ledger and cpu; survey, switch and fresh launches of a larger model; a real out-of-memory; memory back after it.
What the time does not reach is named. ``table.md`` is made of the lines at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autotune.errors import AutotuneError
from benchmarks.gpu_check_parts import PARTS, Check
from benchmarks.gpu_check_table import read_results, table


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--against", type=click.Path(path_type=Path, exists=True), help="results.jsonl of a run with --device cpu.")
@click.option("--minutes", type=float, default=8.0, show_default=True, help="Nothing is begun after so long.")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)), help="Only these; all of them otherwise.")
@click.option("--recipe", "recipes", multiple=True, help="Recipes whose labels are measured; four of this project otherwise.")
@click.option("--fresh", type=int, default=4, show_default=True, help="Settings of the survey to launch by themselves too.")
def main(
    *,
    device: str,
    out: Path,
    against: Path | None,
    minutes: float,
    parts: tuple[str, ...],
    recipes: tuple[str, ...],
    fresh: int,
) -> None:
    """Measure, write, print."""
    try:
        with Check(device=device, out=out, minutes=minutes, recipes=recipes, fresh=fresh) as check:
            for name, part in PARTS.items():
                if not parts or name in parts:
                    check.run(name, part)
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    text = table(read_results(out / "results.jsonl"), read_results(against) if against is not None else [])
    (out / "table.md").write_text(text)
    click.echo(text, nl=False)


if __name__ == "__main__":
    main()
