"""The sites this project counts with, against the flags that Megatron's own constructors set."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.boundary.accepted import accepted_labels, installed_core
from autotune.boundary.boundary import Boundary
from autotune.boundary.check import Checker
from autotune.records import dump_json
from autotune.workload.catalog import load
from autotune.workload.workload import Parallel, Workload

RECIPES = ("llama_tiny", "moonlight_tiny", "nemotron_tiny", "qwen3_moe_tiny", "qwen3_next_tiny")


def single(alias: str) -> Workload:
    """A small recipe on one rank, on the installed Megatron Core."""
    work = load(alias)
    core = installed_core()
    return replace(
        work,
        parallel=Parallel(world_size=1),
        train=replace(work.train, global_batch_size=1),
        stack=replace(work.stack, megatron_core=core.release if core else None),
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checker, dict[str, list[int]]]]:
    if installed_core() is None:
        pytest.skip("no Megatron Core installed")
    folder = tmp_path_factory.mktemp("workloads")
    questions, checkers = [], {}
    for alias in RECIPES:
        work = single(alias)
        checker = Checker.of(work)
        labels = sorted(accepted_labels(work.stack.megatron_core).labels)
        valid = [label for label in labels if checker.check(Boundary.selective([label])).status != "invalid"]
        (folder / f"{alias}.json").write_text(dump_json(work), encoding="utf-8")
        questions.append((str(folder / f"{alias}.json"), valid))
        checkers[alias] = checker
    script = Path(__file__).with_name("site_reader.py")
    done = subprocess.run(
        [sys.executable, "-P", str(script)], input=json.dumps(questions), capture_output=True, text=True, timeout=280, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(RECIPES), done.stderr[-3000:]
    return {alias: (checkers[alias], answer) for alias, answer in zip(RECIPES, answers, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("alias", RECIPES)
def test_sites_are_those_of_the_built_layers(alias: str, built: dict[str, tuple[Checker, dict[str, list[int]]]]) -> None:
    checker, answer = built[alias]
    if "missing" in answer:
        pytest.skip(f"this Megatron Core builds such layers only with {answer['missing']}")
    assert answer
    assert {label: list(checker.context.sites[label].layers) for label in answer} == answer
