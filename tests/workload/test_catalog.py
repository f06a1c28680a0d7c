from __future__ import annotations

import msgspec
import pytest

from autotune.errors import RequestError
from autotune.records import dump_json
from autotune.workload import catalog
from autotune.workload.architecture import classify
from autotune.workload.neutral import NEUTRAL
from autotune.workload.resolve import resolve_workload
from autotune.workload.workload import Workload

NAMED = (
    "nemotron3nano",
    "nemotron3super",
    "moonlight16b",
    "llama3_8b",
    "llama3_70b",
    "llama3_70b_sft",
    "llama31_405b",
    "qwen3_30b_a3b",
    "qwen3_235b_a22b",
    "qwen3_next_80b_a3b",
    "deepseek_v3",
    "kimi_k2",
    "gpt_oss_120b",
)
ALL = catalog.aliases()


def test_catalog_has_the_named_recipes() -> None:
    assert set(NAMED) <= set(ALL)


@pytest.mark.parametrize("alias", ALL)
def test_entry_agrees_with_its_workload(alias: str) -> None:
    content = catalog.read(alias)
    assert content.entry.alias == alias == content.workload.name
    assert content.entry.gpus == content.workload.parallel.world_size
    assert content.entry.gpu == content.workload.hardware.gpu
    assert content.entry.architecture == classify(content.workload).class_
    assert (content.entry.bridge_function is None) == (content.entry.revision is None)


@pytest.mark.parametrize("alias", ALL)
def test_recipe_resolves_and_survives_json(alias: str) -> None:
    workload = resolve_workload(alias)
    back = msgspec.json.decode(dump_json(workload), type=Workload)
    assert back == workload
    assert back.digest == workload.digest
    assert workload.source.kind == "catalog"
    assert workload.num_microbatches >= 1


@pytest.mark.parametrize("alias", NAMED)
def test_every_setting_of_a_snapshot_has_a_home(alias: str) -> None:
    # The one setting kept on purpose: overrides of the vocabulary need it.
    rest = {path for path in catalog.load(alias).other if path.rpartition(".")[2] not in NEUTRAL}
    assert rest <= {"tokenizer.use_tokenizer_vocab_size"}


def test_trial_override_belongs_to_the_alias_and_is_recorded() -> None:
    by_alias = resolve_workload("nemotron3nano")
    by_function = resolve_workload("nemotron_3_nano_pretrain_16gpu_h100_bf16_config")
    assert by_alias.train.global_batch_size == 16
    assert by_alias.source.overrides == ("train.global_batch_size=16",)
    assert by_function.train.global_batch_size == 1024
    assert by_function.source.overrides == ()


def test_nemotron3nano_is_the_run_and_not_the_text_of_the_recipe() -> None:
    # recipes/nemotronh/h100/nemotron_3_nano.py and perf_recipes/nemotronh/h100/nemotronh.py of Bridge 0.6.2; the last
    # two lines are what finalising makes of it.
    workload = catalog.load("nemotron3nano")
    assert (workload.parallel.world_size, workload.parallel.expert_model_parallel_size) == (16, 8)
    assert workload.train.seq_length == 8192
    assert workload.features.cuda_graph_impl == "transformer_engine"
    assert workload.features.cuda_graph_modules == ("attn", "mamba")
    assert workload.model.moe_router_force_load_balancing
    assert workload.model.moe_flex_dispatcher_backend == "hybridep"
    assert workload.env_vars["NCCL_GRAPH_REGISTER"] == "0"
    assert workload.recipe_recompute["recompute_modules"] == ["moe", "layernorm"]
    assert workload.optimizer.fp8_recipe == "tensorwise"
    assert not workload.features.tp_comm_overlap


def test_moonlight16b_copies_the_fp8_recipe_onto_its_optimizer() -> None:
    # training/mixed_precision.py:update_config_with_precision_overrides of Bridge 0.6.2 does it even for BF16, which
    # takes Megatron Core's precision-aware fast path away (optimizer_config.py).
    optimizer = catalog.load("moonlight16b").optimizer
    assert optimizer.use_precision_aware_optimizer
    assert optimizer.fp8_recipe == "tensorwise"


def test_llama3_70b_sft_has_the_published_layout() -> None:
    parallel = catalog.load("llama3_70b_sft").parallel
    assert parallel.tensor_model_parallel_size == 4
    assert parallel.pipeline_model_parallel_size == 4
    assert parallel.virtual_pipeline_model_parallel_size == 5
    assert parallel.data_parallel_size == 2


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RequestError) as caught:
        resolve_workload("nemotron3nan")
    assert str(caught.value) == "--recipe='nemotron3nan': no recipe of that name; did you mean nemotron3nano?"
    with pytest.raises(RequestError, match="autotune recipes"):
        resolve_workload("zzz")


def test_digest_ignores_recompute_name_and_source_only() -> None:
    workload = resolve_workload("moonlight16b")
    same = resolve_workload("moonlight16b", overrides=["model.recompute_modules=[moe]"])
    other = resolve_workload("moonlight16b", overrides=["train.micro_batch_size=2", "train.global_batch_size=8"])
    assert same.digest == workload.digest
    assert same.recipe_recompute != workload.recipe_recompute
    assert other.digest != workload.digest
