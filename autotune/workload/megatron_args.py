"""A Workload from Megatron-LM arguments: what the run does, silence included.

Megatron-LM's own defaults differ from a recipe's: dropout 0.1, learned positions, LayerNorm, biases, tied embeddings, the
allgather dispatcher, ETP = TP, a dense attention mask, an unfused loss. They hold wherever an argument is not given.
Source of defaults and of what follows from what: megatron/training/arguments.py:validate_args and
argument_utils.py:core_transformer_config_from_args at Megatron-LM d98e8a64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.errors import RequestError
from autotune.workload.hybrid_ratios import pattern_of_ratios
from autotune.workload.megatron_arg_names import DEFAULTS, DERIVED, DIRECT, canonical
from autotune.workload.megatron_values import read_value
from autotune.workload.neutral import NEUTRAL
from autotune.workload.neutral_args import NEUTRAL_ARGS
from autotune.workload.tokenizers import vocabulary_of
from autotune.workload.workload import (
    Features,
    Hardware,
    Model,
    Optimizer,
    Parallel,
    Precision,
    Source,
    Stack,
    Train,
    Workload,
)

_GPT2_VOCABULARY = 50257  # stands where the size is not known
_HYBRID_SPECS = {"mamba_stack_spec", "hybrid_stack_spec"}
"""Layer specs that a hybrid pattern implies anyway."""
_REQUIRED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size")


def workload_from_args(
    args: Mapping[str, Any],
    *,
    world_size: int | None = None,
    gpu: str = "H100",
    gpus_per_node: int = 8,
    name: str = "megatron_args",
    reference: str = "arguments",
    revision: str | None = None,
    env_vars: Mapping[str, str] | None = None,
    stack: Stack | None = None,
) -> Workload:
    """Read Megatron-LM arguments.

    Args:
        args: Arguments by name, as on the command line (``--num-layers``) or as fields (``num_layers``); a bare switch has
            the value True. Every argument that has no field in Workload and is not known to move no memory lands in
            ``other`` under its command-line name, so that the ledger can name it.
        world_size: Number of ranks; may also be given as the argument ``world_size``, or as all parallel sizes with ``dp``.

    Raises:
        RequestError: A required argument is missing, a value cannot be read, or the world size is not known.
    """
    given, other = _read(args)
    _follow(given)
    for required in _REQUIRED:
        if given.get(required) is None:
            raise RequestError(_flag(required), None, "is needed to know the workload", f"add {_flag(required)}")
    world = _world_size(given, world_size)
    layout = _parallel(given, world)
    other.update(_unplaced(given))
    return Workload(
        name=name,
        source=Source(kind="megatron_args", reference=reference, revision=revision, notes=_notes(given)),
        model=_model(given, other),
        parallel=layout,
        train=_train(given, layout),
        precision=_precision(given),
        optimizer=_optimizer(given),
        features=_features(given),
        hardware=Hardware(gpu=gpu, gpus_per_node=gpus_per_node),
        stack=stack or Stack(),
        env_vars=dict(env_vars or {}),
        other=other,
        recipe_recompute=_recompute(given),
    )


def _notes(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What was assumed because the arguments do not say it."""
    notes = []
    if given["vocab_size"] is None and given["padded_vocab_size"] is None:
        known = vocabulary_of(given["tokenizer_type"], given["tokenizer_model"])
        notes += [known[1]] if known else []
    if given["global_batch_size"] is None and given["step_batch_size_schedule"]:
        notes.append(f"the batch grows ({given['step_batch_size_schedule']}): its first size is taken")
    return tuple(notes)


