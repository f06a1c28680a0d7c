"""Play the samplers against truth tables: launches to the certified answer, regret, false passes.

    python -m benchmarks.search [--truths DIR] [--plays N] [--samplers planner,tpe,...] [--out FILE] [--format json]

Without ``--truths`` tables are drawn (``benchmarks/generator.py``). A play is a table, a memory limit and a noise seed.
With ``--out`` every play is written as it ends, and one that is in the file already is not played again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from autotune.boundary.boundary import Boundary
from autotune.records import load_json
from autotune.search.certificate import certificate
from autotune.search.evidence import Evidence
from autotune.search.exhaustive import ExhaustiveSampler
from autotune.search.optuna_samplers import OptunaSampler
from autotune.search.planner import Planner
from autotune.search.proposal import Sampler
from autotune.trial.gates import GateSettings
from autotune.trial.record import TrialRecord
from benchmarks.generator import Machine
from benchmarks.oracle import Oracle
from benchmarks.played_truth import Truth

SAMPLERS = (
    "survey_switch", "survey_only", "planner", "tpe", "tpe_ordered", "gp", "gp_ordered", "random", "narrow_first", "exhaustive",
    "oracle",
)  # fmt: skip
PLANNERS = ("survey_switch", "survey_only", "planner")
SURVEYED = ("survey_switch", "survey_only")
KINDS = ("switchable", "fixed", "by_chance")
"""Drawn tables: settings can be switched at run time, they cannot (graph pools), launches near the limit fail by chance."""
GPU_HOURS_PER_LAUNCH = 16 * 4 / 60
WITHIN = 0.01
DRAWS = 800
FAILS_BY_CHANCE = 0.05
"""A setting fails by chance where its true peak is within the limit and so many of its launches fail all the same."""
CLEAR_PERCENT = 1.0
"""A play is clear where no peak that decides it is so near the limit: closer, two launches of one boundary may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One play."""

    table: str
    kind: str
    limit_bytes: int
    seed: int
    sampler: str
    launches: int
    switched_steps: int
    oom_launches: int
    answer: str | None
    optimum: str | None
    launches_to_optimum: int | None
    """The launch that first ran an optimum alone; None where none did."""
    margin_percent: float
    """How near to the limit the peaks are that decide the play: the optimum's, and those of what is cheaper."""
    regret_percent_of_step: float | None
    found: bool
    false_pass: bool
    """The answer passed, and its true peak is over the limit."""
    unproven: bool
    """The answer was launched and is no pass: the search says that it may as well be over the limit."""
    false_unproven: bool
    """It is."""
    by_chance: bool
    """The optimum fails by chance: in one launch of twenty or more, though its true peak is within the limit."""
    answer_fails_percent: float
    """How often a launch of the answer fails, by the truth."""
    stated_risk_percent: float
    """What the search says of the answer: that its mean peak is over the limit."""
    dependable: bool
    """The answer is no dearer than the cheapest setting that fits and does not fail by chance."""
    certificate_right: bool
    """Nothing that the certificate excludes fits and is cheaper by more than 1 %; what it leaves open is not excluded."""
    left_open: int
    """Settings that the certificate leaves open."""
    gpu_hours: float


