"""Checkpoints inside captured scopes: which still act, and what the graph pool then holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.prediction import Prediction

FP8: dict[str, Any] = {"fp8": "hybrid", "fp8_recipe": "tensorwise"}
BF16: dict[str, Any] = {}


def predict(label: str, scope: str, precision: dict[str, Any], core: str = "0.19.2", preset: str = "moe") -> Prediction:
    features = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": (scope,)}
    stack = {"megatron_core": core, "transformer_engine": "2.17.1"}
    workload = small(preset, features=features, precision=precision, stack=stack, model={"num_layers": 4})
    return Ledger(workload).predict(Boundary.selective([label] if label else []))


def pool(prediction: Prediction) -> int:
    return max(phase.terms.get("graph_pool", 0) for phase in prediction.stages[0].phases)


@pytest.mark.parametrize(
    ("label", "scope", "preset"), [("mlp", "mlp", "dense"), ("moe", "moe", "moe"), ("shared_experts", "moe", "moe")]
)
def test_quantized_checkpoints_are_captured_with_their_replay(label: str, scope: str, preset: str) -> None:
    """Under FP8 they run through Transformer Engine's checkpoint, that never steps aside (transformer_layer.py:868, 2a75ac12)."""
    control, replayed = predict("", scope, FP8, preset=preset), predict(label, scope, FP8, preset=preset)
    assert pool(replayed) < pool(control)
    assert replayed.inert_labels == () and replayed.replay_ms > 0
    plain = predict(label, scope, BF16, preset=preset)
    assert pool(plain) == pool(predict("", scope, BF16, preset=preset))
    assert plain.inert_labels == (label,) and plain.replay_ms == 0


def test_attention_core_never_goes_through_transformer_engine() -> None:
    assert predict("core_attn", "attn", FP8).inert_labels == ("core_attn",)


def test_before_the_skip_every_checkpoint_was_captured() -> None:
    assert predict("core_attn", "attn", BF16, core="0.17.1").inert_labels == ()


def test_floor_is_of_a_setting_that_graphs_allow() -> None:
    """Full recompute is refused beside graphs of layers (transformer_config.py:2613 at 2a75ac12): it is no floor of theirs."""
    captured = small("moe", features={"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ("attn",)})
    assert Ledger(captured).wall().floor_boundary.granularity == "selective"
    eager, layers = small("moe"), {"num_layers": 8}
    assert Ledger(replace(eager, model=replace(eager.model, **layers))).wall().floor_boundary.granularity == "full"
