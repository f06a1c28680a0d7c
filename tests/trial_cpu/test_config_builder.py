"""From a Workload to Megatron's arguments, without Megatron."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.trial.config_builder import ddp_arguments, model_arguments, optimizer_arguments, padded_vocab_size, refuse_on_cpu
from autotune.trial.spec import TrialSpec
from autotune.workload.catalog import aliases, load, recipes
from autotune.workload.workload import Model, Parallel, Source, Train, Workload

torch = pytest.importorskip("torch")
KNOWN = frozenset(
    {"num_layers", "hidden_size", "params_dtype", "pipeline_dtype", "bf16", "fp16", "recompute_granularity",
     "recompute_modules", "recompute_method", "recompute_num_layers", "tensor_model_parallel_size", "moe_layer_freq"}
)  # fmt: skip


def a_workload(**model: Any) -> Workload:
    sizes: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "ffn_hidden_size": 16,
        "vocab_size": 1000,
    }
    return Workload(
        name="w",
        source=Source(kind="file", reference="w.json"),
        model=Model(**{**sizes, **model}),
        parallel=Parallel(world_size=2, tensor_model_parallel_size=2),
        train=Train(seq_length=8, global_batch_size=2),
    )


def test_fields_go_by_megatrons_names() -> None:
    known = KNOWN | {"num_attention_heads", "ffn_hidden_size"}
    arguments = model_arguments(a_workload(moe_layer_freq=(0, 1)), Boundary.full("block", 2), known)
    assert arguments["num_layers"] == 2 and arguments["moe_layer_freq"] == [0, 1]
    assert arguments["params_dtype"] is torch.bfloat16 is arguments["pipeline_dtype"]
    assert arguments["bf16"] is True and arguments["fp16"] is False
    assert (arguments["recompute_granularity"], arguments["recompute_method"], arguments["recompute_num_layers"]) == (
        "full",
        "block",
        2,
    )
    assert set(arguments) <= known


@pytest.mark.parametrize(
    ("boundary", "modules"),
    [(Boundary.selective(["mlp", "moe"]), ["mlp", "moe"]), (Boundary.selective(), []), (Boundary.off(), None)],
)
def test_the_control_is_an_empty_list_never_none(boundary: Boundary, modules: list[str] | None) -> None:
    arguments = model_arguments(a_workload(), boundary, KNOWN | {"num_attention_heads", "ffn_hidden_size"})
    assert arguments["recompute_modules"] == modules


def test_a_setting_that_the_installed_megatron_lacks_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="qk_layernorm=True: the installed Megatron has no such setting"):
        model_arguments(a_workload(qk_layernorm=True), Boundary.selective(), KNOWN | {"num_attention_heads", "ffn_hidden_size"})


def test_settings_without_a_field_of_their_own_reach_their_section() -> None:
    workload = replace(a_workload(), other={"model.rotary_base": 500000, "optimizer.adam_eps": 1e-5, "ddp.bucket_size": 7})
    assert (
        model_arguments(workload, Boundary.off(), KNOWN | {"num_attention_heads", "ffn_hidden_size", "rotary_base"})[
            "rotary_base"
        ]
        == 500000
    )
    assert optimizer_arguments(workload, frozenset({"adam_eps", "lr"})) == {"adam_eps": 1e-5, "lr": 1e-4}
    spec = TrialSpec(number=0, workload=workload, boundary=Boundary.off(), world_size=2, steps=1, backend="cpu", folder="unused")
    assert ddp_arguments(spec, frozenset({"bucket_size", "grad_reduce_in_fp32"})) == {
        "bucket_size": 7,
        "grad_reduce_in_fp32": True,
    }


@pytest.mark.parametrize(("pad", "rows"), [(True, 1024), (False, 1000)])
def test_vocabulary_is_padded_to_a_multiple_for_all_ranks(pad: bool, rows: int) -> None:
    assert padded_vocab_size(a_workload(should_pad_vocab=pad)) == rows


def test_what_has_no_stand_in_is_named_in_one_line() -> None:
    workload = load("nemotron3nano")
    with pytest.raises(RequestError) as caught:
        refuse_on_cpu(workload)
    text = str(caught.value)
    assert "has no stand-in on a CPU" in text and "--backend predict" in text and "\n" not in text


def test_a_survey_needs_no_stand_in_for_the_capture_that_it_ends_before() -> None:
    tiny = load("nemotron_tiny")
    captured = replace(tiny, features=replace(tiny.features, cuda_graph_impl="transformer_engine", cuda_graph_modules=("attn",)))
    refuse_on_cpu(captured, captures=False)
    with pytest.raises(RequestError, match="cuda_graph_impl='transformer_engine'"):
        refuse_on_cpu(captured)
    local = replace(tiny, features=replace(tiny.features, cuda_graph_impl="local", cuda_graph_modules=("attn",)))
    with pytest.raises(RequestError, match="cuda_graph_impl='local'"):
        refuse_on_cpu(local, captures=False)


def test_every_recipe_sized_for_the_cpu_can_run_on_it() -> None:
    small = [entry.alias for entry in recipes() if entry.sized_for == "cpu"]
    assert {"llama_tiny", "moonlight_tiny", "qwen3_moe_tiny", "qwen3_next_tiny", "nemotron_tiny"} <= set(small) <= set(aliases())
    for alias in small:
        refuse_on_cpu(load(alias))