def play(truth: Truth, limit_bytes: int, seed: int, sampler_name: str) -> Play:
    """One play to its end."""
    settings = GateSettings(limit_bytes=limit_bytes, loss_ratio=None)
    evidence = Evidence(truth.candidates, settings)
    optimum = truth.optimum(limit_bytes)
    sampler = _sampler(sampler_name, truth, evidence, seed, hopeless=optimum is None)
    number, switched_steps, reached = 0, 0, None
    while sampler.done() is None:
        (proposal,) = sampler.ask(1)
        record = truth.launch(
            proposal.boundary, number=number, run_index=evidence.runs(proposal.boundary), limit_bytes=limit_bytes, seed=seed
        )
        number += 1
        if proposal.survey and isinstance(sampler, Planner):
            findings = None
            if record.completed:
                findings, steps = truth.survey(record, limit_bytes, seed, switch=sampler_name == "survey_switch")
                switched_steps += steps
            sampler.tell_survey(record, findings)
            continue
        sampler.tell(record if proposal.repeat_reason is None else _as_repeat(record, proposal.repeat_reason))
        best = evidence.best()
        if optimum is not None and reached is None and record.completed and _as_good(truth, proposal.boundary, optimum):
            reached = number
        if sampler_name == "narrow_first" and best is not None:
            break
        # Optuna has no certificate: its samplers are stopped by an oracle, as soon as an optimum has passed.
        oracle = sampler_name not in PLANNERS and sampler_name not in ("narrow_first", "oracle")
        if oracle and best is not None and optimum is not None and _as_good(truth, best, optimum):
            break
    answer = evidence.best()
    regret = None
    if answer is not None and optimum is not None:
        regret = 100 * truth.dearer_ms(answer, optimum) / truth.step_ms(optimum)
    found = (answer is None and optimum is None) or (regret is not None and regret <= 100 * WITHIN)
    candidates = sampler.candidates if isinstance(sampler, Planner) else truth.candidates
    rows = certificate(candidates, evidence, answer)
    left_open = {row.name for row in rows if row.basis == "open"}
    # Of two settings with the same effect one stands for both.
    left_open |= {c.boundary.key for c in candidates if c.same_as is not None and c.same_as.key in left_open}
    excluded = {b.key for b in truth.rows} - left_open
    passed = answer is not None and evidence.answered(answer).status == "pass"
    over = answer is not None and truth.peak_bytes(answer) > limit_bytes
    return Play(
        table=truth.recorded.name,
        kind=truth.kind,
        limit_bytes=limit_bytes,
        seed=seed,
        sampler=sampler_name,
        launches=number,
        switched_steps=switched_steps,
        oom_launches=sum(r.failure is not None for r in evidence.records),
        answer=answer.key if answer is not None else None,
        optimum=optimum.key if optimum is not None else None,
        launches_to_optimum=reached,
        margin_percent=_margin_percent(truth, optimum, limit_bytes),
        regret_percent_of_step=None if regret is None else round(max(regret, 0.0), 4),
        found=found,
        false_pass=passed and over,
        false_unproven=answer is not None and not passed and over,
        unproven=answer is not None and not passed,
        by_chance=optimum is not None and truth.fail_chance(optimum, limit_bytes) >= FAILS_BY_CHANCE,
        answer_fails_percent=0.0 if answer is None else round(100 * truth.fail_chance(answer, limit_bytes), 2),
        stated_risk_percent=0.0 if answer is None or not isinstance(sampler, Planner) else round(100 * sampler.risk(answer), 2),
        dependable=_dependable(truth, answer, limit_bytes),
        certificate_right=not (excluded & _better(truth, answer, limit_bytes)),
        left_open=len(left_open),
        gpu_hours=round(number * GPU_HOURS_PER_LAUNCH, 3),
    )


def _dependable(truth: Truth, answer: Boundary | None, limit_bytes: int) -> bool:
    steady = [b for b in truth.rows if truth.peak_bytes(b) <= limit_bytes and truth.fail_chance(b, limit_bytes) < FAILS_BY_CHANCE]
    cheapest = min(steady, key=lambda b: (truth.step_ms(b), b.key), default=None)
    if answer is None or cheapest is None:
        return cheapest is None
    return _as_good(truth, answer, cheapest)


def _as_good(truth: Truth, boundary: Boundary, optimum: Boundary) -> bool:
    return truth.dearer_ms(boundary, optimum) <= WITHIN * truth.step_ms(optimum)


def _margin_percent(truth: Truth, optimum: Boundary | None, limit_bytes: int) -> float:
    """Distance to the limit of the nearest peak that decides the play, in percent of the limit."""
    decisive = [b for b in truth.rows if optimum is None or truth.step_ms(b) <= truth.step_ms(optimum)]
    return round(min((abs(100 * (truth.peak_bytes(b) / limit_bytes - 1)) for b in decisive), default=100.0), 3)