def _read(args: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Known arguments by canonical name with defaults filled in, and the others."""
    known = {**DIRECT, **DERIVED}
    given: dict[str, Any] = {name: arg.default for name, arg in known.items()}
    other: dict[str, Any] = {}
    for spelled, value in args.items():
        name, negated = canonical(spelled)
        if name not in known:
            # A switch that is off is what Megatron does anyway: all its unknown switches are store_true.
            if (
                value is not False
                and value != DEFAULTS.get(name)
                and value is not None
                and name not in NEUTRAL
                and name not in NEUTRAL_ARGS
            ):
                other[_flag(name)] = value
            continue
        read = read_value(spelled, value, known[name].kind)
        given[name] = (not read) if negated else read
        if name == "num_query_groups" and not spelled.startswith("-"):
            given["group_query_attention"] = True  # a field of TransformerConfig holds without the command line's switch
    return given, other


def _follow(given: dict[str, Any]) -> None:
    """Apply what arguments imply for each other, in Megatron's order (arguments.py:validate_args)."""
    given["seq_length"] = given["seq_length"] or given["encoder_seq_length"]
    given["num_layers"] = given["num_layers"] or given["encoder_num_layers"]
    if given["recompute_activations"]:
        given["recompute_granularity"] = "selective"
    if given["moe_layer_recompute"] and given["recompute_granularity"] != "full":
        given["recompute_granularity"] = "selective"
        given["recompute_modules"] = (*_as_tuple(given["recompute_modules"]), "moe")
    if given["params_dtype"] in {"bf16", "fp16"}:
        given[given["params_dtype"]] = True
    if given["grad_reduce_in_fp32"] is not None:
        given["accumulate_allreduce_grads_in_fp32"] = given["grad_reduce_in_fp32"]
        given["grad_reduce_in_bf16"] = not given["grad_reduce_in_fp32"]
    if given["enable_cuda_graph"]:
        given["cuda_graph_impl"] = "local"
    if given["external_cuda_graph"]:
        given["cuda_graph_impl"] = "transformer_engine"
    if given["pipeline_model_parallel_layout"]:  # as written for a shell, every | and bracket escaped
        given["pipeline_model_parallel_layout"] = given["pipeline_model_parallel_layout"].replace("\\", "")
    modules = _as_tuple(given["cuda_graph_modules"])
    if "full_iteration" in modules:
        given["cuda_graph_impl"], modules = "full_iteration", ()
    given["cuda_graph_modules"] = tuple(module for module in modules if module != "full")
    given["hybrid_layer_pattern"] = given["hybrid_layer_pattern"] or given["hybrid_override_pattern"]
    hybrid = given["is_hybrid_model"] or _HYBRID_SPECS & set(_as_tuple(given["spec"]))
    if hybrid and not given["hybrid_layer_pattern"] and given["num_layers"]:
        ratios = given["hybrid_attention_ratio"], given["hybrid_mlp_ratio"]
        given["hybrid_layer_pattern"] = pattern_of_ratios(given["num_layers"], *ratios)
    if given["hybrid_layer_pattern"]:
        main, *depths = given["hybrid_layer_pattern"].split("/")
        given["num_layers"] = len(main.replace("|", ""))
        given["mtp_num_layers"] = len(depths) or given["mtp_num_layers"]
    if not given["add_bias_linear"]:
        given["bias_gelu_fusion"] = False
    else:
        given["add_qkv_bias"] = True
    if given["use_rotary_position_embeddings"]:
        given["position_embedding_type"] = "rope"
    if given["position_embedding_type"] != "rope":
        given["apply_rope_fusion"] = False
    if given["num_experts"] == 0:
        given["num_experts"] = None
    if given["moe_enable_deepep"]:
        given["moe_token_dispatcher_type"], given["moe_flex_dispatcher_backend"] = "flex", "deepep"
    if given["apply_query_key_layer_scaling"]:
        given["attention_softmax_in_fp32"] = True
    if given["tensor_model_parallel_size"] == 1:
        given["sequence_parallel"] = False
    if given["use_megatron_fsdp"]:
        given["use_distributed_optimizer"] = True
        given["megatron_fsdp_use_decoupled_grad"] = given["use_precision_aware_optimizer"]
    else:
        given["data_parallel_sharding_strategy"] = "no_shard"  # the argument's default acts under FSDP only
    if given["cpu_offloading_num_layers"]:
        given["cpu_offloading"] = True


def _world_size(given: Mapping[str, Any], world_size: int | None) -> int:
    world = world_size or given["world_size"]
    if world is None and given["data_parallel_size"]:
        world = given["data_parallel_size"]
        for size in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
            world *= given[size]
    if world is None:
        raise RequestError("world_size", None, "is not among the arguments", "give the number of ranks as world_size")
    return int(world)


def _parallel(given: dict[str, Any], world: int) -> Parallel:
    fields = _section("parallel", given)
    fields["cp_comm_type"] = given["cp_comm_type"] if given["context_parallel_size"] > 1 else None
    fields["virtual_pipeline_model_parallel_size"] = _virtual_size(given)
    return Parallel(world_size=world, **fields)


def _virtual_size(given: Mapping[str, Any]) -> int | None:
    """Virtual stages a rank (arguments.py:validate_args, "Uneven virtual pipeline parallelism")."""
    stages = given["pipeline_model_parallel_size"]
    size = given["num_virtual_stages_per_pipeline_rank"] or given["virtual_pipeline_model_parallel_size"]
    if given["pipeline_model_parallel_layout"]:
        layout = given["pipeline_model_parallel_layout"].replace(",", "")
        for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
            layout = re.sub(pattern, lambda match: match.group(1) * int(match.group(2)), layout)
        size = (layout.count("|") + 1) // stages
    elif given["hybrid_layer_pattern"]:
        size = (given["hybrid_layer_pattern"].split("/")[0].count("|") + 1) // stages
    elif given["num_layers_per_virtual_pipeline_stage"]:
        layers = given["num_layers"] + given["account_for_embedding_in_pipeline_split"]
        layers += given["account_for_loss_in_pipeline_split"]
        size = layers // stages // given["num_layers_per_virtual_pipeline_stage"]
    return size if size and size > 1 else None


def _train(given: dict[str, Any], layout: Parallel) -> Train:
    fields = _section("train", given)
    data_parallel = max(1, layout.data_parallel_size)
    fields["global_batch_size"] = (
        given["global_batch_size"]
        or _first_batch(given["step_batch_size_schedule"])
        or given["micro_batch_size"] * data_parallel * (given["num_microbatches"] or 1)
    )
    return Train(**fields)


def _first_batch(schedule: str | None) -> int | None:
    """First size of a growing batch, ``0:384 200B:768`` (num_microbatches_calculator.py:_parse_schedule)."""
    match = re.match(r"[^:]*:(\d+)", schedule or "")
    return int(match[1]) if match else None


def _model(given: dict[str, Any], other: dict[str, Any]) -> Model:
    fields = _section("model", given)
    gated = given["swiglu"] or given["quick_geglu"] or given["gated_linear_unit"]
    ffn = given["ffn_hidden_size"]
    if ffn is None:
        # A gated layer has two matrices before the activation; 8/3 h keeps the parameter count of 4 h.
        ffn = int((4 * given["hidden_size"] * 2 / 3) / 64) * 64 if given["swiglu"] else 4 * given["hidden_size"]
    fields["ffn_hidden_size"] = ffn
    if given["num_experts"] and not given["moe_ffn_hidden_size"]:
        fields["moe_ffn_hidden_size"] = ffn
    fields["gated_linear_unit"] = gated
    fields["activation_func"] = "silu" if given["swiglu"] else "squared_relu" if given["squared_relu"] else "gelu"
    if given["quick_geglu"]:
        fields["activation_func"] = "quick_gelu"
    if given["activation_func"]:
        fields["activation_func"] = given["activation_func"].rsplit(".", 1)[-1]
    if given["openai_gelu"]:
        other["--openai-gelu"] = True
    fields["num_query_groups"] = given["num_query_groups"] if given["group_query_attention"] else None
    fields["share_embeddings_and_output_weights"] = not given["untie_embeddings_and_output_weights"]
    fields["vocab_size"], fields["should_pad_vocab"] = _vocabulary(given, other)
    if given["window_size"] is not None:
        fields["window_size"] = tuple(given["window_size"][:2])
    return Model(**fields)


def _vocabulary(given: Mapping[str, Any], other: dict[str, Any]) -> tuple[int, bool]:
    """Tokens, and whether Megatron pads them. A tokenizer whose size is in its own file makes the workload not covered."""
    if given["padded_vocab_size"] is not None:
        return given["padded_vocab_size"], False
    extra = given["vocab_extra_ids"] or 0
    tokenizer, size = given["tokenizer_type"], given["vocab_size"]
    if size is not None:
        # NullTokenizer adds an end-of-document token (core/tokenizers: NullTokenizer.vocab_size).
        return size + extra + (tokenizer in {"NullTokenizer", "NullMultimodalTokenizer"}), True
    known = vocabulary_of(tokenizer, given["tokenizer_model"])
    if known is None:
        other["--vocab-size"] = f"in the files of {tokenizer}, not among the arguments"
    return (known[0] if known else _GPT2_VOCABULARY) + extra, True


def _precision(given: dict[str, Any]) -> Precision:
    fields = _section("precision", given)
    params = "fp16" if given["fp16"] else "bf16" if given["bf16"] else "fp32"
    accumulate = given["accumulate_allreduce_grads_in_fp32"]
    if given["bf16"]:
        accumulate = not given["grad_reduce_in_bf16"] and (accumulate or given["main_grads_dtype"] == "fp32")
    return Precision(params_dtype=params, grad_dtype="fp32" if accumulate else params, **fields)  # type: ignore[arg-type]


def _optimizer(given: dict[str, Any]) -> Optimizer:
    # OptimizerConfig takes every argument of its own fields' names, fp8_recipe among them
    # (training.py:get_megatron_optimizer_config).
    return Optimizer(**_section("optimizer", given), fp8_recipe=given["fp8_recipe"])


def _features(given: dict[str, Any]) -> Features:
    fields = _section("features", given)
    fields["bias_activation_fusion"] = given["bias_swiglu_fusion"] if given["swiglu"] else given["bias_gelu_fusion"]
    if given["bias_activation_fusion"] is not None:
        fields["bias_activation_fusion"] = given["bias_activation_fusion"]
    fields["cpu_offloading"] = given["cpu_offloading"]
    fields["offload_modules"] = _as_tuple(given["offload_modules"])
    return Features(**fields)


def _recompute(given: Mapping[str, Any]) -> dict[str, Any]:
    modules = given["recompute_modules"]
    fields = {
        "recompute_granularity": given["recompute_granularity"],
        "recompute_modules": None if modules is None else list(_as_tuple(modules)),
        "recompute_method": given["recompute_method"],
        "recompute_num_layers": given["recompute_num_layers"],
    }
    return {} if all(value is None for value in fields.values()) else fields


def _unplaced(given: Mapping[str, Any]) -> dict[str, Any]:
    """Known arguments that no field can say."""
    unplaced: dict[str, Any] = {}
    if not given["add_position_embedding"] and given["position_embedding_type"] != "rope":
        unplaced["--no-position-embedding"] = True
    spec = set(_as_tuple(given["spec"]))
    if spec and not (given["hybrid_layer_pattern"] and spec & _HYBRID_SPECS) and spec != {"local"}:
        unplaced["--spec"] = " ".join(sorted(spec))
    return unplaced


def _section(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{section}."
    return {arg.home.removeprefix(prefix): given[name] for name, arg in DIRECT.items() if arg.home.startswith(prefix)}


def _as_tuple(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
