from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ledger.ops import Layer, Op, Region, Tensor


def tensor(name: str, nbytes: int) -> Tensor:
    return Tensor(name=name, nbytes=nbytes, group="moe", formula="", source="test")


X, NORM, FC1, ACT, MAPS = tensor("x", 10), tensor("norm", 20), tensor("fc1", 40), tensor("act", 80), tensor("maps", 5)


def moe_like() -> Layer:
    """norm -> router -> fc1 -> act -> fc2, with the regions of a MoE layer."""
    return Layer(
        "moe",
        [
            Op(name="norm", saves=(X,), regions=("layernorm",), backward_bytes=3),
            Op(name="router", saves=(NORM, MAPS), regions=("moe",)),
            Op(name="act", saves=(FC1,), regions=("moe", "moe_act"), backward_bytes=7),
            Op(name="fc2", saves=(ACT,), regions=("moe",), forward_bytes=11, backward_bytes=13),
        ],
        [
            Region(label="layernorm", inputs=(X,), outputs=("norm",)),
            Region(label="moe", inputs=(NORM,), retained_bytes=9),
            Region(label="moe_act", inputs=(FC1,), outputs=("act",), inside=("moe",)),
        ],
    )


@pytest.mark.parametrize(
    ("labels", "held"),
    [
        (set(), 10 + 20 + 5 + 40 + 80),
        ({"layernorm"}, 10 + 5 + 40 + 80),  # the norm output vanishes although the router saves it
        ({"moe_act"}, 10 + 20 + 5 + 40),  # its input stays, its output goes
        ({"moe"}, 10 + 20),  # the input of the region stays
        ({"moe", "layernorm"}, 10),  # a discarded output vanishes although it is an input
        ({"moe", "moe_act"}, 10 + 20),
    ],
)
def test_held_bytes_follow_storage_identity(labels: set[str], held: int) -> None:
    assert moe_like().cost(frozenset(labels)).held_bytes == held


def test_savings_do_not_add_up() -> None:
    layer = moe_like()
    base = layer.cost(frozenset()).held_bytes
    alone = sum(base - layer.cost(frozenset({label})).held_bytes for label in ("moe", "moe_act"))
    together = base - layer.cost(frozenset({"moe", "moe_act"})).held_bytes
    assert alone == 125 + 80
    assert together == 125


def test_backward_restores_what_a_region_dropped() -> None:
    cost = moe_like().cost(frozenset({"moe"}))
    # x and norm stay; maps, fc1 and act come back before the gradient of fc2 (13) runs
    assert cost.backward_peak == 10 + 20 + 5 + 40 + 80 + 13
    assert cost.backward_terms == {"moe": 30, "replay_transient": 125, "transient": 13}


def test_backward_frees_a_tensor_after_its_first_saver() -> None:
    layer = Layer("chain", [Op(name="a", saves=(X,), backward_bytes=100), Op(name="b", saves=(ACT,), backward_bytes=1)])
    assert layer.cost(frozenset()).backward_peak == max(10 + 80 + 1, 10 + 100)


def test_forward_peak_counts_what_lives_only_while_an_operation_runs() -> None:
    cost = moe_like().cost(frozenset({"moe"}))
    # under the checkpoint act dies with fc2, but while fc2 runs it is there
    assert cost.forward_peak == 10 + 20 + 80 + 11


def test_retained_bytes_belong_to_the_outermost_active_region() -> None:
    layer = moe_like()
    assert layer.cost(frozenset({"moe"})).retained_bytes == 9
    assert layer.cost(frozenset({"moe_act"})).retained_bytes == 0


def test_two_sizes_of_one_tensor_are_refused() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        Layer("bad", [Op(name="a", saves=(X,)), Op(name="b", saves=(tensor("x", 11),))])


@given(st.sets(st.sampled_from(["layernorm", "moe", "moe_act"])), st.sampled_from(["layernorm", "moe", "moe_act"]))
def test_one_more_label_never_holds_more(labels: set[str], label: str) -> None:
    layer = moe_like()
    assert layer.cost(frozenset(labels | {label})).held_bytes <= layer.cost(frozenset(labels)).held_bytes