def _sampler(name: str, truth: Truth, evidence: Evidence, seed: int, *, hopeless: bool) -> Sampler:
    """The sampler of a play. Where nothing fits, one without a certificate launches everything: in which order is no matter."""

    def lacks(boundary: Boundary, run_index: int) -> str | None:
        return None

    if name in PLANNERS:
        survey = name != "planner"
        return Planner(truth.candidates, evidence, lacks, seed=seed, draws=DRAWS, jitter=truth.jitter, survey=survey)
    if name == "oracle":
        return Oracle(truth, evidence)
    if name in ("narrow_first", "exhaustive") or hopeless:
        return ExhaustiveSampler(truth.candidates, evidence, lacks)
    stem, _, order = name.partition("_")
    return OptunaSampler(stem, truth.candidates, evidence, lacks, seed=seed, ordered=bool(order))


def _as_repeat(record: TrialRecord, reason: Any) -> TrialRecord:
    return replace(record, repeat_reason=reason)


def _better(truth: Truth, answer: Boundary | None, limit_bytes: int) -> set[str]:
    """Boundaries that truly fit and are cheaper than the answer by more than 1 % of a step."""
    fitting = [b for b in truth.rows if truth.peak_bytes(b) <= limit_bytes]
    return {b.key for b in fitting if answer is None or truth.dearer_ms(answer, b) > WITHIN * truth.step_ms(answer)}


def summarise(plays: Sequence[Play]) -> list[dict[str, Any]]:
    """Rows by kind of truth and sampler: all plays; those whose optimum does not fail by chance; those whose optimum does."""
    rows = []
    for kind, sampler in sorted({(p.kind, p.sampler) for p in plays}, key=lambda k: (k[0], SAMPLERS.index(k[1]))):
        own = [p for p in plays if (p.kind, p.sampler) == (kind, sampler)]
        parts = {"all": own, "steady": [p for p in own if not p.by_chance], "by chance": [p for p in own if p.by_chance]}
        rows += [{"kind": kind, "sampler": sampler, "optimum": name, **_row(part)} for name, part in parts.items() if part]
    return rows


