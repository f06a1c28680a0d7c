"""What a reader should know of how boundaries were judged on a workload, one line each."""

from __future__ import annotations

from autotune.boundary.accepted import accepted_labels
from autotune.boundary.legacy import read_settings
from autotune.boundary.revision import resolve_revision
from autotune.boundary.submodels import own_settings, submodels
from autotune.errors import RequestError
from autotune.workload.workload import Workload

_OLDER_SWITCHES = ("moe_layer_recompute", "recompute_activations", "distribute_saved_activations")


def boundary_notes(workload: Workload) -> tuple[str, ...]:
    """Where the labels and rules come from, what older switches were read as, and what the patch does not reach."""
    named = workload.stack.megatron_core
    accepted = accepted_labels(named)
    where = "read in the installed source" if accepted.basis == "installed" else "from this project's table"
    notes = [f"labels of Megatron Core {accepted.revision}, {where}" + (f" ({accepted.note})" if accepted.note else "")]
    if named is not None and resolve_revision(named).note:
        notes.append(resolve_revision(named).note)
    older = {name: workload.other.get(f"model.{name}") for name in _OLDER_SWITCHES}
    older["distribute_saved_activations"] = workload.features.distribute_saved_activations
    try:
        notes += read_settings({**workload.recipe_recompute, **older}).notes
    except RequestError as error:
        notes.append(f"the recipe's own setting cannot be read: {error}")
    notes += own_settings(workload.other)
    parts = submodels(workload)
    notes += [f"{part.name}: reached by the patch: {part.reached}; {part.why}" for part in parts]
    return tuple(dict.fromkeys(notes))
