"""Survey launches of the tiny recipes: predicted against switched against freshly launched peaks, prices against steps.

    python -m benchmarks.survey RECIPE [--base full|broad|control] [--settings N] [--fresh K] [--rounds R] [OVERRIDE ...]

``--settings 0`` switches to every setting; else to N drawn with ``--seed``. ``--fresh K`` launches K of them by themselves.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click

from autotune.boundary.boundary import Boundary
from autotune.errors import AutotuneError
from autotune.records import dump_json
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.spec import TrialSpec
from autotune.trial.survey.choose import all_settings
from autotune.trial.survey.launch import read_report, survey_spec
from autotune.trial.survey.plan import SurveyPlan
from autotune.trial.survey.report import SurveyReport
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload


@click.command(help=__doc__)
@click.argument("recipe")
@click.argument("overrides", nargs=-1)
@click.option("--base", type=click.Choice(["full", "broad", "control"]), default="full", show_default=True)
@click.option("--settings", "count", type=int, default=20, show_default=True, help="Settings to switch to; 0 is all.")
@click.option("--only", multiple=True, help="Switch to these settings instead, by key (moe+layernorm, full/uniform/2).")
@click.option("--fresh", type=int, default=0, show_default=True, help="Settings to launch by themselves too.")
@click.option("--rounds", type=int, default=0, show_default=True, help="Interleaved rounds for step times.")
@click.option("--cost-rounds", type=int, default=0, show_default=True, help="Pairs of recorded and plain steps.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def main(
    *,
    recipe: str,
    overrides: tuple[str, ...],
    base: str,
    count: int,
    only: tuple[str, ...],
    fresh: int,
    rounds: int,
    cost_rounds: int,
    seed: int,
    form: str,
) -> None:
    """Measure and print."""
    try:
        workload = resolve_workload(recipe, overrides=overrides)
        table = measure(
            workload, base=base, keys=only, count=count, fresh=fresh, rounds=rounds, cost_rounds=cost_rounds, seed=seed
        )
    except AutotuneError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(int(error.exit_status))
    click.echo(dump_json(table) if form == "json" else render(table), nl=form == "text")


def labels_of(workload: Workload) -> tuple[str, ...]:
    """The labels that are valid together on a workload: those of its distinct candidates."""
    from autotune.search.space import build_candidates
    from autotune.workload.architecture import classify

    distinct = [c.boundary for c in build_candidates(workload, classify(workload)) if c.status == "distinct"]
    return tuple(sorted({label for boundary in distinct for label in boundary.modules}))


def boundary_of(key: str) -> Boundary:
    """A boundary by its key."""
    if key.startswith("full/"):
        _, method, layers = key.split("/")
        return Boundary.full("uniform" if method == "uniform" else "block", int(layers))
    return Boundary.selective([] if key == "[]" else key.split("+"))


def measure(
    workload: Workload, *, base: str, keys: Sequence[str], count: int, fresh: int, rounds: int, cost_rounds: int, seed: int
) -> dict[str, object]:
    """One survey launch, then fresh launches of some of its settings."""
    labels = labels_of(workload)
    stage_layers = workload.model.num_layers // workload.parallel.pipeline_model_parallel_size
    settings = [boundary_of(key) for key in keys] or list(all_settings(labels, stage_layers))
    drawn = random.Random(seed)
    if not keys and count:
        drawn.shuffle(settings)
        settings = settings[:count]
    boundary = {"full": Boundary.full("uniform", 1), "broad": Boundary.selective(labels), "control": Boundary.selective()}[base]
    if boundary not in settings:
        settings.append(boundary)
    plan = SurveyPlan(labels=labels, candidates=tuple(settings), switch_to=-1, interleaved_rounds=rounds, cost_rounds=cost_rounds)
    root = Path(tempfile.mkdtemp(prefix="survey-"))

    def spec(number: int, setting: Boundary) -> TrialSpec:
        return TrialSpec(
            number=number,
            workload=workload,
            boundary=setting,
            world_size=workload.parallel.world_size,
            steps=2,
            backend="cpu",
            folder=str(root / f"{number:03d}"),
        )

    with Zygote("cpu") as zygote:
        launch = run_trial(survey_spec(spec(0, boundary), plan, boundary), zygote=zygote, wall_limit_s=3600)
        report = read_report(root / "000")
        if report is None:
            raise AutotuneError(f"the survey launch ended before its report: {launch.failure}")
        again = drawn.sample([s.boundary for s in report.switched], min(fresh, len(report.switched)))
        freshly = {
            setting.key: _fresh_difference(report, setting, run_trial(spec(1 + n, setting), zygote=zygote).ranks)
            for n, setting in enumerate(again)
        }
    return {"recipe": workload.name, "folder": str(root), **_figures(report), "fresh_minus_switched_bytes": freshly}


def _fresh_difference(report: SurveyReport, setting: Boundary, ranks: object) -> int:
    switched = report.measurement(setting)
    assert switched is not None and isinstance(ranks, dict)
    peaks: list[int] = [max(rank.iterations[-1]["phases"].values()) for rank in ranks.values()]
    return max(peaks) - switched.peak_bytes


def _figures(report: SurveyReport) -> dict[str, object]:
    rows, errors, pairs_right, pairs = [], [], 0, 0
    base = mean(report.base_step_ms) if report.base_step_ms else 0.0
    base_boundary = report.prediction(report.base)
    base_price = base_boundary.price.replay_ms if base_boundary is not None else 0.0
    for setting in report.switched:
        predicted = report.prediction(setting.boundary)
        assert predicted is not None
        errors.append(setting.error_fraction)
        rows.append(
            {
                "boundary": setting.boundary.key,
                "switched_peak_bytes": setting.peak_bytes,
                "predicted_peak_bytes": predicted.peak_bytes,
                "error_percent": round(100 * setting.error_fraction, 4),
                "phase": predicted.phase,
                "replay_ms": round(predicted.price.replay_ms, 1),
                "replay_error_ms": round(predicted.price.standard_error_ms, 1),
                "step_minus_base_ms": round(mean(setting.step_ms) - base, 1) if setting.step_ms else None,
                "step_error_ms": (
                    round(stdev(setting.step_ms) / len(setting.step_ms) ** 0.5, 1) if len(setting.step_ms) > 1 else None
                ),
                "replay_minus_base_ms": round(predicted.price.replay_ms - base_price, 1),
            }
        )
    ordered = [(s.peak_bytes, report.prediction(s.boundary)) for s in report.switched]
    for number, (peak, first) in enumerate(ordered):
        for other_peak, second in ordered[number + 1 :]:
            if abs(peak - other_peak) > 0.005 * peak and first is not None and second is not None:
                pairs += 1
                pairs_right += (first.peak_bytes < second.peak_bytes) == (peak < other_peak)
    return {
        "base": report.base.key,
        "inert_labels": report.inert_labels,
        "guards": report.guards,
        "settings": len(rows),
        "exact": sum(error == 0 for error in errors),
        "worst_error_percent": round(100 * max(errors, key=abs, default=0.0), 4),
        "pairs_ordered": f"{pairs_right} of {pairs}",
        "step_ms": report.surveyed_step_ms,
        "host_thread_ms": report.host_thread_ms,
        "recording_cost": {kind: _cost(own, report.host_thread_ms["plain"]) for kind, own in report.recording_cost_ms.items()},
        "sizes": report.sizes,
        "rows": rows,
    }


def _cost(pairs_ms: Sequence[float], step_ms: float) -> str:
    if len(pairs_ms) < 2:
        return "not measured"
    error = stdev(pairs_ms) / len(pairs_ms) ** 0.5
    return f"{mean(pairs_ms):.1f} ms (standard error {error:.1f}), {100 * mean(pairs_ms) / step_ms:.1f} % of a step"


def render(table: dict[str, object]) -> str:
    """The table for a terminal."""
    lines = [f"{key}: {value}" for key, value in table.items() if key not in ("rows", "guards")]
    guards: Any = table["guards"]
    rows: Any = table["rows"]
    lines += [f"guard {guard.name}: {'passed' if guard.passed else 'FAILED'}, {guard.detail}" for guard in guards]
    lines += ["  ".join(rows[0])] if rows else []
    lines += ["  ".join(str(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