def _row(own: Sequence[Play]) -> dict[str, Any]:
    regrets = sorted(p.regret_percent_of_step for p in own if p.regret_percent_of_step is not None)
    launches = sorted(p.launches for p in own)
    reached = [p.launches_to_optimum for p in own if p.launches_to_optimum is not None]
    clear = [p for p in own if p.margin_percent > CLEAR_PERCENT]
    return {
        "plays": len(own), "tables": len({p.table for p in own}),
        "switched_plays": sum(p.switched_steps > 0 for p in own),
        "launches_mean": round(mean(launches), 2), "launches_p95": launches[int(0.95 * (len(launches) - 1))],
        "to_optimum_mean": round(mean(reached), 2) if reached else None,
        "oom_launches_mean": round(mean(p.oom_launches for p in own), 2),
        "found_percent": round(100 * mean(p.found for p in own), 1),
        "found_clear_percent": round(100 * mean(p.found for p in clear), 1) if clear else None,
        "dependable_percent": round(100 * mean(p.dependable for p in own), 1),
        "regret_mean_percent": round(mean(regrets), 3) if regrets else None,
        "regret_p95_percent": regrets[int(0.95 * (len(regrets) - 1))] if regrets else None,
        "false_passes": sum(p.false_pass for p in own),
        "unproven": sum(p.unproven for p in own), "of_them_over": sum(p.false_unproven for p in own),
        "stated_risk_mean_percent": round(mean(p.stated_risk_percent for p in own), 2),
        "answer_fails_mean_percent": round(mean(p.answer_fails_percent for p in own), 2),
        "certificate_right_percent": round(100 * mean(p.certificate_right for p in own), 1),
        "left_open_percent": round(100 * mean(p.left_open > 0 for p in own), 1),
        "gpu_hours_mean": round(mean(p.gpu_hours for p in own), 2),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--truths", type=Path, help="folder of truth tables; drawn ones where it is not given")
    parser.add_argument("--plays", type=int, default=200, help="plays of each kind and sampler")
    parser.add_argument("--samplers", default="planner,narrow_first", help=f"of {', '.join(SAMPLERS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kind", choices=["any", *KINDS], default="any", help="of drawn tables; the plays of one kind are a piece"
    )
    parser.add_argument(
        "--most-settings", type=int, help="only drawn tables of at most so many settings, for samplers that take long"
    )
    parser.add_argument("--out", type=Path, help="file of finished plays, one a line: written as they end, and read back")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    options = parser.parse_args(arguments)
    samplers = options.samplers.split(",")
    unknown = [name for name in samplers if name not in SAMPLERS]
    if unknown:
        parser.error(f"--samplers: no sampler {', '.join(map(repr, unknown))}; there are {', '.join(SAMPLERS)}")
    if options.plays < 1:
        parser.error(f"--plays {options.plays}: at least one")
    if {"gp", "gp_ordered"} & set(samplers):
        import torch

        torch.set_num_threads(1)  # its matrices are tiny: threads that wait for each other made a play take minutes
    finished = _finished(options.out)
    plays: list[Play] = []
    left_out: set[tuple[str, str]] = set()
    for truth, limit, seed in _plays(options.truths, options.plays, options.seed, options.kind, options.most_settings):
        for sampler in samplers:
            table = truth.recorded.name
            if sampler in SURVEYED and truth.recorded.survey is None:
                if (table, sampler) not in left_out:
                    print(f"benchmarks.search: {table} has no survey: not played by {sampler}", file=sys.stderr)
                left_out.add((table, sampler))
                continue
            place = (table, limit, seed, sampler)
            if place not in finished:
                finished[place] = play(truth, limit, seed, sampler)
                _append(options.out, finished[place])
            plays.append(finished[place])
    if not plays:
        sys.exit("benchmarks.search: nothing to play: no table has a survey; --samplers planner plays them without one")
    summary = summarise(plays)
    if options.format == "json":
        print(json.dumps({"plays": [asdict(p) for p in plays], "summary": summary}, indent=2))
        return 0
    columns = list(summary[0])
    widths = [max(len(c), *(len(str(row[c])) for row in summary)) for c in columns]
    for line in [dict(zip(columns, columns, strict=True)), *summary]:
        print("  ".join(str(line[c]).rjust(w) for c, w in zip(columns, widths, strict=True)))
    return 0


_Place = tuple[str, int, int, str]
"""Table, limit, noise seed and sampler of a play."""


def _finished(path: Path | None) -> dict[_Place, Play]:
    if path is None or not path.exists():
        return {}
    plays = [Play(**json.loads(line)) for line in path.read_text().splitlines()]
    return {(p.table, p.limit_bytes, p.seed, p.sampler): p for p in plays}


def _append(path: Path | None, one: Play) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def _plays(
    folder: Path | None, count: int, seed: int, kind: str = "any", most_settings: int | None = None
) -> Iterator[tuple[Truth, int, int]]:
    """Tables with a limit and a noise seed each; every table is used in turn until there are enough plays."""
    if folder is None:
        machines = (Machine(number) for number in itertools.count(seed * 100_000))
        wanted = (m for m in machines if kind in ("any", _kind(m)) and len(m.settings()) <= (most_settings or inf))
        for index in range(count):
            if index % 3 == 0:
                table = next(wanted).table()
                truth = Truth(table)
            yield truth, table["mem_targets_bytes"][index % 3], index % 4
        return
    truths = _read(folder)
    draw = random.Random(seed)
    for index in range(count):
        truth, limits = truths[index % len(truths)]
        low, high = truth.range_bytes
        between = round(draw.uniform(low * 0.95, high * 1.05))
        turn = index // len(truths)
        # Every limit under one noise seed, then under the next: no play comes twice.
        yield truth, limits[turn % len(limits)] if limits else between, turn // max(len(limits), 1)


def _kind(machine: Machine) -> str:
    if machine.by_chance:
        return "by_chance"
    return "fixed" if machine.pool else "switchable"


def _read(folder: Path) -> list[tuple[Truth, Sequence[int]]]:
    """Truths of all files, with the limits that their tables name; a file may also hold tables of a study."""
    found = []
    for path in sorted(folder.glob("*.json")):
        content = load_json(path, dict)
        for table in content.get("tables", [content]):
            truth = Truth(table)
            if not truth.recorded.context_only:
                found.append((truth, table.get("mem_targets_bytes") or ()))
    if not found:
        sys.exit(f"benchmarks.search: no truth table in {folder}")
    return found


if __name__ == "__main__":
    sys.exit(main())
