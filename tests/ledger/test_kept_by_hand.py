"""Held bytes of each layer kind, multiplied by hand: s = n = 128 tokens, h = 256, f = 1024, 8 heads of 32."""

from __future__ import annotations

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.ledger import Ledger
from autotune.workload.workload import Workload

H = 2 * 128 * 256  # one hidden state
STATS = 4 * 128  # fp32 statistics of one RMSNorm
HEAD = 2 * H + STATS + 4 * 128 * 1024 + 9 * 128 + 8 * 128  # final norm's input and output, softmax, targets, token ids


def held(workload: Workload, *labels: str, variant: str = "te") -> int:
    """Bytes that one micro batch keeps from forward to backward, head and embedding included."""
    ledger = Ledger(workload, variant="stand_in" if variant == "stand_in" else "te")
    kept = [line for line in ledger.lines(Boundary.selective(labels)) if line.held]
    layers = {"attention+dense": 2, "attention+moe": 2, "mla+dense": 2}
    return sum(line.bytes_per_layer * layers.get(line.layer_kind, 1) for line in kept)


def test_dense_layer_with_fused_attention() -> None:
    attention = H + H + STATS + 3 * H + 4 * 128 * 8 + H + 8 * 128 * 32  # x, norm out, q k v, LSE, out, RoPE angles
    mlp = H + H + STATS + 2 * 128 * 2 * 1024 + 2 * 128 * 1024
    assert held(small()) == 2 * (attention + mlp) + HEAD


def test_core_attn_with_flash_frees_the_lse_and_pins_the_mixed_projection() -> None:
    # value is a view of mixed_qkv: without recompute TE keeps a contiguous copy of it (H), with recompute the whole (3 H)
    assert held(small(), "core_attn") - held(small()) == 2 * (3 * H - H - 4 * 128 * 8)


def test_unfused_attention_keeps_scores_and_core_attn_drops_them() -> None:
    workload = small(features={"attention_backend": "unfused"})
    scores = 2 * 8 * 128 * 128
    assert held(workload) - held(workload, "core_attn") == 2 * (scores - 2 * H)
    with_dropout = small(features={"attention_backend": "unfused"}, model={"attention_dropout": 0.1})
    assert held(with_dropout) - held(workload) == 2 * 3 * 8 * 128 * 128


@pytest.mark.parametrize("attention_dropout", [0.0, 0.1])
def test_unfused_attention_without_a_softmax_kernel_keeps_fp32(attention_dropout: float) -> None:
    """FusedScaleMaskSoftmax.is_kernel_available: batch * heads is no multiple of four. Then it is done operation by operation."""
    model = {"num_attention_heads": 2, "attention_dropout": attention_dropout}
    pairs, dropout = 2 * 128 * 128, attention_dropout > 0
    eager = held(small(features={"attention_backend": "unfused"}, model=model))
    assert eager - held(small(model={"num_attention_heads": 2})) == 2 * ((6 + dropout) * pairs - 4 * 128 * 2)


def test_unfused_softmax_gives_its_gradient_in_the_probabilities_place() -> None:
    """scaled_masked_softmax_backward writes over its input; dropout's backward makes a tensor of its own."""
    long = {"seq_length": 1024, "global_batch_size": 1}
    pairs = 8 * 1024 * 1024

    def transient(dropout: float) -> int:
        workload = small(features={"attention_backend": "unfused"}, model={"attention_dropout": dropout}, train=long)
        phases = Ledger(workload).predict(Boundary.selective()).stages[0].phases
        return next(p.terms["transient"] for p in phases if (p.iteration, p.phase) == ("steady", "backward"))

    assert transient(0.1) - transient(0.0) == 2 * pairs


def test_mlp_label_drops_all_but_its_input() -> None:
    dropped = H + STATS + 2 * 128 * 2 * 1024 + 2 * 128 * 1024
    assert dropped == 852_480
    assert held(small()) - held(small(), "mlp") == 2 * dropped


