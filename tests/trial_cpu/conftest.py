"""Warm processes that the tests of real trials share, and a short way to run one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.trial.launch import Zygote, run_trial
from autotune.trial.record import TrialRecord
from autotune.trial.spec import Loop, TrialSpec
from autotune.workload.resolve import resolve_workload

RunTrial = Callable[..., TrialRecord]


def boundary_of(key: str) -> Boundary:
    """A boundary by its key: ``[]``, ``off``, ``layernorm+moe_act``, ``full/uniform/1``."""
    if key in ("off", "[]"):
        return Boundary.off() if key == "off" else Boundary.selective()
    if key.startswith("full/"):
        _, method, layers = key.split("/")
        return Boundary.full(method, int(layers))  # type: ignore[arg-type]
    return Boundary.selective(key.split("+"))


@pytest.fixture(scope="session")
def zygotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Loop | None], Zygote]]:
    """A zygote of each loop, made when first asked for."""
    made: dict[Loop | None, Zygote] = {}
    log = tmp_path_factory.mktemp("zygotes") / "zygote.log"

    def get(loop: Loop | None = None) -> Zygote:
        if loop not in made or not made[loop].alive:
            made[loop] = Zygote("cpu", loop=loop, log=log)
        return made[loop]

    yield get
    for zygote in made.values():
        zygote.close()


@pytest.fixture
def run(zygotes: Callable[[Loop | None], Zygote], tmp_path: Path) -> RunTrial:
    """``run(alias, key, steps=, loop=, overrides=, capacity_bytes=, folder=, on_line=, wall_limit_s=)``."""
    count = 0

    def run(alias: str, key: str, **options: Any) -> TrialRecord:
        nonlocal count
        count += 1
        workload = resolve_workload(alias, overrides=options.pop("overrides", ()))
        loop = options.pop("loop", None)
        launch = {name: options.pop(name) for name in ("on_line", "wall_limit_s") if name in options}
        spec = TrialSpec(
            number=count,
            workload=workload,
            boundary=boundary_of(key),
            world_size=workload.parallel.world_size,
            steps=options.pop("steps", 2),
            backend="cpu",
            loop=loop,
            folder=str(options.pop("folder", tmp_path / f"{count:03d}")),
            **options,
        )
        return run_trial(spec, zygote=zygotes(loop), **launch)

    return run
