from __future__ import annotations

from typing import Any

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.stack import resolve_stack, sm_of, version_tuple

MIB = 2**20


@pytest.mark.parametrize(("text", "numbers"), [("2.17.1+4329ff84", (2, 17, 1)), ("v2.9", (2, 9)), (None, None), ("main", None)])
def test_versions(text: str | None, numbers: tuple[int, ...] | None) -> None:
    assert version_tuple(text) == numbers


@pytest.mark.parametrize(("gpu", "sm"), [("H100", 90), ("NVIDIA H100-80GB", 90), ("GB200", 100), ("a100", 80), ("X1", None)])
def test_gpus(gpu: str, sm: int | None) -> None:
    assert sm_of(gpu) == sm


@pytest.mark.parametrize(
    ("changes", "backend"),
    [
        ({}, "fused"),
        ({"hardware": {"gpu": "A100"}}, "flash"),
        ({"features": {"attention_backend": "flash"}}, "flash"),
        ({"features": {"transformer_impl": "local"}}, "unfused"),
        ({"train": {"deterministic_mode": True}, "hardware": {"gpu": "A100"}}, "flash"),
        ({"train": {"deterministic_mode": True}, "hardware": {"gpu": "A100"}, "stack": {"flash_attn": "2.3.6"}}, "unfused"),
        ({"train": {"deterministic_mode": True}, "hardware": {"gpu": "B200"}, "stack": {"transformer_engine": "2.9"}}, "flash"),
        (
            {"model": {"multi_latent_attention": True}, "features": {"attention_backend": "auto"}, "hardware": {"gpu": "A100"}},
            "fused",
        ),
    ],
)
def test_attention_backend_that_runs(changes: dict[str, Any], backend: str) -> None:
    changes = {"features": {"attention_backend": "auto"}, **changes}
    train = changes.pop("train", None)
    assert resolve_stack(small(train=train, **changes)).attention == backend


def test_workspace_of_torch_follows_gpu_and_determinism() -> None:
    assert resolve_stack(small()).torch_workspace_bytes == 32 * MIB
    a100 = {"gpu": "A100"}
    assert resolve_stack(small(hardware=a100)).torch_workspace_bytes == 8_519_680
    assert resolve_stack(small(hardware=a100, train={"deterministic_mode": True})).torch_workspace_bytes == 32 * MIB


def test_newer_transformer_engine_than_read_is_used_as_the_nearest_and_said() -> None:
    stack = resolve_stack(small(stack={"transformer_engine": "3.1"}))
    assert stack.ce_fp32_gradient
    assert any("newer than the sources read" in note for note in stack.notes)
    assert any("version unknown" in note for note in resolve_stack(small(stack={"transformer_engine": None})).notes)


@pytest.mark.parametrize(
    ("fusion", "te", "loss", "backward"),
    [
        (None, "2.17.1", 6, 6),  # bf16 logits, then an fp32 copy that becomes the softmax
        ("native", "2.17.1", 6, 10),  # backward clones the softmax
        ("te", "2.17.1", 2, 2),  # the gradient overwrites the logits
        ("te", "2.18", 6, 6),  # the gradient is an fp32 tensor of its own
    ],
)
def test_cross_entropy_variants(fusion: str | None, te: str, loss: int, backward: int) -> None:
    """Bytes a logit, on a vocabulary so large that nothing else matters."""
    features = {"cross_entropy_loss_fusion": fusion is not None, "cross_entropy_fusion_impl": fusion or "native"}
    workload = small(
        train={"seq_length": 4096}, model={"vocab_size": 128 * 4000}, features=features, stack={"transformer_engine": te}
    )
    phases = {p.phase: p for p in Ledger(workload).predict(Boundary.selective()).stages[0].phases if p.iteration == "first"}
    logits = 4096 * 128 * 4000

    def per_logit(phase: str) -> float:
        terms = phases[phase].terms
        return (terms.get("logits", 0) + terms.get("transient", 0)) / logits

    assert per_logit("loss") == pytest.approx(loss, abs=0.1)
    # the output layer's backward holds the gradient of the logits and of its input
    assert per_logit("backward") == pytest.approx(backward, abs=0.1)
