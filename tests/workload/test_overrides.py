from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.workload.catalog import load
from autotune.workload.fields import HOMES
from autotune.workload.hydra_values import parse_override, parse_value
from autotune.workload.overrides import apply
from autotune.workload.validate import validate
from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Train

SECTIONS = {
    "model": Model,
    "parallel": Parallel,
    "train": Train,
    "precision": Precision,
    "optimizer": Optimizer,
    "features": Features,
}


def test_every_home_is_a_field() -> None:
    for path, (section, field) in HOMES.items():
        assert field in {item.name for item in fields(SECTIONS[section])}, path


@pytest.mark.parametrize(
    ("override", "section", "field", "value"),
    [
        ("model.hidden_size=1024", "model", "hidden_size", 1024),
        ("++model.moe_token_dispatcher_type=alltoall", "model", "moe_token_dispatcher_type", "alltoall"),
        ("train.micro_batch_size=2", "train", "micro_batch_size", 2),
        ("dataset.seq_length=2048", "train", "seq_length", 2048),
        ("ddp.overlap_grad_reduce=false", "optimizer", "overlap_grad_reduce", False),
        ("optimizer.exp_avg_dtype=bfloat16", "optimizer", "exp_avg_dtype", "bf16"),
        ("optimizer.exp_avg_dtype=torch.bfloat16", "optimizer", "exp_avg_dtype", "bf16"),
        ("mixed_precision.grad_reduce_in_fp32=true", "precision", "grad_dtype", "fp32"),
        ("mixed_precision.fp8_recipe=delayed", "optimizer", "fp8_recipe", "delayed"),
        ("model.cuda_graph_impl=none", "features", "cuda_graph_impl", "none"),
        ("model.cuda_graph_modules=[attn, mamba]", "features", "cuda_graph_modules", ("attn", "mamba")),
        ("model.cuda_graph_scope=attn", "features", "cuda_graph_modules", ("attn",)),
        ("comm_overlap.delay_wgrad_compute=true", "features", "delay_wgrad_compute", True),
        ("world_size=32", "parallel", "world_size", 32),
        ("hardware.gpu=h200", "hardware", "gpu", "H200"),
        ("stack.transformer_engine=2.9.0", "stack", "transformer_engine", "2.9.0"),
    ],
)
def test_override_reaches_its_field(override: str, section: str, field: str, value: object) -> None:
    changed = apply(load("nemotron3nano"), [override])
    assert getattr(getattr(changed, section), field) == value
    assert changed.source.overrides == (override,)


def test_recompute_override_changes_the_recipes_own_setting_only() -> None:
    before = load("nemotron3nano")
    after = apply(before, ["model.recompute_modules=[moe]", "model.recompute_granularity=selective"])
    assert after.recipe_recompute["recompute_modules"] == ["moe"]
    assert after.digest == before.digest


def test_named_mixed_precision_sets_all_its_fields() -> None:
    precision = apply(load("llama3_8b"), ["mixed_precision=bf16_with_mxfp8_mixed"]).precision
    assert (precision.fp8, precision.fp8_recipe, precision.fp8_param, precision.grad_dtype) == ("e4m3", "mxfp8", True, "fp32")


def test_what_bridge_derives_is_derived() -> None:
    one = apply(load("moonlight16b"), ["model.tensor_model_parallel_size=1"])
    assert not one.parallel.sequence_parallel
    assert one.parallel.data_parallel_size == 8
    fsdp = apply(load("llama3_8b"), ["ddp.use_megatron_fsdp=true"])
    assert fsdp.optimizer.data_parallel_sharding_strategy == "optim_grads_params"


