"""From a request to a workload with priced candidates. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from autotune.boundary.boundary import Boundary
from autotune.engine.request import Request
from autotune.errors import NoBoundaryError, RequestError
from autotune.ledger.prediction import Coverage
from autotune.records import digest
from autotune.search.candidate import Candidate
from autotune.units import format_gb, format_gb_and_gib
from autotune.workload.workload import Source, Workload

if TYPE_CHECKING:
    from autotune.ledger.ledger import Ledger, Wall
    from autotune.ledger.remedies import Remedy
    from autotune.workload.architecture import Architecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Everything that is known before the first trial."""

    workload: Workload
    workload_digest: str
    architecture: Architecture
    candidates: tuple[Candidate, ...]
    ledger: Ledger
    coverage: Coverage
    wall: Wall
    """Of the whole space: no candidate's predicted peak is below its floor."""
    remedies: tuple[Remedy, ...]
    mem_metric: str = "allocated"
    """Of which bytes the candidates' predictions are."""


def prepare(
    request: Request, *, variant: Literal["te", "stand_in"] = "te", validate: bool = False, detailed: bool = True
) -> Prepared:
    """Resolve the workload, list its candidates and predict each.

    Args:
        request: What is asked for.
        variant: Whose kernels run.
        validate: Ask the installed Megatron Core about every candidate too: for backends that are about to launch it.
        detailed: Predict every phase of every stage, as a search needs; a table does with the binding one.

    Raises:
        RequestError: The recipe, an override or the search space cannot be used.
    """
    from autotune.ledger.ledger import Ledger
    from autotune.ledger.remedies import remedies
    from autotune.search.held import held_prediction
    from autotune.search.space import build_candidates
    from autotune.workload.architecture import classify
    from autotune.workload.resolve import resolve_workload

    workload = resolve_workload(request.recipe, overrides=request.overrides)
    architecture = classify(workload)
    space = None
    if request.space is not None:
        from autotune.search.space_file import load_space

        space = load_space(request.space)
    if validate:
        from autotune.search.validated import validated_candidates

        listed, _ = validated_candidates(workload, architecture, space=space)
    else:
        listed = build_candidates(workload, architecture, space=space)
    refuse_invalid_setting(request.overrides, workload, listed)
    ledger = Ledger(workload, variant=variant)
    priced = [candidate.boundary for candidate in listed if candidate.status != "invalid"]
    predicted = map(ledger.predict, priced) if detailed else ledger.predict_all(priced)
    found = {b: held_prediction(prediction, request.mem_metric) for b, prediction in zip(priced, predicted, strict=True)}
    candidates = tuple(replace(candidate, prediction=found.get(candidate.boundary)) for candidate in listed)
    lowest = _lowest(candidates)
    return Prepared(
        workload=workload,
        workload_digest=workload_digest(workload),
        architecture=architecture,
        candidates=candidates,
        ledger=ledger,
        coverage=ledger.coverage(),
        wall=ledger.wall(*lowest),
        remedies=remedies(workload, *lowest),
        mem_metric=request.mem_metric,
    )


def _lowest(candidates: Sequence[Candidate]) -> tuple[Boundary, ...]:
    """The boundary with the lowest predicted peak of those that can be launched, if there is one."""
    peaks = [(c.prediction.peak_bytes, c.order, c.boundary) for c in candidates if c.status == "distinct" and c.prediction]
    return (min(peaks, key=lambda peak: peak[:2])[2],) if peaks else ()


def refuse_invalid_setting(overrides: Sequence[str], workload: Workload, candidates: Sequence[Candidate]) -> None:
    """Stop where the request's own overrides set a recompute that the revision refuses: a label it lacks, say.

    The recipe's own setting is no request: where it is invalid it is listed with its reason, like any other.

    Raises:
        RequestError: An override asks for an invalid setting.
    """
    from autotune.boundary.legacy import read_settings

    given = [override.lstrip("+") for override in overrides if override.lstrip("+").startswith("model.recompute_")]
    if not given:
        return
    asked = read_settings(workload.recipe_recompute).boundary
    found = next((candidate for candidate in candidates if candidate.boundary == asked), None)
    reason = found.reason if found is not None and found.status == "invalid" else _refused_label(workload, given)
    if reason is not None:
        path, _, value = given[-1].partition("=")
        raise RequestError(path, value, reason, "autotune plan without it shows what can be set")


