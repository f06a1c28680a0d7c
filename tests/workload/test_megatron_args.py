"""Megatron-LM arguments: both spellings, what silence means, what follows from what, and names never heard of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.ledger.coverage import coverage
from autotune.workload.hybrid_ratios import pattern_of_ratios
from autotune.workload.megatron_arg_names import DERIVED, DIRECT, canonical
from autotune.workload.megatron_args import workload_from_args
from autotune.workload.megatron_args_file import parse_command, read_args_file
from autotune.workload.megatron_values import read_value
from autotune.workload.neutral_args import NEUTRAL_ARGS
from autotune.workload.workload import Workload

GPT: dict[str, Any] = {
    "--num-layers": 12,
    "--hidden-size": 512,
    "--num-attention-heads": 8,
    "--seq-length": 1024,
    "--max-position-embeddings": 1024,
    "--micro-batch-size": 4,
    "--global-batch-size": 32,
    "--bf16": True,
}


def read(**changes: Any) -> Workload:
    """The small GPT with some arguments changed (dashes as underscores)."""
    args = {**GPT, **{"--" + name.replace("_", "-"): value for name, value in changes.items()}}
    return workload_from_args(args, world_size=8)


def test_silence_means_megatrons_own_defaults() -> None:
    workload = read()
    model, features = workload.model, workload.features
    assert (model.hidden_dropout, model.attention_dropout) == (0.1, 0.1)
    assert (model.position_embedding_type, model.normalization) == ("learned_absolute", "LayerNorm")
    assert model.add_bias_linear
    assert model.add_qkv_bias
    assert model.share_embeddings_and_output_weights
    assert model.ffn_hidden_size == 4 * 512
    assert (model.vocab_size, model.should_pad_vocab) == (50257, True)
    assert workload.parallel.etp == 1
    assert workload.train.create_attention_mask_in_dataloader
    assert workload.precision.grad_dtype == "fp32"
    assert not workload.optimizer.use_distributed_optimizer
    assert (features.bias_activation_fusion, features.gradient_accumulation_fusion) == (True, True)
    assert not features.cross_entropy_loss_fusion
    assert not features.apply_rope_fusion
    assert workload.other == {}
    assert workload.source.notes == ("no vocabulary size is given: 50257 tokens taken for GPT-2",)


def test_moe_defaults_are_the_allgather_dispatcher_and_tp_for_experts() -> None:
    workload = read(num_experts=8, tensor_model_parallel_size=2)
    assert workload.model.moe_token_dispatcher_type == "allgather"
    assert workload.model.moe_ffn_hidden_size == 2048
    assert workload.parallel.etp == 2


def test_both_spellings_make_the_same_workload() -> None:
    fields = {name.lstrip("-").replace("-", "_"): value for name, value in GPT.items()}
    assert workload_from_args(fields, world_size=8).digest == read().digest


@pytest.mark.parametrize(
    ("given_precision", "grads"),
    [
        ({"bf16": True}, "fp32"),
        ({"bf16": True, "grad_reduce_in_bf16": True}, "bf16"),
        ({"bf16": True, "main_grads_dtype": "bf16"}, "bf16"),
        ({"bf16": False, "fp16": True}, "fp16"),
        ({"bf16": False, "fp16": True, "accumulate_allreduce_grads_in_fp32": True}, "fp32"),
        ({"bf16": False}, "fp32"),
    ],
)
def test_gradient_dtype_follows_megatrons_rule(given_precision: dict[str, Any], grads: str) -> None:
    assert read(**given_precision).precision.grad_dtype == grads


def test_gated_ffn_keeps_the_parameter_count() -> None:
    assert read(swiglu=True).model.ffn_hidden_size == int(4 * 512 * 2 / 3 / 64) * 64
    assert read(swiglu=True).model.activation_func == "silu"


def test_bias_gelu_fusion_goes_with_the_biases() -> None:
    assert not read(disable_bias_linear=True).features.bias_activation_fusion
    assert read(disable_bias_linear=True, swiglu=True).features.bias_activation_fusion
    assert not read(no_bias_gelu_fusion=True).features.bias_activation_fusion


def test_sequence_parallel_needs_tensor_parallel() -> None:
    assert not read(sequence_parallel=True).parallel.sequence_parallel
    assert read(sequence_parallel=True, tensor_model_parallel_size=2).parallel.sequence_parallel


def test_query_groups_need_the_switch_on_the_command_line_but_not_as_a_field() -> None:
    assert read(num_query_groups=2).model.num_query_groups is None
    assert read(num_query_groups=2, group_query_attention=True).model.num_query_groups == 2
    assert workload_from_args({**GPT, "num_query_groups": 2}, world_size=8).model.num_query_groups == 2


@pytest.mark.parametrize(
    ("given_layout", "virtual"),
    [
        ({"num_layers_per_virtual_pipeline_stage": 1}, 3),
        ({"num_virtual_stages_per_pipeline_rank": 3}, 3),
        ({"num_layers_per_virtual_pipeline_stage": 3}, None),
        ({"pipeline_model_parallel_layout": "Et|(tt|)*5tL|"}, 2),
        ({"pipeline_model_parallel_layout": "Et*3|(ttt|)*2tttL"}, None),
    ],
)
def test_virtual_stages(given_layout: dict[str, Any], virtual: int | None) -> None:
    layout = read(pipeline_model_parallel_size=4, **given_layout).parallel
    assert layout.virtual_pipeline_model_parallel_size == virtual


def test_uneven_stages_keep_their_layers() -> None:
    layout = read(
        pipeline_model_parallel_size=4, decoder_first_pipeline_num_layers=2, decoder_last_pipeline_num_layers=2
    ).parallel
    assert (layout.num_layers_in_first_pipeline_stage, layout.num_layers_in_last_pipeline_stage) == (2, 2)


@pytest.mark.parametrize(
    ("given_tokens", "vocabulary", "padded"),
    [
        ({"tokenizer_type": "NullTokenizer", "vocab_size": 131073}, 131074, True),
        ({"vocab_size": 32000}, 32000, True),
        ({"padded_vocab_size": 151936}, 151936, False),
        ({"vocab_extra_ids": 100}, 50357, True),
    ],
)
def test_vocabulary(given_tokens: dict[str, Any], vocabulary: int, padded: bool) -> None:
    model = read(**given_tokens).model
    assert (model.vocab_size, model.should_pad_vocab) == (vocabulary, padded)


def test_a_vocabulary_in_the_tokenizers_own_files_is_named_as_unknown() -> None:
    assert list(read(tokenizer_type="SFTTokenizer", tokenizer_model="/a/tokenizer").other) == ["--vocab-size"]
    assert list(read(tokenizer_type="GPTSentencePieceTokenizer", tokenizer_model="/a/own.model").other) == ["--vocab-size"]


@pytest.mark.parametrize(
    ("tokenizer", "model", "size"),
    [
        ("TikTokenizer", "/a/multiMixV8.gpt4o_nc_sd.500000.128k.vocab.json", 131072),
        ("GPTSentencePieceTokenizer", "${DATA_PATH}/utils/nemotron_2_256k.model", 256000),
        ("Llama2Tokenizer", "/a/tokenizer.model", 32000),
        ("HuggingFaceTokenizer", "deepseek-ai/DeepSeek-V3", 128815),
    ],
)
def test_a_vocabulary_that_type_or_file_name_give_away_is_taken_and_said(tokenizer: str, model: str, size: int) -> None:
    workload = read(tokenizer_type=tokenizer, tokenizer_model=model)
    assert workload.model.vocab_size == size
    assert not workload.other
    assert f"{size} tokens taken for {tokenizer}" in workload.source.notes[0]


def test_a_growing_batch_counts_with_its_first_size() -> None:
    """num_microbatches_calculator.py:_parse_schedule; 12 layers on 8 ranks, micro batches of 4."""
    workload = read(global_batch_size=None, step_batch_size_schedule="0:384 200B:768 400B:1152")
    assert workload.train.global_batch_size == 384
    assert "the batch grows" in workload.source.notes[-1]


def test_arguments_with_megatrons_own_default_say_nothing() -> None:
    assert not read(outer_dp_sharding_strategy="no_shard", export_model_type="GPTModel").other
    assert list(read(outer_dp_sharding_strategy="optim").other) == ["--outer-dp-sharding-strategy"]


def test_dtypes_of_megatron_fsdp_may_be_auto() -> None:
    optimizer = read(megatron_fsdp_main_params_dtype="auto", megatron_fsdp_main_grads_dtype="fp32").optimizer
    assert optimizer.megatron_fsdp_main_params_dtype is None
    assert optimizer.megatron_fsdp_main_grads_dtype == "fp32"
    assert optimizer.megatron_fsdp_grad_comm_dtype is None


def test_patterns_lists_and_modules_are_read() -> None:
    workload = read(
        num_experts=4,
        moe_layer_freq="([0]*1+[1]*3)*3",
        recompute_granularity="selective",
        recompute_modules="[layernorm moe_act]",
        cuda_graph_impl="transformer_engine",
        cuda_graph_modules="[attn moe_router]",
    )
    assert workload.model.moe_layer_freq == (0, 1, 1, 1) * 3
    assert workload.recipe_recompute["recompute_modules"] == ["layernorm", "moe_act"]
    assert workload.features.cuda_graph_modules == ("attn", "moe_router")


def test_none_is_a_choice_where_megatron_has_it() -> None:
    workload = read(position_embedding_type="none", cuda_graph_impl="none", fp8_format="None")
    assert workload.model.position_embedding_type == "none"
    assert workload.features.cuda_graph_impl == "none"
    assert workload.precision.fp8 is None


@pytest.mark.parametrize(
    ("ratios", "pattern"),
    [
        ({}, "MMMMMMMMMMMM"),
        ({"hybrid_attention_ratio": 0.25, "hybrid_mlp_ratio": 0.25}, pattern_of_ratios(12, 0.25, 0.25)),
        ({"hybrid_override_pattern": "M*M-M*M-M*M-"}, "M*M-M*M-M*M-"),
    ],
)
def test_hybrid_models_by_ratios_and_old_names(ratios: dict[str, Any], pattern: str) -> None:
    spec = "[megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec]"
    workload = read(is_hybrid_model=True, spec=spec, **ratios)
    assert workload.model.hybrid_layer_pattern == pattern
    assert workload.other == {}


@given(st.integers(1, 64), st.floats(0, 0.5), st.floats(0, 0.5))
def test_ratios_give_the_asked_number_of_attention_layers(layers: int, attention: float, mlp: float) -> None:
    pattern = pattern_of_ratios(layers, attention, mlp)
    assert len(pattern) == layers
    assert pattern.count("*") == round(layers * attention)
    assert set(pattern) <= set("M*-")


@pytest.mark.slow
def test_ratios_agree_with_megatrons_own_allocation() -> None:
    allocation = pytest.importorskip("megatron.core.ssm.mamba_hybrid_layer_allocation")
    if not hasattr(allocation, "_allocate_auto"):
        pytest.skip("this Megatron Core takes patterns only")
    for layers in (1, 8, 24, 52):
        for attention in (0.0, 0.08, 0.25, 0.5):
            for mlp in (0.0, 0.1, 0.5):
                expected = "".join(allocation._allocate_auto(layers, attention, mlp))
                assert pattern_of_ratios(layers, attention, mlp) == expected


def test_host_optimizer_takes_megatrons_own_fraction() -> None:
    assert read(optimizer_cpu_offload=True).optimizer.optimizer_offload_fraction == 1.0


def test_deprecated_graph_switches() -> None:
    assert read(external_cuda_graph=True).features.cuda_graph_impl == "transformer_engine"
    assert read(cuda_graph_impl="local", cuda_graph_scope="full_iteration").features.cuda_graph_impl == "full_iteration"


def test_an_argument_never_heard_of_is_named_and_a_neutral_one_is_not() -> None:
    workload = read(enable_hyper_connections=True, decoupled_lr=0.1, some_new_switch=False)
    assert workload.other == {"--enable-hyper-connections": True}


def test_context_parallel_communication_defaults_to_p2p() -> None:
    assert read().parallel.cp_comm_type is None
    assert read(context_parallel_size=2).parallel.cp_comm_type == "p2p"
    hybrid = read(context_parallel_size=4, cp_comm_type="a2a+p2p", hierarchical_context_parallel_sizes="2 2").parallel
    assert (hybrid.cp_comm_type, hybrid.hierarchical_context_parallel_sizes) == ("a2a+p2p", (2, 2))


def test_missing_size_and_missing_world_are_one_line_errors() -> None:
    with pytest.raises(RequestError, match=r"^--hidden-size: is needed to know the workload; add --hidden-size$"):
        workload_from_args({name: value for name, value in GPT.items() if name != "--hidden-size"}, world_size=8)
    with pytest.raises(RequestError, match=r"^world_size: is not among the arguments"):
        workload_from_args(GPT)
    with pytest.raises(RequestError, match=r"^--num-layers='many': is not a whole number"):
        read(num_layers="many")


def test_world_follows_from_data_parallel_size() -> None:
    args = {**GPT, "tp": 2, "pp": 2, "dp": 2}
    assert workload_from_args(args).parallel.world_size == 8


def test_names_have_one_home() -> None:
    assert not set(DIRECT) & set(DERIVED)
    assert not set(NEUTRAL_ARGS) & (set(DIRECT) | set(DERIVED))
    homes = [arg.home for arg in DIRECT.values()]
    assert len(homes) == len(set(homes))


@given(st.sampled_from(sorted({**DIRECT, **DERIVED})))
def test_every_name_is_understood_in_every_spelling(name: str) -> None:
    dashed = "--" + name.replace("_", "-")
    assert canonical(name) == canonical(dashed) == (name, False)
    assert canonical("no_" + name) == (name, True)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.integers(1, 5))
def test_layer_patterns_multiply(pattern: list[int], times: int) -> None:
    assert read_value("moe_layer_freq", f"({pattern})*{times}", "pattern") == tuple(pattern * times)


@pytest.mark.parametrize("text", ["__import__('os')", "[0]*100000000", "[x]", "[0].append"])
def test_patterns_run_no_code(text: str) -> None:
    with pytest.raises(RequestError):
        read_value("moe_layer_freq", text, "pattern")


def test_launch_script_is_read(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\nexport NVTE_ALLOW_NONDETERMINISTIC_ALGO=0\n"
        "ARGS=(\n  --num-layers 12 --hidden-size 512 \\\n --num-attention-heads 8  # heads\n --seq-length 1024"
        " --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 32 --bf16)\n"
        "torchrun --nnodes 2 --nproc-per-node=4 pretrain_gpt.py ${ARGS[@]} --cp-comm-type p2p a2a --unheard-of 3\n"
    )
    workload = read_args_file(script)
    assert workload.parallel.world_size == 8
    assert workload.model.num_layers == 12
    assert workload.env_vars == {"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}
    assert workload.other == {"--unheard-of": "3"}
    assert parse_command(script.read_text())[0]["--cp-comm-type"] == ["p2p", "a2a"]


def test_test_case_yaml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "case.yaml"
    lines = "\n".join(f"  {name}: {value}" for name, value in GPT.items())
    file.write_text(f"world_size: 8\ngpu: A100-80GB\nENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n{lines}\n")
    workload = read_args_file(file)
    assert workload.hardware.gpu == "A100-80GB"
    assert workload.env_vars == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert workload.digest != read().digest
    assert workload.model == read().model


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.yaml", "- 1"), ("a.sh", "echo hello"), ("a.yaml", "a: [")])
def test_files_without_arguments_are_refused_in_one_line(tmp_path: Path, name: str, text: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_args_file(file)
    assert "\n" not in str(caught.value)


def test_a_layout_escaped_for_a_shell_is_read() -> None:
    layers = {"--num-layers": 12, "--pipeline-model-parallel-size": 2}
    escaped = {**layers, "--pipeline-model-parallel-layout": "Et*3\\|\\(tt\\|\\)*4L"}
    plain = {**escaped, "--pipeline-model-parallel-layout": "Et*3|(tt|)*4L"}
    assert (
        workload_from_args({**GPT, **escaped}, world_size=8).parallel
        == workload_from_args({**GPT, **plain}, world_size=8).parallel
    )


def test_a_deprecated_tokenizer_moves_nothing_and_legacy_models_are_named() -> None:
    assert coverage(read(legacy_tokenizer=True)).covered
    assert "before Megatron Core" in coverage(read(use_legacy_models=True)).reasons[0]
