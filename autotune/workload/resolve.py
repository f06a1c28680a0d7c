"""From what the user names to a Workload: catalog, live Bridge recipe, file, Hugging Face config."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.machinery import PathFinder
from typing import Any

from autotune.errors import RequestError
from autotune.workload import catalog
from autotune.workload.bridge_recipe import LiveRecipeError, installed_bridge, load_live
from autotune.workload.fields import LAUNCHER_PATHS
from autotune.workload.hydra_values import Override, parse_override
from autotune.workload.overrides import apply, refuse_overwritten, with_note
from autotune.workload.validate import validate
from autotune.workload.workload import Workload

_FUNCTION = re.compile(r"[a-z0-9_]+_config")
_MODULE_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve_workload(reference: str, *, overrides: Sequence[str] = ()) -> Workload:
    """Find, read, override and check a workload.

    Args:
        reference: Alias of the catalog, a Bridge recipe function's name, ``module:function``, a workload file (JSON or
            YAML), a Hugging Face ``config.json``, or ``megatron_args:FILE`` with Megatron-LM arguments.
        overrides: Hydra-form overrides, after the catalog's own ones for a trial.

    Returns:
        The workload; ``source`` tells which reader served it, at which revision, and why.

    Raises:
        RequestError: Nothing of that name (names the nearest), a bad file, a bad override, or an impossible layout.
    """
    if _is_path(reference):
        from autotune.workload.files import read_file

        return validate(read_file(reference, overrides))
    entry = catalog.find(reference)
    if entry is not None:
        return validate(_from_catalog(entry, reference, overrides))
    if _MODULE_FUNCTION.fullmatch(reference) or _FUNCTION.fullmatch(reference):
        return validate(_live(reference, overrides))
    raise _unknown(reference)


def _from_catalog(entry: catalog.CatalogEntry, reference: str, overrides: Sequence[str]) -> Workload:
    snapshot = catalog.load(entry.alias)
    # The trial's own settings belong to the alias; who names the recipe function gets the recipe.
    wanted = (*entry.trial_overrides, *overrides) if reference == entry.alias else tuple(overrides)
    bridge = installed_bridge()
    if entry.bridge_function is None:
        why = "a recipe of this project"
    elif bridge is None:
        why = f"snapshot of Bridge {entry.revision} ({entry.date}): megatron-bridge is not installed here"
    elif bridge == entry.revision:
        why = f"snapshot of Bridge {entry.revision} ({entry.date}): the installed revision"
    else:
        try:
            live = _live(entry.bridge_function, (*entry.base_overrides, *wanted), name=entry.alias)
        except LiveRecipeError as error:
            why = f"snapshot of Bridge {entry.revision} ({entry.date}), stale for Bridge {bridge}: {error}"
        else:
            return with_note(live, f"live recipe of Bridge {bridge}: the catalog's snapshot is of {entry.revision}")
    return apply(catalog.with_source(entry, snapshot, notes=(why,)), wanted)


def _live(reference: str, overrides: Sequence[str], *, name: str | None = None) -> Workload:
    """A live recipe; settings of the launcher are taken out of the overrides, since Bridge has no fields for them."""
    if installed_bridge() is None:
        if _MODULE_FUNCTION.fullmatch(reference):
            raise RequestError(
                "--recipe", reference, "needs megatron-bridge, which is not installed here", "install megatron-autotune[bridge]"
            )
        raise _unknown(reference)
    _refuse_absent_module(reference)
    parsed = [parse_override(text) for text in overrides]
    refuse_overwritten(parsed)
    launcher = [override for override in parsed if override.path in LAUNCHER_PATHS]
    workload = load_live(
        reference,
        overrides=[override.text for override in parsed if override.path not in LAUNCHER_PATHS],
        world_size=_last(launcher, "world_size"),
        gpu=_last(launcher, "hardware.gpu"),
        name=name,
    )
    rest = [o.text for o in launcher if o.path not in ("world_size", "hardware.gpu")]
    given = replace(workload.source, overrides=tuple(overrides))
    return replace(apply(workload, rest), source=given)


def _refuse_absent_module(reference: str) -> None:
    """Answer at once where the package of ``module:function`` does not exist: loading Bridge takes many seconds."""
    module, colon, _ = reference.partition(":")
    package = module.partition(".")[0]
    # The loader's process sees the working folder first, as ``python -m`` does.
    if colon and package not in sys.builtin_module_names and PathFinder.find_spec(package, ["", *sys.path]) is None:
        raise RequestError("--recipe", reference, f"no module {package!r} here", "install it, or go to the folder that holds it")


def _last(overrides: Sequence[Override], path: str) -> Any:
    return next((override.value for override in reversed(overrides) if override.path == path), None)


def _is_path(reference: str) -> bool:
    return reference.endswith((".json", ".yaml", ".yml")) or "/" in reference or reference.startswith("megatron_args:")


def _unknown(reference: str) -> RequestError:
    known = {entry.alias for entry in catalog.recipes()} | {
        entry.bridge_function for entry in catalog.recipes() if entry.bridge_function
    }
    near = get_close_matches(reference, known, n=1, cutoff=0.4)
    return RequestError(
        "--recipe",
        reference,
        "no recipe of that name",
        f"did you mean {near[0]}?" if near else "list the known ones with: autotune recipes",
    )