def _refused_label(workload: Workload, given: Sequence[str]) -> str | None:
    """Why a list of labels is refused that Megatron reads under selective only, and the recipe is not: none of it was checked."""
    from autotune.boundary.check import check

    modules = workload.recipe_recompute.get("recompute_modules")
    if not modules or not any(override.startswith("model.recompute_modules=") for override in given):
        return None
    deciding = check(workload, Boundary.selective(modules)).deciding
    return deciding.message if deciding is not None and deciding.rule == "label_not_accepted" else None


def with_recorded(prepared: Prepared, boundaries: Iterable[Boundary]) -> Prepared:
    """Add boundaries that a table has and the space has not (a label without a site among them, say), each with its status."""
    from autotune.boundary.check import Checker
    from autotune.search.held import held_prediction
    from autotune.search.space import candidate_of

    present = {candidate.boundary for candidate in prepared.candidates}
    checker = Checker.of(prepared.workload, prepared.architecture)
    extra: list[Candidate] = []
    for boundary in sorted(set(boundaries) - present, key=lambda b: b.key):
        candidate = candidate_of(checker.check(boundary), len(present) + len(extra))
        if candidate.status != "invalid":
            predicted = prepared.ledger.predict(boundary)
            candidate = replace(candidate, prediction=held_prediction(predicted, prepared.mem_metric))
        extra.append(candidate)
    return replace(prepared, candidates=(*prepared.candidates, *extra))


def workload_digest(workload: Workload) -> str:
    """What makes two workloads the same: everything but where they were read from and the recipe's own recompute."""
    nowhere = Source(kind="file", reference="")
    return digest(replace(workload, source=nowhere, recipe_recompute={}))


def revisions(workload: Workload) -> Mapping[str, str | None]:
    """The stack of a workload by name."""
    stack = workload.stack
    return {
        "megatron_bridge": stack.megatron_bridge,
        "megatron_core": stack.megatron_core,
        "transformer_engine": stack.transformer_engine,
        "torch": stack.torch,
        "container": stack.container,
        "flash_attn": stack.flash_attn,
    }


def refuse_without_settings(prepared: Prepared) -> None:
    """Stop where the revision refuses every setting, recompute off among them: then it refuses the workload.

    Raises:
        RequestError: Nothing can be launched.
    """
    if any(candidate.status != "invalid" for candidate in prepared.candidates):
        return
    off = next((c for c in prepared.candidates if c.boundary == Boundary.off()), prepared.candidates[0])
    raise RequestError(
        "--recipe", prepared.workload.name, f"no recompute setting is valid here, not even {off.boundary.key}: {off.reason}",
        "change the workload by overrides; autotune plan shows every setting with its reason",
    )  # fmt: skip


def refuse_below_states(prepared: Prepared, limit_bytes: int) -> None:
    """Stop where weights, gradients and optimizer states alone are over the limit.

    Raises:
        NoBoundaryError: They are, by more than the ledger's own error on them (2 %).
    """
    states = prepared.ledger.states_bytes()
    if states * 0.98 <= limit_bytes:
        return
    levers = [_lever(r) for r in sorted(prepared.remedies, key=lambda r: -(r.saves_bytes or 0))][:3]
    way_out = "levers outside recompute: " + "; ".join(levers or ["more pipeline, tensor or expert parallelism"])
    raise NoBoundaryError(
        f"--mem-target={format_gb_and_gib(limit_bytes)}: weights, gradients and optimizer states alone take {format_gb(states)} "
        f"on the heaviest rank (predicted), no recompute setting changes them; {way_out}"
    )


def _lever(remedy: Remedy) -> str:
    saves = f" ({format_gb(remedy.saves_bytes)} less, predicted)" if remedy.saves_bytes else ""
    return f"{remedy.name}, {remedy.setting}{saves}"
