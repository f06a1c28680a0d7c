"""The candidate space of a workload: every boundary worth a thought, each with one status, from narrow to broad to full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Protocol

from autotune.boundary.accepted import Accepted
from autotune.boundary.boundary import Boundary
from autotune.boundary.check import ArchitectureLike, Checker
from autotune.boundary.context import Context
from autotune.boundary.findings import Findings
from autotune.boundary.labels import LABELS
from autotune.boundary.legacy import read_settings
from autotune.boundary.overrule import overruled
from autotune.boundary.verdict import ValidatorReport
from autotune.errors import RequestError
from autotune.search.candidate import Candidate
from autotune.search.space_file import Condition, SpaceFile, SpaceLabel, space_of_class
from autotune.workload.architecture import materialises_scores
from autotune.workload.workload import Workload

MAX_COMBINED_LABELS = 8
"""Labels of which every subset is a candidate (256); more are offered alone and with all of these."""
MAX_AUTO_DEPTHS = 16
"""Depths of block that ``auto`` offers at most, evenly spread, the whole chunk among them."""


class ClassifiedLike(ArchitectureLike, Protocol):
    """What is needed of the classifier's answer: its layers and its class."""

    @property
    def class_(self) -> str:
        """The architecture class, which names the space file."""
        ...


def build_candidates(
    workload: Workload,
    architecture: ClassifiedLike,
    *,
    space: SpaceFile | None = None,
    accepted: Accepted | None = None,
    chunk_layers: Sequence[int] | None = None,
    report: ValidatorReport | None = None,
) -> tuple[Candidate, ...]:
    """All candidates of a workload in their seeded order, without predictions.

    The control comes first, then recompute off, label sets from narrow to broad, full recompute last. Sets are made of
    the labels that have a site and are valid alone; the others are listed alone, with the reason. The recipe's own
    setting is always among them. The order depends on the space file, never on the order of a label list.

    Args:
        workload: What is trained.
        architecture: The classifier's answer.
        space: The search space; that of the architecture's class where it is not given.
        accepted: Labels the revision accepts; asked of the installed Megatron Core or the table where not given.
        chunk_layers: Layers of each pipeline chunk; asked of ``workload.pipeline`` where it is not given.
        report: What the installed Megatron Core says (``boundary.validator.validate`` on the candidates of a first
            call); it stands above the rules where it is the workload's.
    """
    checker = Checker.of(workload, architecture, accepted=accepted, chunk_layers=chunk_layers)
    space = space or space_of_class(architecture.class_)
    ordered = order_labels(checker.context, space)
    rank = {entry.label: place for place, entry in enumerate(ordered)}
    broad = frozenset(entry.label for entry in ordered if entry.breadth == "broad")
    unknown = _unknown_labels(checker.context, rank) if space.unknown_labels == "offer" else ()

    boundaries = [Boundary.selective(), Boundary.off()]
    boundaries += sorted(_label_sets(checker, [*rank, *unknown]), key=lambda boundary: _width(boundary, rank, broad))
    boundaries += _full(checker, space)
    boundaries += _recipes_own(workload)
    unique = dict.fromkeys(boundaries)
    ordered_boundaries = sorted(unique, key=lambda boundary: _width(boundary, rank, broad))
    return _place(lambda boundary: overruled(checker, boundary, report), ordered_boundaries)


def candidate_of(findings: Findings, order: int) -> Candidate:
    """The candidate that the findings of a boundary make."""
    deciding = findings.deciding
    return Candidate(
        boundary=findings.boundary,
        order=order,
        status=findings.status,
        reason=findings.reason,
        rule=deciding.rule if deciding else None,
        same_as=findings.same_as,
    )


def explain(candidate: Candidate) -> str:
    """One paragraph for a report: the status, and what each label of the boundary drops, keeps and replays."""
    status = {
        "distinct": "has an effect of its own",
        "same_as": f"same as {candidate.same_as.key}" if candidate.same_as else "same as another",
        "no_effect": "no effect",
        "invalid": "invalid",
        "not_checkable": "not checkable here, can be tried",
    }[candidate.status]
    parts = [f"{candidate.boundary.key}: {status}" + (f" ({candidate.reason})" if candidate.reason else "")]
    if candidate.status in ("distinct", "not_checkable"):
        for name in candidate.boundary.modules:
            label = LABELS.get(name)
            if label is None:
                parts.append(f"{name} is unknown to autotune")
                continue
            nested = [outer for outer in label.inside if outer in candidate.boundary.modules]
            where = f", inside {nested[0]}, whose replay it makes lighter or heavier" if nested else ""
            parts.append(f"{name} drops {label.drops}, keeps {label.keeps}, replays {label.replays}{where}")
    return "; ".join(parts) + "."


def order_labels(context: Context, space: SpaceFile) -> tuple[SpaceLabel, ...]:
    """The labels of a space in the order for one workload, narrow ones first."""

    def place(item: tuple[int, SpaceLabel]) -> tuple[bool, int, int]:
        index, entry = item
        first = any(holds(context, entry.label, condition) for condition in entry.first_when)
        last = any(holds(context, entry.label, condition) for condition in entry.last_when)
        return entry.breadth == "broad", (2 if last else 1) - (2 if first else 0), index

    return tuple(entry for _, entry in sorted(enumerate(space.labels), key=place))


