"""Patch and overrides applied to the live recipe of the installed Megatron Bridge, finalised as Bridge does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import sample_recommendation

from autotune.boundary.boundary import Boundary
from autotune.report.write import write_outputs
from autotune.workload.bridge_recipe import installed_bridge, load_live

# Asked of the package's metadata: importing Bridge here would need Transformer Engine.
pytestmark = [
    pytest.mark.bridge,
    pytest.mark.slow,
    pytest.mark.skipif(installed_bridge() is None, reason="megatron-bridge is not installed"),
]

RECIPE = "nemotron_3_nano_pretrain_16gpu_h100_bf16_config"
BOUNDARIES = (Boundary.off(), Boundary.selective(["moe"]))  # a load takes ten seconds and more
PATCHED = """
import runpy
from autotune.workload.bridge_loader import find_recipe

def recipe():
    function, _ = find_recipe("{recipe}")
    return runpy.run_path({patch!r})["apply"](function())
"""


def expected(boundary: Boundary) -> dict[str, Any]:
    return boundary.to_fields()


def as_applied(recompute: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: recompute.get(name) for name in Boundary.off().to_fields()}
    return fields | {"recompute_modules": list(fields["recompute_modules"] or [])}


@pytest.mark.parametrize("boundary", BOUNDARIES, ids=lambda boundary: boundary.key)
def test_patch_applies(
    boundary: Boundary, write_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(replace(sample_recommendation(), boundary=boundary.to_fields()))
    write_outputs(folder)
    (tmp_path / "patched_recipe.py").write_text(PATCHED.format(recipe=RECIPE, patch=str(folder / "patch.py")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    workload = load_live("patched_recipe:recipe", world_size=16, gpu="H100")
    assert as_applied(workload.recipe_recompute) == expected(boundary)


def test_overrides_apply(write_run: Callable[..., Path]) -> None:
    folder = write_run(sample_recommendation())
    write_outputs(folder)
    workload = load_live(RECIPE, overrides=(folder / "overrides.txt").read_text().split())
    assert as_applied(workload.recipe_recompute) == expected(Boundary.selective(["moe"]))
