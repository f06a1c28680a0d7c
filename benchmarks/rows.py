"""Measured rows as workloads: one form for the public rows (JSON lines) and for tables in the form of the seed's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from autotune.boundary.boundary import Boundary
from autotune.errors import RequestError
from autotune.workload.gpu import gpu_names
from autotune.workload.megatron_args import workload_from_args
from autotune.workload.validate import validate
from autotune.workload.workload import Stack, Workload
from benchmarks.families import family_of
from benchmarks.model_rows import workload_of_model
from benchmarks.seed_rows import seed_rows_workload
from benchmarks.split import Half, half
from benchmarks.stacks import golden_stack

_KINDS = {None, "gpt", "moe", "mixtral", "mamba", "hybrid"}

Reports = Literal["last stage", "first stage", "any stage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured peak and the workload and boundary it belongs to.

    Attributes:
        reports: Whose peak the row holds: the last pipeline stage's, the first's, or the maximum over all ranks.
        iterations: Iterations whose phases the peak covers (``first``, ``steady``, ``after_capture``).
        reason: Why there is no workload, where there is none.
        marks: ``doubtful`` or ``incomplete``, as the row's own notes say; such rows are shown and not scored.
        group: Rows of one workload that differ in the boundary only, or None.
    """

    id: str
    table: str
    family: str
    half: Half
    measured_bytes: int | None
    measured_first_bytes: int | None = None
    reports: Reports = "any stage"
    iterations: tuple[str, ...] = ("first", "steady", "after_capture")
    workload: Workload | None = None
    boundary: Boundary | None = None
    reason: str | None = None
    marks: tuple[str, ...] = ()
    group: str | None = None
    lower_bound: bool = False
    stage_bytes: tuple[int, ...] = ()
    """Measured maximum of each stage's ranks where the row reports every rank."""


def load_rows(path: Path) -> tuple[Row, ...]:
    """Read measured rows.

    Args:
        path: JSON lines in the schema of the public rows (``id``, ``model_args``, ``peak_allocated_bytes`` ...), or one JSON
            object with ``tables``, in the form of the seed's tables.

    Raises:
        RequestError: The file cannot be read or has neither form.
    """
    try:
        records = _records(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError("--rows", str(path), f"cannot be read ({error})", "give JSON lines or a file of tables") from None
    if len(records) == 1 and isinstance(records[0], dict) and "tables" in records[0]:
        return tuple(row for table in records[0]["tables"] for row in _seed_table(table))
    if not records or not all(isinstance(record, dict) and "id" in record and "model_args" in record for record in records):
        raise RequestError("--rows", str(path), "holds rows without id or model_args", "give rows in the measured rows' form")
    return tuple(_row(record) for record in records)


def _records(text: str) -> list[Any]:
    try:
        whole = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _row(record: Mapping[str, Any]) -> Row:
    notes = str(record.get("notes", ""))
    source = str(record.get("source_class", "")) or str(record["id"]).split(":", maxsplit=1)[0]
    per_rank = record.get("per_rank_peak_allocated_bytes") or {}
    row = Row(
        id=str(record["id"]),
        table=source,
        family="",
        half=half(str(record["id"])),
        measured_bytes=record.get("peak_allocated_bytes"),
        measured_first_bytes=record.get("peak_allocated_bytes_iter_first"),
        reports="last stage" if str(record.get("rank_logged", "")).startswith("last rank") else "any stage",
        boundary=_boundary(record.get("recompute") or {}),
        marks=tuple(mark.lower() for mark in ("DOUBTFUL", "INCOMPLETE") if mark in notes),
        group=record.get("pair_id"),
        lower_bound="OOM" in str(record.get("outcome", "")),
    )
    try:
        workload = _workload(record, source)
        validate(workload)
        reason = None if row.measured_bytes is not None else "the row has no peak"
        pipeline = workload.parallel.pipeline_model_parallel_size
        ranks = [per_rank[rank] for rank in sorted(per_rank, key=int)]
        each = len(ranks) // pipeline
        stages = tuple(max(ranks[stage * each : (stage + 1) * each]) for stage in range(pipeline)) if each else ()
        # A row without a recompute setting beside its arguments has the one that its arguments give.
        boundary = row.boundary if record.get("recompute") else _boundary(workload.recipe_recompute)
        row = replace(row, workload=workload, boundary=boundary, reason=reason, stage_bytes=stages)
    except RequestError as error:
        row = replace(row, reason=str(error))
    return replace(row, family=family_of(row.id, source, row.workload, row.boundary))


def _workload(record: Mapping[str, Any], source: str) -> Workload:
    args = dict(record["model_args"])
    layout = {name: value for name, value in (record.get("parallel") or {}).items() if value is not None}
    gpu = gpu_name(str(record.get("gpu", "H100")))
    environment = {str(name): str(value) for name, value in (record.get("env_vars") or {}).items()}
    if record.get("kind") not in _KINDS:
        raise RequestError("kind", record.get("kind"), "is no decoder of this project's", "give rows of GPT or hybrid models")
    layers = {"num_layers", "encoder_num_layers", "hybrid_layer_pattern", "hybrid_override_pattern"}
    if layers.isdisjoint(name.lstrip("-").replace("-", "_") for name in args) or "precision" in args:
        return workload_of_model({**layout, **args}, world_size=record.get("world_size"), gpu=gpu)
    stack, note = Stack(), None
    if source == "simumax":
        args, stack = _simumax(args, layout)
    elif source == "mlm_golden":
        stack, note = golden_stack(str(record["id"]), recorded_on=record.get("recorded_on"), own=record.get("stack"))
        args = _by_test_name(str(record["id"]), args)
    # The arguments of the row count before the summary of its layout: both name the same sizes.
    known = {name.lstrip("-").replace("-", "_") for name in args}
    shorthand = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
                 "ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size"}  # fmt: skip
    extra = {name: value for name, value in layout.items() if shorthand.get(name, name) not in known}
    workload = workload_from_args(
        {**extra, **args},
        world_size=record.get("world_size"),
        gpu=gpu,
        name=str(record["id"]),
        reference=str(record.get("source", "")),
        env_vars=environment,
        stack=stack,
    )
    notes = (*workload.source.notes, *((note,) if note else ()))
    return replace(workload, source=replace(workload.source, notes=notes))


