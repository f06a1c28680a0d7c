"""Coverage: what the ledger does not know is named, and no field of a Workload is forgotten."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ledger_workloads import small as workload_with

import autotune
from autotune.ledger.coverage import _RULES, GAPS, UNREAD, coverage
from autotune.workload.megatron_args import workload_from_args
from autotune.workload.neutral import NEUTRAL
from autotune.workload.neutral_args import NEUTRAL_ARGS
from autotune.workload.workload import Features, Model, Optimizer, Parallel, Precision, Train, Workload

GPT: dict[str, Any] = {
    "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 128, "micro_batch_size": 1,
    "max_position_embeddings": 128, "bf16": True,
}  # fmt: skip
SECTIONS = {
    "model": Model, "parallel": Parallel, "train": Train, "precision": Precision, "optimizer": Optimizer, "features": Features,
}  # fmt: skip


def small(**changes: Any) -> Workload:
    return workload_from_args({**GPT, **changes}, world_size=8)


@cache
def names_read() -> frozenset[str]:
    """Every attribute that the ledger, the classifier and the pipeline splitter read."""
    root = Path(autotune.__file__).parent
    files = [path for path in (root / "ledger").glob("*.py") if path.name != "coverage.py"]
    files += [root / "workload" / name for name in ("architecture.py", "pipeline.py", "workload.py")]
    trees = [ast.parse(path.read_text()) for path in files]
    return frozenset(node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute))


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_read_or_named(section: str) -> None:
    ruled = {name for name, _, _ in _RULES}
    read = names_read()
    forgotten = [
        name
        for name in (field.name for field in fields(SECTIONS[section]))
        if name not in read and f"{section}.{name}" not in UNREAD and f"{section}.{name}" not in ruled
    ]
    assert forgotten == []


def test_unread_fields_and_rules_exist() -> None:
    for name in [*UNREAD, *(rule[0] for rule in _RULES)]:
        section, _, field = name.partition(".")
        assert field in {known.name for known in fields(SECTIONS[section])}


def test_a_plain_model_is_covered() -> None:
    assert coverage(small()).covered
    assert coverage(small()).reasons == ()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"fine_grained_activation_offloading": True, "offload_modules": "fused_group_mlp"}, "features.offload_modules"),
        ({"optimizer": "soap"}, "optimizer.optimizer"),
        ({"experimental_attention_variant": "dsa"}, "model.experimental_attention_variant"),
        ({"position_embedding_type": "relative"}, "model.position_embedding_type"),
    ],
)
def test_known_gaps_are_named_with_their_value(change: dict[str, Any], name: str) -> None:
    found = coverage(small(**change))
    assert not found.covered
    assert any(reason.startswith(f"{name}=") for reason in found.reasons)


def test_fused_operations_are_covered_in_bf16_only() -> None:
    assert coverage(small(use_transformer_engine_op_fuser=True)).covered
    fp8 = small(use_transformer_engine_op_fuser=True, fp8="hybrid")
    assert coverage(fp8).reasons[0].startswith("features.use_transformer_engine_op_fuser=True")


def test_names_never_heard_of_are_named_and_neutral_ones_are_not() -> None:
    workload = replace(small(), other={"model.brand_new": 1, "--shiny": True, "model.rotary_base": 5, "--mscale": 1.0})
    assert coverage(workload).reasons == ("model.brand_new (never heard of)", "--shiny (never heard of)")


def test_gaps_without_a_field_say_what_is_missing_and_are_not_neutral_too() -> None:
    workload = replace(small(), other={"--nccl-ub": True})
    assert coverage(workload).reasons == ("--nccl-ub (registered buffers are not modelled)",)
    assert not (set(GAPS) & (set(NEUTRAL) | set(NEUTRAL_ARGS)))


@pytest.mark.parametrize(
    ("stack", "covered"),
    [({"container": "24.10"}, False), ({"torch": "2.6.0"}, False), ({"container": "25.03"}, True), ({}, True)],
)
def test_the_fused_loss_of_old_compilers_is_a_gap_with_a_name(stack: dict[str, str], covered: bool) -> None:
    workload = workload_with(features={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"}, stack=stack)
    found = coverage(workload)
    assert found.covered is covered
    assert covered or "compilers before PyTorch 2.7" in found.reasons[0]
