"""The live reader against the installed Bridge: real recipes, real finalisation, in a subprocess."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from autotune.errors import RequestError
from autotune.records import to_builtins
from autotune.workload import catalog
from autotune.workload.bridge_recipe import DECLARED_VERSIONS, installed_bridge, load_live
from autotune.workload.fields import HOMES
from autotune.workload.overrides import known_paths
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Source, Stack, Workload

pytestmark = [pytest.mark.slow, pytest.mark.bridge]
SNAPSHOTS = [entry for entry in catalog.recipes() if entry.bridge_function is not None]


@pytest.fixture(autouse=True)
def _bridge() -> None:
    if installed_bridge() is None:
        pytest.skip("megatron-bridge is not installed")


def facts(workload: Workload) -> dict[str, object]:
    """A workload without what tells where it came from."""
    bare = replace(workload, name="", source=Source(kind="file", reference=""), stack=Stack())
    content: dict[str, object] = to_builtins(bare)
    return content


@pytest.mark.parametrize("entry", SNAPSHOTS, ids=lambda entry: entry.alias)
def test_snapshot_is_the_live_recipe(entry: catalog.CatalogEntry) -> None:
    if entry.revision != installed_bridge():
        pytest.skip(f"the snapshot is of Bridge {entry.revision}")
    assert entry.bridge_function is not None
    live = load_live(entry.bridge_function, overrides=entry.base_overrides)
    assert facts(live) == facts(catalog.load(entry.alias))


OVERRIDES = (
    "model.tensor_model_parallel_size=1",
    "model.context_parallel_size=1",
    "train.global_batch_size=64",
    "dataset.seq_length=4096",
    "mixed_precision.grad_reduce_in_fp32=true",
    "mixed_precision.fp8_recipe=delayed",
    "optimizer.use_precision_aware_optimizer=true",
    "optimizer.exp_avg_dtype=bfloat16",
    "model.recompute_granularity=selective",
    "model.recompute_modules=[mlp]",
)


def test_overrides_of_a_snapshot_are_what_bridge_makes_of_them() -> None:
    function = catalog.read("llama3_8b").entry.bridge_function
    assert function is not None
    live = load_live(function, overrides=OVERRIDES)
    ours = resolve_workload("llama3_8b", overrides=OVERRIDES)
    assert facts(ours) == facts(live)


def test_live_reader_says_what_it_stood_in_for_and_takes_module_and_function() -> None:
    reference = "megatron.bridge.perf_recipes.llama.h100.llama3:llama3_8b_pretrain_8gpu_h100_bf16_config"
    workload = resolve_workload(reference, overrides=["world_size=16"])
    assert workload.source.kind == "bridge_recipe"
    assert workload.source.revision == installed_bridge()
    assert workload.parallel.world_size == 16
    assert workload.source.overrides == ("world_size=16",)
    absent = subprocess.run([sys.executable, "-c", "import transformer_engine"], capture_output=True, check=False).returncode
    if absent:
        assert any("transformer_engine is not installed here" in note for note in workload.source.notes)
        assert workload.stack.transformer_engine == DECLARED_VERSIONS["transformer_engine"]


@pytest.mark.parametrize(
    ("reference", "overrides", "message"),
    [
        ("llama3_9b_pretrain_8gpu_h100_bf16_config", [], "did you mean llama3_8b_pretrain_8gpu_h100_bf16_config?"),
        ("megatron.bridge.nothing:here", [], "No module named 'megatron.bridge.nothing'"),
        ("vanilla_gpt_pretrain_config", ["model.hiden_size=3"], "hiden_size"),
    ],
)
def test_bad_live_request_is_one_line(reference: str, overrides: list[str], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        resolve_workload(reference, overrides=overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_home_is_a_field_of_bridge() -> None:
    old_names = {"model.cuda_graph_scope"}
    unknown = {path for path in HOMES if path not in known_paths()} - old_names
    assert unknown == set()