def _by_test_name(row_id: str, args: dict[str, Any]) -> dict[str, Any]:
    """What a row's arguments leave out and only its test's name says."""
    if "no_create_attention_mask_in_dataloader" in row_id:
        args["--no-create-attention-mask-in-dataloader"] = True
    return args


def _simumax(args: dict[str, Any], layout: Mapping[str, Any]) -> tuple[dict[str, Any], Stack]:
    """SimuMax's rows are summaries of its launch scripts: what those pass and the summary leaves out."""
    if str(args.get("cross_entropy_loss_fusion", "")).startswith("te"):
        args.update(cross_entropy_loss_fusion=True, cross_entropy_fusion_impl="te")
    args.pop("model", None)  # a label: the sizes are beside it
    args.setdefault("position_embedding_type", "rope")
    args.setdefault("max_position_embeddings", args.get("seq_length"))
    args.setdefault("normalization", "RMSNorm")
    # A dense mask of the longest rows alone would exceed their measured peak (131072^2 bytes).
    args.setdefault("no_create_attention_mask_in_dataloader", True)
    args.setdefault("untie_embeddings_and_output_weights", True)
    if layout.get("cp", 1) > 1:
        args.setdefault("cp_comm_type", "a2a")  # CP_COMM_TYPE of the launchers
    return args, Stack(megatron_core="0.14.0", transformer_engine="2.11.0", torch="2.10.0")


def gpu_name(name: str) -> str:
    """A row's spelling of a GPU as the project spells it: ``A100`` -> ``A100-80GB``, ``B200-SXM`` -> ``B200``."""
    near = [known for known in gpu_names() if name.upper().startswith(known.split("-")[0])]
    return max(near, key=len) if near else name


def _boundary(recompute: Mapping[str, Any]) -> Boundary:
    fields = {name if name.startswith("recompute_") else f"recompute_{name}": value for name, value in recompute.items()}
    modules = fields.get("recompute_modules")
    if isinstance(modules, str):
        fields["recompute_modules"] = modules.strip("[]").replace(",", " ").split()
    return Boundary.from_fields(fields)


def _seed_table(table: Mapping[str, Any]) -> Iterator[Row]:
    name = str(table["name"])
    try:
        workload, reason = seed_rows_workload(table), None
    except RequestError as error:
        workload, reason = None, str(error)
    context = "no matched no-recompute row" in str(table.get("note", ""))
    for record in table["rows"]:
        boundary = Boundary.selective(record["modules"])
        peak = record.get("peak_gb")
        last = record.get("peak_after_iteration", 2)
        row_id = f"{name}:{boundary.key}"
        yield Row(
            id=row_id,
            table=name,
            family=name,
            half=half(row_id),
            measured_bytes=None if peak is None else round(peak * 1e9),
            reports="any stage",
            iterations=("first",) if last == 1 else ("first", "steady"),  # Bridge reports twice, before graphs are captured
            workload=workload,
            boundary=boundary,
            reason=reason or (None if peak is not None else f"no peak: {record.get('outcome')}"),
            marks=("context only",) if context else (),
            group=name,
            lower_bound=context and "oom" in str(record.get("outcome", "")),
        )