def test_layernorm_is_a_no_op_where_norms_are_fused() -> None:
    assert held(small(), "layernorm") == held(small())
    assert Ledger(small()).predict(Boundary.selective(["layernorm"])).inert_labels == ("layernorm",)


@pytest.mark.parametrize(
    ("label", "dropped"),
    [
        ("layernorm", H + STATS),
        ("moe_act", 2 * 256 * 512),
        ("shared_experts", 2 * 128 * 2 * 512 + 2 * 128 * 512),
    ],
)
def test_labels_of_a_moe_layer(label: str, dropped: int) -> None:
    assert held(small("moe")) - held(small("moe"), label) == 2 * dropped


def test_moe_label_keeps_its_input_and_what_the_dispatcher_holds() -> None:
    """Its attributes hold 16-bit probabilities and a map of [128, 4], and an int64 index for each of 256 copies."""
    attention = H + H + STATS + 3 * H + 4 * 128 * 8 + H + 8 * 128 * 32
    routing = (2 + 1) * 128 * 4 + 8 * 256
    assert held(small("moe"), "moe") == 2 * (attention + H + STATS + H + routing) + HEAD
    assert held(small("moe"), "moe", "layernorm") == 2 * (attention + H + routing) + HEAD


def test_mla_up_projection_drops_query_key_value_and_what_made_them() -> None:
    dropped = (
        2 * 128 * 8 * (48 + 48 + 32)  # q, k, v
        + 2 * 128 * 64 + STATS  # normed key-value latent
        + H + STATS  # the query projection's own norm (Megatron Core >= 0.19)
        + 8 * 128 * 16  # RoPE angles
    )  # fmt: skip
    assert held(small("mla")) - held(small("mla"), "mla_up_proj") == 2 * dropped


def test_older_megatron_core_has_no_second_query_norm() -> None:
    assert held(small("mla")) - held(small("mla", stack={"megatron_core": "0.16.1"})) == 2 * (H + STATS)


def test_sequence_parallel_shards_what_lies_outside_tensor_parallelism() -> None:
    workload = small(parallel={"world_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True})
    lines = {line.name: line.bytes_per_layer for line in Ledger(workload).lines(Boundary.selective())}
    assert lines["attn.x"] == lines["attn.norm_out"] == H // 2
    assert lines["attn.q"] == H // 2
    assert lines["mlp.fc1_out"] == 2 * 128 * 2 * 1024 // 2


def test_flash_attention_with_two_samples_keeps_its_output_twice() -> None:
    train = {"micro_batch_size": 2, "global_batch_size": 2}
    flash = small(train=train, features={"attention_backend": "flash"})
    assert held(flash) - held(small(train=train)) == 2 * 2 * H
    assert held(small(features={"attention_backend": "flash"})) == held(small())


def test_dropout_keeps_a_byte_mask_for_each_residual_add_and_the_embedding() -> None:
    assert held(small(model={"hidden_dropout": 0.1})) - held(small()) == (2 * 2 + 1) * 128 * 256


def test_gelu_in_two_steps_keeps_no_more_and_swiglu_does() -> None:
    eager = small(features={"bias_activation_fusion": False})
    assert held(eager) - held(small()) == 2 * 2 * 128 * 1024


def test_every_line_names_its_source() -> None:
    for preset in ("dense", "moe", "mla", "gdn", "hybrid"):
        for line in Ledger(small(preset)).lines(Boundary.selective()):
            assert ":" in line.source or line.source.startswith(("fla", "TE")), line
            assert line.formula


def test_lines_say_which_labels_drop_a_tensor() -> None:
    lines = {line.name: line for line in Ledger(small("moe")).lines(Boundary.selective(["moe_act"]))}
    assert lines["moe.expert_act_out"].dropped_by == ("moe", "moe_act")
    assert not lines["moe.expert_act_out"].held
    assert lines["moe.expert_fc1_out"].dropped_by == ("moe",)
    assert lines["moe.norm_out"].dropped_by == ("layernorm",)
