"""Whatever a run concludes, its outputs are well-formed and hold its figures."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import sample_recommendation, sample_workload

from autotune.boundary.boundary import Boundary
from autotune.report.facts import collect
from autotune.report.markdown import render
from autotune.report.patch import overrides_text, patch_source
from autotune.report.run_view import RunView
from autotune.report.text import hydra_fields, limit, probability, size
from autotune.search.outcome import CertificateRow, Recommendation, ReplayCost
from autotune.units import parse_size_bytes

# Anything that a reason or a claim may hold, line ends and Markdown's own characters included.
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60)
sizes = st.integers(1, 10**13)
boundaries = st.one_of(
    st.just(Boundary.off()),
    st.lists(st.sampled_from(["moe", "moe_act", "layernorm", "mlp", "core_attn"]), max_size=4).map(Boundary.selective),
    st.builds(Boundary.full, st.sampled_from(["uniform", "block"]), st.integers(1, 99)),
)
rows = st.builds(
    CertificateRow,
    name=words,
    boundary=boundaries.map(Boundary.to_fields),
    basis=st.sampled_from(["measured", "predicted", "invalid", "open"]),
    reason=words,
    peak_bytes=st.none() | sizes,
    peak_p95_bytes=st.none() | sizes,
    replay_ms=st.none() | st.floats(0, 1e5),
    fit_probability=st.none() | st.floats(0, 1),
)
recommendations = st.builds(
    lambda boundary, **fields: replace(sample_recommendation(), boundary=boundary and boundary.to_fields(), **fields),
    st.none() | boundaries,
    kind=st.sampled_from(["measured", "predicted", "replayed", "switched"]),
    mem_target_bytes=sizes,
    peak_bytes=st.none() | sizes,
    peak_p95_bytes=st.none() | sizes,
    replay_cost=st.none() | st.builds(ReplayCost, ms=st.floats(-1e3, 1e5), ratio=st.none() | st.floats(-1, 9), reference=words,
                                      basis=st.just("predicted")),
    runner_up=st.none() | rows,
    certificate=st.lists(rows, max_size=4).map(tuple),
    claims=st.lists(words, max_size=3).map(tuple),
    verdict_reason=words,
    exit_status=st.sampled_from([0, 3, 4]),
)  # fmt: skip


def view_of(recommendation: Recommendation) -> RunView:
    return RunView(folder=Path("run"), recommendation=recommendation, workload=sample_workload(), plan=None, trials=())


@settings(max_examples=60)
@given(recommendations)
def test_markdown_keeps_its_tables(recommendation: Recommendation) -> None:
    page = render(collect(view_of(recommendation)))
    widths = {}
    for line in page.splitlines():
        if line.startswith("| "):
            cells = line.replace("\\\\", "").replace("\\|", "").count("|")
            widths.setdefault("table", cells)
            assert cells == widths["table"], line
        else:
            widths.pop("table", None)
    assert size(recommendation.mem_target_bytes) in page


@settings(max_examples=60)
@given(recommendations)
def test_patch_is_python_and_sets_the_answer(recommendation: Recommendation) -> None:
    view = view_of(recommendation)
    if view.answer is None:
        assert overrides_text(view) == ""
        return
    tree = ast.parse(patch_source(view, collect(view)))
    assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    fields = {
        node.targets[0].attr: ast.literal_eval(node.value) for node in assignments if isinstance(node.targets[0], ast.Attribute)
    }
    assert fields == view.answer.to_fields()
    assert len(tree.body) == 1, "a reason cannot smuggle code into the patch"


@given(boundaries)
def test_hydra_fields_are_four_and_read_back(boundary: Boundary) -> None:
    lines = hydra_fields(boundary)
    read = {}
    for line in lines:
        name, _, value = line.removeprefix("model.").partition("=")
        if value == "null":
            read[name] = None
        elif value.startswith("["):
            read[name] = [item for item in value[1:-1].split(",") if item]
        else:
            read[name] = int(value) if value.isdigit() else value
    assert read == boundary.to_fields()


@given(st.integers(1, 10**15))
def test_a_shown_size_reads_back_to_its_digits(size_bytes: int) -> None:
    shown = size(size_bytes)
    slack = 0.0005 * (1e9 if shown.endswith("GB") else 1e6)
    if float(shown.split()[0]) > 0:
        assert parse_size_bytes(shown) == pytest.approx(size_bytes, abs=slack + 1)
    assert limit(size_bytes).startswith(shown)


@given(st.floats(0, 1))
def test_a_probability_is_never_certain(value: float) -> None:
    assert probability(value) not in ("0 %", "100 %")
