"""Search-space files: one YAML for each architecture class, or the user's own. Checked on reading."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import msgspec

from autotune.errors import RequestError

CLASSES = ("standard", "dense", "mla", "moe", "gdn", "hybrid")
Condition = Literal["unfused_attention", "context_parallel", "graph_captured", "few_sites"]
_SETTING = "--space"


class SpaceLabel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One label of the space, in the order of the file within its breadth.

    ``first_when`` moves it to the front of its breadth, ``last_when`` to the end, where one of the conditions holds
    for the workload: ``unfused_attention`` (the core materialises scores), ``context_parallel`` (cp > 1),
    ``graph_captured`` (its region lies in a captured graph), ``few_sites`` (on fewer than one layer in ten).
    """

    label: str
    breadth: Literal["narrow", "broad"]
    why: str
    first_when: tuple[Condition, ...] = ()
    last_when: tuple[Condition, ...] = ()


class FullSpace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Full recompute as the last resort: depths of block, group sizes of uniform; ``auto`` is a useful number of them."""

    why: str
    block: Literal["auto"] | tuple[int, ...] = "auto"
    uniform: Literal["auto"] | tuple[int, ...] = "auto"


class SpaceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"class_": "class"}):
    """A search space. ``unknown_labels`` says whether labels that only the revision knows are offered, each alone."""

    class_: str
    title: str
    labels: tuple[SpaceLabel, ...]
    full: FullSpace | None = None
    unknown_labels: Literal["offer", "skip"] = "offer"


@cache
def space_of_class(architecture_class: str) -> SpaceFile:
    """The project's own space of an architecture class."""
    if architecture_class not in CLASSES:
        raise RequestError("architecture class", architecture_class, f"is one of {', '.join(CLASSES)}", "give a space file")
    resource = files("search_spaces") / f"{architecture_class}.yaml"
    return _parse(resource.read_text(encoding="utf-8"), f"search_spaces/{architecture_class}.yaml")


def load_space(path: Path | str) -> SpaceFile:
    """The user's own space.

    Raises:
        RequestError: The file cannot be read, is no YAML, or is no search space; the text names the field.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(_SETTING, str(path), f"cannot be read ({error.strerror})", "give a readable YAML file") from None
    except UnicodeDecodeError:
        raise RequestError(_SETTING, str(path), "is no UTF-8 text", "give a YAML file") from None
    return _parse(text, str(path))


def space_schema() -> dict[str, Any]:
    """JSON Schema of a search-space file, for editors."""
    return msgspec.json.schema(SpaceFile)


def _parse(text: str, name: str) -> SpaceFile:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        value = yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise RequestError(_SETTING, name, f"is no valid YAML ({where})", "mend the file") from None
    way_out = "see search_spaces/moe.yaml for the form"
    try:
        space = msgspec.convert(value, SpaceFile, strict=True)
    except msgspec.ValidationError as error:
        raise RequestError(_SETTING, name, f"is no search space ({error})", way_out) from None
    _check(space, name, way_out)
    return space


def _check(space: SpaceFile, name: str, way_out: str) -> None:
    seen: set[str] = set()
    for entry in space.labels:
        if not entry.label.isidentifier():
            raise RequestError(_SETTING, name, f"{entry.label!r} is no label", way_out)
        if entry.label in seen:
            raise RequestError(_SETTING, name, f"label {entry.label} is listed twice", "list each label once")
        seen.add(entry.label)
    for field, depths in (("block", space.full.block), ("uniform", space.full.uniform)) if space.full else ():
        if depths != "auto" and any(depth < 1 for depth in depths):
            raise RequestError(_SETTING, name, f"full.{field} has a depth below 1", "count layers from 1")
