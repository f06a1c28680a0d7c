from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.ledger.ops import Layer, Op, Region, Tensor, Work
from autotune.ledger.remedies import remedies
from autotune.ledger.replay import Rates, forward_ms, label_ms
from autotune.workload.workload import Workload

RATES = Rates(flop=1e9, hbm_bytes=1e6, a2a_bytes=1e5, tp_bytes=1e5)


def large(**sections: object) -> Workload:
    """Large enough that levers are worth naming."""
    return small(
        model={"num_layers": 8, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16, "vocab_size": 64000},
        train={"seq_length": 4096, "global_batch_size": 8, "create_attention_mask_in_dataloader": True},
        parallel={"world_size": 8},
        **sections,
    )


def named(workload: Workload) -> dict[str, int | None]:
    return {remedy.name: remedy.saves_bytes for remedy in remedies(workload)}


def test_levers_that_apply_are_named_with_their_bytes() -> None:
    found = named(large(optimizer={"use_distributed_optimizer": False}))
    parameters = Ledger(large())._timeline.stages[0].static.parameters
    assert found["distributed optimizer"] == pytest.approx(12 * parameters * 7 / 8, rel=0.01)
    assert (found["BF16 gradient buffer"] or 0) > parameters
    assert (found["cross entropy fused by Transformer Engine"] or 0) > 3 * 4096 * 64000


def test_levers_that_are_in_force_are_not_named() -> None:
    found = named(
        large(features={"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}, precision={"grad_dtype": "bf16"})
    )
    assert not {"distributed optimizer", "BF16 gradient buffer", "cross entropy fused by Transformer Engine"} & set(found)


def test_every_remedy_says_what_it_costs_and_where_it_was_read() -> None:
    for remedy in remedies(large()):
        assert remedy.cost
        assert remedy.setting
        assert ":" in remedy.source or " at " in remedy.source


def test_replay_is_the_larger_of_gpu_and_host() -> None:
    heavy = Op(name="gemm", work=Work(flop=5e9, modules=1))
    light = Op(name="norm", work=Work(moved_bytes=1e3, small_ops=10))
    assert forward_ms([heavy], RATES, host=True, checkpoints=1) == pytest.approx(5.0)
    assert forward_ms([light], RATES, host=True, checkpoints=1) == pytest.approx(0.25 + 0.12)
    assert forward_ms([light], RATES, host=False, checkpoints=1) == pytest.approx(1e-3)


def test_nested_labels_replay_their_part_twice() -> None:
    tensor = Tensor(name="x", nbytes=1, group="moe", formula="", source="test")
    layer = Layer(
        "moe",
        [
            Op(name="router", regions=("moe",), work=Work(flop=2e9)),
            Op(name="shared", regions=("moe", "shared_experts"), work=Work(flop=3e9)),
        ],
        [Region(label="moe", inputs=(tensor,)), Region(label="shared_experts", inputs=(tensor,), inside=("moe",))],
    )
    prices = label_ms(layer, frozenset({"moe", "shared_experts"}), RATES)
    assert prices == {"moe": pytest.approx(5.0), "shared_experts": pytest.approx(3.0)}


def test_replay_grows_with_micro_batches_layers_and_labels() -> None:
    boundary = Boundary.selective(["mlp"])
    one = Ledger(small(train={"global_batch_size": 1})).predict(boundary).replay_ms
    assert Ledger(small(train={"global_batch_size": 4})).predict(boundary).replay_ms == pytest.approx(4 * one)
    assert Ledger(small(model={"num_layers": 6})).predict(boundary).replay_ms == pytest.approx(3 * one)
    ledger = Ledger(small("mla_moe"))
    labels = ["layernorm", "mla_up_proj", "moe_act"]
    prices = {n: ledger.predict(Boundary.selective(n)).replay_ms for r in range(4) for n in itertools.combinations(labels, r)}
    assert prices[tuple(labels)] == pytest.approx(sum(prices[label,] for label in labels))


def test_block_recompute_replays_the_layers_it_covers() -> None:
    ledger = Ledger(small(model={"num_layers": 8}))
    whole = ledger.predict(Boundary.full("uniform", 1)).replay_ms
    assert ledger.predict(Boundary.full("block", 2)).replay_ms == pytest.approx(whole / 4)
    assert ledger.predict(Boundary.full("block", 99)).replay_ms == pytest.approx(whole)


def test_the_ledger_imports_nothing_heavy() -> None:
    code = (
        "import sys; from autotune.ledger.ledger import Ledger; from autotune.ledger.remedies import remedies;"
        "print([m for m in ('torch', 'ray', 'optuna', 'megatron', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
