"""Recipes ship with a recompute setting that is run on the GPUs they name: the ledger has to find that it fits them."""

from __future__ import annotations

import pytest

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.workload.catalog import recipes
from autotune.workload.gpu import load_gpu
from autotune.workload.resolve import resolve_workload

OF_GPUS = [entry.alias for entry in recipes() if entry.sized_for == "gpu"]
USABLE = 0.92
"""Share of an H100 that the allocator can have: context, NCCL and the dispatcher's buffers took 6 to 7 GB in published runs."""


@pytest.mark.parametrize("alias", OF_GPUS)
def test_the_setting_a_recipe_ships_with_fits_its_gpu(alias: str) -> None:
    workload = resolve_workload(alias)
    prediction = Ledger(workload).predict(Boundary.from_fields(workload.recipe_recompute))
    assert prediction.peak_p95_bytes <= USABLE * load_gpu(workload.hardware.gpu).device_memory_bytes


@pytest.mark.parametrize("alias", ["deepseek_v3", "nemotron3nano", "nemotron3super"])
def test_recipes_that_recompute_much_need_it(alias: str) -> None:
    workload = resolve_workload(alias)
    control = Ledger(workload).predict(Boundary.selective())
    assert control.peak_bytes > USABLE * load_gpu(workload.hardware.gpu).device_memory_bytes
