"""The catalog: recipes this project carries a finalised snapshot of, one YAML file each in ``search_spaces/recipes``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal

import search_spaces
from autotune.errors import RequestError
from autotune.records import from_builtins
from autotune.workload.workload import Workload
from autotune.workload.yaml_files import load_yaml, read_yaml

FOLDER = Path(search_spaces.__file__).parent / "recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One recipe of the catalog, without its workload.

    Attributes:
        alias: Short name, and the file's.
        title: What is trained.
        bridge_function: The Bridge recipe function that the snapshot was taken of; None for a recipe of this project.
        revision: Bridge version of the snapshot; None for a recipe of this project.
        date: Day of the snapshot.
        architecture: Class of ``autotune.workload.architecture``.
        gpus: World size.
        gpu: Name of the GPU.
        sized_for: Whether its trials need GPUs or run on a CPU.
        base_overrides: Overrides that are part of the catalog's recipe (a layout of its own, say), applied by Bridge
            when the snapshot was taken.
        trial_overrides: The trial's own settings, applied after the recipe's and recorded: a batch that one trial can run.
        why: Why these overrides.
        differs: What is known to differ at other revisions, one line each.
    """

    alias: str
    title: str
    bridge_function: str | None
    revision: str | None
    date: str
    architecture: str
    gpus: int
    gpu: str
    sized_for: Literal["gpu", "cpu"] = "gpu"
    base_overrides: tuple[str, ...] = ()
    trial_overrides: tuple[str, ...] = ()
    why: str = ""
    differs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFile:
    """Content of one file: an entry and the finalised workload."""

    entry: CatalogEntry
    workload: Workload


def aliases() -> tuple[str, ...]:
    """All aliases, without reading a file."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))


@cache
def recipes() -> tuple[CatalogEntry, ...]:
    """All entries, by alias."""
    return tuple(from_builtins(read_yaml(FOLDER / f"{alias}.yaml")["entry"], CatalogEntry, setting=alias) for alias in aliases())


@cache
def read(alias: str) -> CatalogFile:
    """One recipe with its entry.

    Raises:
        RequestError: No such alias; names the nearest.
    """
    if alias not in aliases():
        near = get_close_matches(alias, aliases(), n=1, cutoff=0.4)
        raise RequestError(
            "--recipe",
            alias,
            "no recipe of that name in the catalog",
            f"did you mean {near[0]}?" if near else "list them with: autotune recipes",
        )
    return load_yaml(FOLDER / f"{alias}.yaml", CatalogFile)


def load(alias: str) -> Workload:
    """The snapshot as the recipe has it, before the trial's own overrides.

    Raises:
        RequestError: No such alias.
    """
    return read(alias).workload


def find(reference: str) -> CatalogEntry | None:
    """Entry of an alias, or of the Bridge function that a snapshot was taken of without overrides of its own."""
    if reference in aliases():
        return read(reference).entry
    for entry in recipes():
        if reference == entry.bridge_function and not entry.base_overrides:
            return entry
    return None


def with_source(entry: CatalogEntry, workload: Workload, *, notes: tuple[str, ...]) -> Workload:
    """A snapshot's workload, said to come from the catalog."""
    source = replace(
        workload.source,
        kind="catalog",
        reference=entry.alias,
        revision=entry.revision,
        notes=workload.source.notes + notes,
    )
    return replace(workload, source=source)