def holds(context: Context, label: str, condition: Condition) -> bool:
    """Whether a named condition of a space file holds for one label of a workload."""
    return _CONDITIONS[condition](context, label)


def _few_sites(context: Context, label: str) -> bool:
    sites = context.sites.get(label)
    return sites is not None and 0 < len(sites.layers) * 10 < context.workload.model.num_layers


def _graph_captured(context: Context, label: str) -> bool:
    scopes = {"core_attn": "attn", "mlp": "mlp", "moe": "moe"}
    captured = context.whole_layer_captured or scopes.get(label) in context.captured
    return captured and not context.full_iteration  # within a captured iteration checkpoints work as in eager mode


_CONDITIONS: Mapping[Condition, Callable[[Context, str], bool]] = {
    "unfused_attention": lambda context, _: materialises_scores(context.workload),
    "context_parallel": lambda context, _: context.workload.parallel.context_parallel_size > 1,
    "graph_captured": _graph_captured,
    "few_sites": _few_sites,
}


def _unknown_labels(context: Context, listed: Iterable[str]) -> tuple[str, ...]:
    """Labels that the revision accepts and neither this project nor the space file knows."""
    return tuple(sorted(context.accepted.labels - set(listed) - set(context.sites)))


def _label_sets(checker: Checker, labels: Sequence[str]) -> list[Boundary]:
    """Each label alone; every subset of those that act and are valid alone."""
    alone = {label: Boundary.selective([label]) for label in labels}
    active = [label for label in labels if checker.check(alone[label]).status == "distinct"]
    combined, rest = active[:MAX_COMBINED_LABELS], active[MAX_COMBINED_LABELS:]
    sets = list(alone.values())
    for size in range(2, len(combined) + 1):
        sets += [Boundary.selective(labels) for labels in combinations(combined, size)]
    sets += [Boundary.selective([*combined, label]) for label in rest]
    return sets


def _full(checker: Checker, space: SpaceFile) -> list[Boundary]:
    """Full recompute as the space asks for; its depths count layers of one pipeline chunk.

    A method of which no depth is valid keeps its first depth only: one row tells why.
    """
    if space.full is None:
        return []
    longest = checker.context.max_chunk_layers
    depths = _spread(longest) if space.full.block == "auto" else space.full.block
    sizes = _doublings(longest) if space.full.uniform == "auto" else space.full.uniform
    found: list[Boundary] = []
    for boundaries in ([Boundary.full("block", n) for n in depths], [Boundary.full("uniform", n) for n in sizes]):
        all_invalid = all(checker.check(boundary).status == "invalid" for boundary in boundaries)
        found += boundaries[:1] if all_invalid else boundaries
    return found


def _spread(longest: int) -> tuple[int, ...]:
    """Depths from 1 to the whole chunk: all of them, or evenly spread ones."""
    if longest <= MAX_AUTO_DEPTHS:
        return tuple(range(1, max(longest, 1) + 1))
    return tuple(round(1 + step * (longest - 1) / (MAX_AUTO_DEPTHS - 1)) for step in range(MAX_AUTO_DEPTHS))


def _doublings(longest: int) -> tuple[int, ...]:
    """Group sizes 1, 2, 4 ... up to the chunk: a group's replay holds all of its layers, so few sizes are of use."""
    sizes = []
    size = 1
    while size <= max(longest, 1):
        sizes.append(size)
        size *= 2
    return tuple(sizes)


def _recipes_own(workload: Workload) -> list[Boundary]:
    try:
        return [read_settings(workload.recipe_recompute).boundary] if workload.recipe_recompute else []
    except RequestError:
        return []  # a setting that cannot be read is the reader's to refuse; the space does not depend on it


def _width(boundary: Boundary, rank: Mapping[str, int], broad: frozenset[str]) -> tuple[int, int, int, tuple[int, ...], str]:
    """Sort key: control, off, sets by broad labels then size then the labels' places, block by depth, uniform by size."""
    if boundary.granularity == "full":
        method = 0 if boundary.method == "block" else 1
        return 2, method, boundary.num_layers or 0, (), boundary.key
    places = tuple(sorted(rank.get(label, len(rank)) for label in boundary.modules))
    group = 0 if boundary.is_control else 1
    return group, sum(label in broad for label in boundary.modules), len(places), places, boundary.key


def _place(check: Callable[[Boundary], Findings], boundaries: Sequence[Boundary]) -> tuple[Candidate, ...]:
    """Candidates in order; a boundary that others equal and that is not listed yet follows at the end."""
    candidates = [candidate_of(check(boundary), order) for order, boundary in enumerate(boundaries)]
    present = {candidate.boundary for candidate in candidates}
    for boundary in dict.fromkeys(c.same_as for c in candidates if c.same_as is not None):
        if boundary not in present:
            candidates.append(candidate_of(check(boundary), len(candidates)))
    return tuple(candidates)