def test_known_field_without_a_home_is_kept_by_name_unless_neutral() -> None:
    changed = apply(load("llama3_8b"), ["model.fp8_dot_product_attention=true", "optimizer.lr=0.1", "model.seq_length=8192"])
    assert changed.other == {**load("llama3_8b").other, "model.fp8_dot_product_attention": True}
    back = apply(changed, ["model.fp8_dot_product_attention=false"])
    assert back.other == load("llama3_8b").other


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model.hiden_size=3",
            "model.hiden_size=3: no configuration field of that name; did you mean model.hidden_size?",
        ),
        (
            "train.num_layers=3",
            "train.num_layers=3: no configuration field of that name; did you mean model.num_layers?",
        ),
        (
            "model.fp8=hybrid",
            "model.fp8='hybrid': Bridge writes mixed_precision.fp8 over it when it finalises the configuration; "
            "write mixed_precision.fp8=hybrid",
        ),
        (
            "mixed_precision=bf16_with_mxfp8",
            "mixed_precision='bf16_with_mxfp8': no mixed-precision recipe of that name; did you mean bf16_with_mxfp8_mixed?",
        ),
        (
            "model.hidden_size=big",
            "model.hidden_size='big': Expected `int`, got `str`; give a value of that type",
        ),
        ("hidden_size", "override='hidden_size': is no override; write key.path=value, for example train.global_batch_size=16"),
        ("~model.fp8", "override='~model.fp8': a field cannot be deleted; set it to null: key.path=null"),
        (
            "model.cuda_graph_modules=[attn",
            "override='model.cuda_graph_modules=[attn': lacks a closing ]; quote the value as a shell would need it",
        ),
        (
            "hardware.gpu=H300",
            "hardware.gpu='H300': no such GPU is known (A100-80GB, B200, B300, GB200, GB300, H100, H200); did you mean H200?",
        ),
    ],
)
def test_bad_override(override: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        apply(load("nemotron3nano"), [override])
    assert str(caught.value) == message


def test_vocabulary_of_the_tokenizer_is_not_overridden_silently() -> None:
    with pytest.raises(RequestError, match="use_tokenizer_vocab_size=false before it"):
        apply(load("moonlight16b"), ["model.vocab_size=1000"])
    model = apply(load("moonlight16b"), ["tokenizer.use_tokenizer_vocab_size=false", "model.vocab_size=1000"]).model
    assert (model.vocab_size, model.should_pad_vocab) == (1000, False)


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(alphabet=st.characters(exclude_categories=["C", "Z"]), min_size=1),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner)),
    max_leaves=5,
)


def written(value: object) -> str:
    """A value in Hydra's form."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return repr(value)


@given(VALUES)
@settings(max_examples=50)
def test_value_round_trip(value: object) -> None:
    assert parse_value(written(value), "x") == value


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        override = parse_override(text)
    except RequestError as error:
        assert "\n" not in str(error).replace(repr(text), "")
    else:
        assert override.path in text


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from(["bf16", "fp32"]))
def test_later_override_wins_and_order_of_others_does_not_matter(batch: int, micro: int, dtype: str) -> None:
    start = load("llama3_8b")
    a, b, c = f"train.global_batch_size={batch}", f"train.micro_batch_size={micro}", f"optimizer.exp_avg_dtype={dtype}"
    one, two = apply(start, [a, b, c]), apply(start, [c, "train.global_batch_size=7", b, a])
    assert one.digest == two.digest


def test_a_value_that_does_not_fit_is_named_alone() -> None:
    """Not with the overrides beside it, the catalog's own among them."""
    with pytest.raises(RequestError) as caught:
        apply(load("nemotron3nano"), ["train.global_batch_size=16", "model.num_layers=abc", "train.micro_batch_size=1"])
    assert str(caught.value) == "model.num_layers='abc': Expected `int`, got `str`; give a value of that type"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "model.moe_layer_freq=0",
            "model.moe_layer_freq=0: has to be positive; give model.moe_layer_freq=N with N of at least 1",
        ),
        (
            "model.attention_backend=flashy",
            "model.attention_backend='flashy': is none of Megatron Core's names; use one of auto, flash, fused, unfused, local",
        ),
        (
            "mixed_precision.fp8=e5m2",
            "mixed_precision.fp8='e5m2': is none of Megatron Core's names; use one of None, e4m3, hybrid",
        ),
    ],
)
def test_values_that_megatron_refuses(override: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        validate(apply(load("moonlight16b"), [override]))
    assert str(caught.value) == text
