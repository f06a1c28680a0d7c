from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml
from boundary_cases import DENSE, workload

from autotune.boundary.labels import LABELS
from autotune.errors import RequestError
from autotune.search.space import build_candidates
from autotune.search.space_file import CLASSES, load_space, space_of_class, space_schema

GOOD = """
class: dense
title: mine
labels:
  - {label: mlp, breadth: narrow, why: I want it first}
full: {why: last, block: [2, 4], uniform: [1]}
"""


@pytest.mark.parametrize("name", CLASSES)
def test_own_spaces_know_every_portable_label_once(name: str) -> None:
    space = space_of_class(name)
    labels = [entry.label for entry in space.labels]
    assert space.class_ == name
    assert set(labels) == set(LABELS) - {"mhc", "gdp_in_proj", "gdp_qkv"}
    breadths = [entry.breadth for entry in space.labels]
    assert breadths == sorted(breadths, reverse=True), "narrow before broad"
    assert all(entry.why for entry in space.labels)


@pytest.mark.parametrize(
    ("name", "first"),
    [("standard", "core_attn"), ("dense", "layernorm"), ("mla", "mla_up_proj"), ("moe", "moe_act"), ("gdn", "gdn_norm_out")],
)
def test_first_label_of_a_class(name: str, first: str) -> None:
    assert space_of_class(name).labels[0].label == first


@pytest.mark.parametrize("name", CLASSES)
def test_own_spaces_fit_the_json_schema(name: str, project_root: Path) -> None:
    value = yaml.safe_load((project_root / "search_spaces" / f"{name}.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(value, space_schema())


def test_own_space_of_a_user_restricts_and_orders(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD, encoding="utf-8")
    found = build_candidates(workload(), DENSE, space=load_space(path), chunk_layers=(24,))
    assert [candidate.boundary.key for candidate in found] == [
        "[]",
        "off",
        "mlp",
        "full/block/2",
        "full/block/4",
        "full/uniform/1",
    ]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("labels: [", "is no valid YAML"),
        ("class: dense\ntitle: x\n", "missing required field `labels`"),
        (GOOD.replace("breadth: narrow", "breadth: wide"), "Invalid enum value 'wide' - at `$.labels[0].breadth`"),
        (GOOD.replace("why: I want", "wye: I want"), "unknown field `wye` - at `$.labels[0]`"),
        (GOOD.replace("[2, 4]", "[0]"), "full.block has a depth below 1"),
        (GOOD.replace("full:", "  - {label: mlp, breadth: broad, why: again}\nfull:"), "label mlp is listed twice"),
        (GOOD.replace("label: mlp", "label: 'm lp'"), "'m lp' is no label"),
        ("", "Expected `object`, got `null`"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(text: str, rule: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RequestError) as caught:
        load_space(path)
    assert rule in str(caught.value)
    assert str(caught.value).startswith(f"--space='{path}': ")
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"cannot be read \(No such file or directory\); give a readable YAML file"):
        load_space(tmp_path / "none.yaml")


def test_the_example_of_the_page_is_a_space(tmp_path: Path, project_root: Path) -> None:
    page = (project_root / "docs/search-spaces.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    space = load_space(path)
    assert [entry.label for entry in space.labels] == ["moe_act", "core_attn", "moe"]
    assert space.full is not None
    assert (space.full.block, space.full.uniform, space.unknown_labels) == ((2, 4, 8), "auto", "skip")
