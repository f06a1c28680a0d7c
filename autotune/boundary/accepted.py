"""Which labels the workload's Megatron Core accepts, asked of the installed one without importing it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from autotune.boundary.labels import LABELS
from autotune.boundary.revision import KNOWN_COMMITS, Revision, resolve_revision
from autotune.boundary.user_cache import cache_folder, read_cache, write_cache

_NUMBER = re.compile(r"^(MAJOR|MINOR|PATCH) *= *(\d+)", re.MULTILINE)
_CONFIG = "core/transformer/transformer_config.py"
_NEWEST_RELEASE = (0, 19, 99)
_NEWEST_COMMITTED = max(committed for committed, _ in KNOWN_COMMITS.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The labels a revision accepts and where that was read.

    ``basis`` is ``installed`` (the set in the installed transformer_config.py) or ``table`` (what this project recorded
    of the revision, dated). ``complete`` is false where the revision is assumed or newer than the table: then a label
    that is not in ``labels`` is unknown rather than rejected.
    """

    labels: frozenset[str]
    basis: Literal["installed", "table"]
    revision: str
    complete: bool = True
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledCore:
    """The installed Megatron Core: its release and its configuration file."""

    release: str
    config_path: Path


@cache
def installed_core() -> InstalledCore | None:
    """Find the installed Megatron Core by path, None where there is none. Nothing of it is imported.

    ``megatron`` is a namespace package, so finding it runs none of its code.
    """
    try:
        spec = find_spec("megatron")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        config = Path(folder) / _CONFIG
        info = Path(folder) / "core/package_info.py"
        if config.is_file() and info.is_file():
            return InstalledCore(release=_read_release(info), config_path=config)
    return None


def accepted_labels(megatron_core: str | None) -> Accepted:
    """The labels that the workload's revision (``Stack.megatron_core``) accepts.

    The installed Megatron Core answers where it is that revision, or where the workload names none. Otherwise the
    dated table answers.
    """
    core = installed_core()
    if core is not None and megatron_core is None:
        found = _installed_set(core)
        if found is not None:
            return Accepted(labels=found, basis="installed", revision=core.release, note="the workload names no revision")
    revision = resolve_revision(megatron_core)
    if core is not None and revision.basis == "release" and resolve_revision(core.release).release == revision.release:
        found = _installed_set(core)
        if found is not None:
            return Accepted(labels=found, basis="installed", revision=core.release)
    return _from_table(revision, core)


def _from_table(revision: Revision, core: InstalledCore | None) -> Accepted:
    labels = frozenset(name for name, label in LABELS.items() if label.since is None or revision.has(label.since))
    newer = (revision.release or (0, 0, 0)) > _NEWEST_RELEASE or (revision.committed or "") > _NEWEST_COMMITTED
    here = f"Megatron Core {core.release} is installed here" if core else "no Megatron Core is installed here"
    note = f"{here}; the labels of {revision.name} come from this project's table of 2026-08-22"
    if newer:
        note += f", which ends before {revision.name}"
    return Accepted(
        labels=labels,
        basis="table",
        revision=revision.name,
        complete=not newer and revision.basis != "assumed",
        note=f"{note}; {revision.note}" if revision.note else note,
    )


def _read_release(package_info: Path) -> str:
    """``0.19.2`` from core/package_info.py (MAJOR, MINOR, PATCH)."""
    numbers = dict(_NUMBER.findall(package_info.read_text(encoding="utf-8")))
    return ".".join(numbers.get(part, "0") for part in ("MAJOR", "MINOR", "PATCH"))


@cache
def _installed_set(core: InstalledCore) -> frozenset[str] | None:
    """The installed set, through a small cache file, since parsing three thousand lines takes about 50 ms."""
    stat = core.config_path.stat()
    identity = f"{core.config_path}:{core.release}:{stat.st_size}:{stat.st_mtime_ns}"
    entry = cache_folder() / f"labels-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    remembered = read_cache(entry)
    if isinstance(remembered, list) and remembered:
        return frozenset(remembered)
    found = read_accepted_set(core.config_path.read_text(encoding="utf-8"))
    if found:
        write_cache(entry, sorted(found))
    return found


def read_accepted_set(source: str) -> frozenset[str] | None:
    """Read the literal set that ``TransformerConfig.__post_init__`` compares ``recompute_modules`` with.

    Returns None where the source has no such check in the form that every release from 0.12 to main of 2026-08-22 has:
    ``allowed_modules = {...}`` followed in the same block by an expression over ``self.recompute_modules``.
    """
    import ast  # not on the usual path: the answer is remembered

    def literal_strings(statement: ast.stmt) -> frozenset[str]:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Set | ast.List | ast.Tuple):
            return frozenset()
        elements = statement.value.elts
        return frozenset(e.value for e in elements if isinstance(e, ast.Constant) and isinstance(e.value, str))

    def mentions_modules(statement: ast.stmt) -> bool:
        return any(isinstance(node, ast.Attribute) and node.attr == "recompute_modules" for node in ast.walk(statement))

    for node in ast.walk(ast.parse(source)):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(block, list):
                continue
            for index, statement in enumerate(block):
                labels = literal_strings(statement)
                if labels and any(mentions_modules(later) for later in block[index + 1 : index + 3]):
                    return labels
    return None
