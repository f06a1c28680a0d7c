from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.workload.catalog import load
from autotune.workload.pipeline import parse_layout, stages
from autotune.workload.workload import Workload


def dense(num_layers: int, pp: int, *, model: dict[str, Any] | None = None, **parallel: Any) -> Workload:
    base = load("llama3_8b")
    layout = replace(base.parallel, world_size=pp * 4, context_parallel_size=1, pipeline_model_parallel_size=pp, **parallel)
    return replace(base, parallel=layout, model=replace(base.model, num_layers=num_layers, **(model or {})))


def test_even_split() -> None:
    found = stages(dense(8, 4))
    assert [stage.chunks for stage in found] == [((0, 1),), ((2, 3),), ((4, 5),), ((6, 7),)]
    assert [stage.rank for stage in found] == [0, 4, 8, 12]
    assert [(stage.has_embedding, stage.has_loss) for stage in found] == [
        (True, False),
        (False, False),
        (False, False),
        (False, True),
    ]


def test_interleaved_as_in_megatron_core() -> None:
    # The two examples of transformer_block.py:get_num_layers_to_build.
    four = stages(dense(8, 2, virtual_pipeline_model_parallel_size=4))
    assert [stage.chunks for stage in four] == [((0,), (2,), (4,), (6,)), ((1,), (3,), (5,), (7,))]
    two = stages(dense(8, 2, virtual_pipeline_model_parallel_size=2))
    assert [stage.chunks for stage in two] == [((0, 1), (4, 5)), ((2, 3), (6, 7))]


def test_uneven_first_and_last() -> None:
    found = stages(dense(10, 4, num_layers_in_first_pipeline_stage=1, num_layers_in_last_pipeline_stage=3))
    assert [len(stage.layers) for stage in found] == [1, 3, 3, 3]


def test_embedding_and_loss_counted() -> None:
    counted = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    found = stages(dense(14, 4, **counted))
    assert [len(stage.layers) for stage in found] == [3, 4, 4, 3]
    interleaved = stages(dense(126, 8, virtual_pipeline_model_parallel_size=8, **counted))
    assert [len(stage.layers) for stage in interleaved] == [15, 16, 16, 16, 16, 16, 16, 15]
    assert interleaved[0].chunks[0] == (0,)


def test_layout_string() -> None:
    assert parse_layout("Et*3|(tt|)*2mL") == (
        ("embedding", "decoder", "decoder", "decoder"),
        ("decoder", "decoder"),
        ("decoder", "decoder"),
        ("mtp", "loss"),
    )
    workload = dense(7, 2, pipeline_model_parallel_layout="Ettt|tt|tt|mL", model={"mtp_num_layers": 1})
    found = stages(workload)
    assert [stage.chunks for stage in found] == [((0, 1, 2), (5, 6)), ((3, 4), ())]
    assert [stage.mtp_layers for stage in found] == [0, 1]
    assert found[1].has_loss


def test_deepseek_v3_stages() -> None:
    found = stages(load("deepseek_v3"))
    assert sorted(layer for stage in found for layer in stage.layers) == list(range(61))
    assert sum(stage.mtp_layers for stage in found) == 1


def test_hybrid_pattern_with_pipes() -> None:
    nano = load("nemotron3nano")
    workload = replace(
        nano,
        parallel=replace(nano.parallel, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2),
        model=replace(nano.model, hybrid_layer_pattern="MEM|*|EM|E-/*E", num_layers=8),
    )
    found = stages(workload)
    assert [stage.chunks for stage in found] == [((0, 1, 2), (4, 5)), ((3,), (6, 7))]
    assert [stage.mtp_layers for stage in found] == [0, 1]


@given(
    per_chunk=st.integers(1, 4),
    pp=st.integers(1, 8),
    vpp=st.one_of(st.none(), st.integers(1, 4)),
    first=st.one_of(st.none(), st.integers(1, 6)),
    last=st.one_of(st.none(), st.integers(1, 6)),
    embedding=st.booleans(),
    loss=st.booleans(),
)
def test_every_layer_stands_exactly_once(
    *, per_chunk: int, pp: int, vpp: int | None, first: int | None, last: int | None, embedding: bool, loss: bool
) -> None:
    if first is not None or last is not None:
        embedding = loss = False
    num_layers = per_chunk * pp * (vpp or 1) - embedding - loss
    workload = dense(
        max(num_layers, 1),
        pp,
        virtual_pipeline_model_parallel_size=vpp,
        num_layers_in_first_pipeline_stage=first,
        num_layers_in_last_pipeline_stage=last,
        account_for_embedding_in_pipeline_split=embedding,
        account_for_loss_in_pipeline_split=loss,
    )
    try:
        found = stages(workload)
    except RequestError as error:
        assert "\n" not in str(error)
        return
    # Layers follow the chunks: all first chunks in order of rank, then all second ones.
    chunks = len(found[0].chunks)
    in_order = [layer for chunk in range(chunks) for stage in found for layer in stage.chunks[chunk]]
    assert in_order == list(range(workload.model.num_layers))
    assert [stage.has_embedding for stage in found].count(True) == [stage.has_loss for stage in found].count(True) == 1


@pytest.mark.parametrize(
    ("layers", "pp", "parallel", "message"),
    [
        (
            9,
            4,
            {},
            "model.pipeline_model_parallel_size=4: does not divide model.num_layers=9; choose a divisor, set "
            "num_layers_in_first_pipeline_stage or give pipeline_model_parallel_layout",
        ),
        (
            8,
            4,
            {"virtual_pipeline_model_parallel_size": 3},
            "model.virtual_pipeline_model_parallel_size=3: does not divide a stage of 2 layers; choose a divisor",
        ),
        (
            9,
            4,
            {"num_layers_in_first_pipeline_stage": 1},
            "model.num_layers_in_first_pipeline_stage=1: leaves 8 of 9 layers for 3 middle stages of 4; choose sizes so that "
            "the middle stages share the rest evenly",
        ),
        (
            4,
            2,
            {"pipeline_model_parallel_layout": "Ett|tL"},
            "model.pipeline_model_parallel_layout='Ett|tL': places 3 decoder layers of 4; place every layer once",
        ),
        (
            4,
            2,
            {"pipeline_model_parallel_layout": "Ett|tx"},
            "model.pipeline_model_parallel_layout='Ett|tx': 'x' is no layer; use E, t, m, L, | between chunks, x*n and (xy)*n",
        ),
        (
            4,
            2,
            {"pipeline_model_parallel_layout": "tt|ttL"},
            "model.pipeline_model_parallel_layout='tt|ttL': has to begin with one embedding; mend the layout",
        ),
    ],
)
def test_bad_split(layers: int, pp: int, parallel: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        stages(dense(layers, pp, **parallel))
    assert str(caught.value) == message
