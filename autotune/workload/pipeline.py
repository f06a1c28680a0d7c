"""Which layers each pipeline stage holds: all of Megatron's ways to split a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import RequestError
from autotune.workload.architecture import main_pattern, mtp_depths
from autotune.workload.workload import Parallel, Workload

_LAYOUT_NAMES = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
_PARENTHESES = re.compile(r"\(([^)]+)\)\*(\d+)")
_REPEATED = re.compile(r"(.)\*(\d+)")
Layout = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage.

    Attributes:
        index: Pipeline rank.
        rank: Its first global rank (pipeline is Megatron's slowest dimension: order tp-cp-ep-dp-pp).
        chunks: 0-based decoder layers of each virtual chunk, in the chunk's order.
        has_embedding: Whether the first chunk begins with the embedding.
        has_loss: Whether a chunk ends with the output layer and the loss.
        mtp_layers: Multi-token prediction layers built here.
    """

    index: int
    rank: int
    chunks: tuple[tuple[int, ...], ...]
    has_embedding: bool
    has_loss: bool
    mtp_layers: int = 0

    @property
    def layers(self) -> tuple[int, ...]:
        """All decoder layers of the stage."""
        return tuple(layer for chunk in self.chunks for layer in chunk)


def stages(workload: Workload) -> tuple[Stage, ...]:
    """Split the decoder over the pipeline as Megatron Core does.

    Sources at Megatron Core 0.19.2: transformer/transformer_block.py:get_num_layers_to_build,
    transformer/pipeline_parallel_layer_layout.py, models/hybrid/hybrid_layer_allocation.py:select_pipeline_segment.

    Raises:
        RequestError: The layers cannot be split that way.
    """
    parallel, model = workload.parallel, workload.model
    pp = parallel.pipeline_model_parallel_size
    mtp = model.mtp_num_layers or (mtp_depths(model.hybrid_layer_pattern) if model.hybrid_layer_pattern else 0)
    if parallel.pipeline_model_parallel_layout is not None:
        return _stages_of_layout(parse_layout(parallel.pipeline_model_parallel_layout), workload, mtp)
    if model.hybrid_layer_pattern is not None and "|" in main_pattern(model.hybrid_layer_pattern):
        counts = _segment_counts(model.hybrid_layer_pattern, parallel)
    else:
        vpp = parallel.virtual_pipeline_model_parallel_size or 1
        if model.hybrid_layer_pattern is not None and vpp > 1 and pp > 1:
            raise RequestError(
                "model.virtual_pipeline_model_parallel_size",
                vpp,
                "a hybrid pattern without | cannot be cut into virtual chunks",
                "put | between the chunks of model.hybrid_layer_pattern",
            )
        counts = split_counts(parallel, model.num_layers)
    chunks = _numbered(counts)
    return tuple(
        Stage(
            index=index,
            rank=first_rank(parallel, index),
            chunks=tuple(chunk[index] for chunk in chunks),
            has_embedding=index == 0,
            has_loss=index == pp - 1,
            mtp_layers=mtp if index == pp - 1 else 0,
        )
        for index in range(pp)
    )


def first_rank(parallel: Parallel, stage: int) -> int:
    """First global rank of a pipeline stage."""
    return stage * (parallel.world_size // parallel.pipeline_model_parallel_size)


def split_counts(parallel: Parallel, num_layers: int) -> list[list[int]]:
    """Decoder layers by virtual chunk and pipeline rank, without a custom layout.

    Raises:
        RequestError: The layers do not divide.
    """
    pp = parallel.pipeline_model_parallel_size
    first, last = parallel.num_layers_in_first_pipeline_stage, parallel.num_layers_in_last_pipeline_stage
    embedding, loss = parallel.account_for_embedding_in_pipeline_split, parallel.account_for_loss_in_pipeline_split
    if first is not None or last is not None:
        if embedding or loss:
            raise RequestError(
                "model.num_layers_in_first_pipeline_stage",
                first,
                "an uneven first or last stage and embedding or loss counted in the split exclude each other",
                "use one of the two",
            )
        per_rank = _uneven(num_layers, pp, first, last)
    else:
        total = num_layers + embedding + loss
        if total % pp:
            counted = f"{total} ({num_layers} layers, embedding and loss as counted)" if total != num_layers else str(total)
            raise RequestError(
                "model.pipeline_model_parallel_size",
                pp,
                f"does not divide model.num_layers={counted}",
                "choose a divisor, set num_layers_in_first_pipeline_stage or give pipeline_model_parallel_layout",
            )
        per_rank = [total // pp] * pp
    vpp = parallel.virtual_pipeline_model_parallel_size if pp > 1 else None
    chunks = vpp or 1
    bad = next((count for count in per_rank if count % chunks), None)
    if bad is not None:
        raise RequestError(
            "model.virtual_pipeline_model_parallel_size", vpp, f"does not divide a stage of {bad} layers", "choose a divisor"
        )
    counts = [[count // chunks for count in per_rank] for _ in range(chunks)]
    counts[0][0] -= embedding
    counts[-1][-1] -= loss
    if counts[0][0] < 0 or counts[-1][-1] < 0:
        raise RequestError(
            "model.pipeline_model_parallel_size", pp, "leaves a stage with less than no layers", "use fewer stages"
        )
    return counts


def _uneven(num_layers: int, pp: int, first: int | None, last: int | None) -> list[int]:
    rest = num_layers - (first or 0) - (last or 0)
    middle = pp - (first is not None) - (last is not None)
    setting = "model.num_layers_in_first_pipeline_stage" if first is not None else "model.num_layers_in_last_pipeline_stage"
    value = first if first is not None else last
    if middle < 0 or rest < 0 or (middle == 0 and rest) or (middle and rest % middle):
        raise RequestError(
            setting,
            value,
            f"leaves {rest} of {num_layers} layers for {max(middle, 0)} middle stages of {pp}",
            "choose sizes so that the middle stages share the rest evenly",
        )
    per_rank = [rest // middle if middle else 0] * pp
    if first is not None:
        per_rank[0] = first
    if last is not None:
        per_rank[-1] = last
    return per_rank


def _segment_counts(pattern: str, parallel: Parallel) -> list[list[int]]:
    segments = main_pattern(pattern).split("|")
    pp = parallel.pipeline_model_parallel_size
    if parallel.num_layers_in_first_pipeline_stage is not None or parallel.num_layers_in_last_pipeline_stage is not None:
        raise RequestError(
            "model.hybrid_layer_pattern", pattern, "| already fixes the stages", "drop num_layers_in_first/last_pipeline_stage"
        )
    vpp = parallel.virtual_pipeline_model_parallel_size
    if len(segments) % pp or (vpp is not None and len(segments) != pp * vpp):
        raise RequestError(
            "model.hybrid_layer_pattern",
            pattern,
            f"has {len(segments)} chunks for {pp} pipeline stages" + (f" of {vpp} virtual chunks" if vpp else ""),
            "put | so that there are stages times virtual chunks of them",
        )
    return [[len(segment) for segment in segments[start : start + pp]] for start in range(0, len(segments), pp)]


def _numbered(counts: Sequence[Sequence[int]]) -> list[list[tuple[int, ...]]]:
    """Give layers their numbers: in order of virtual chunk, then pipeline rank."""
    numbered, start = [], 0
    for row in counts:
        chunk = []
        for count in row:
            chunk.append(tuple(range(start, start + count)))
            start += count
        numbered.append(chunk)
    return numbered


def parse_layout(layout: str | Sequence[Sequence[str]]) -> Layout:
    """Read a custom pipeline layout in Megatron's string form (``Et*3|(tt|)*29,m|L``) or list form.

    Returns one tuple of layer names (embedding, decoder, mtp, loss) for each chunk, in order of virtual chunk, then rank.

    Raises:
        RequestError: An unknown letter or name.
    """
    setting = "model.pipeline_model_parallel_layout"
    if not isinstance(layout, str):
        names = tuple(tuple(name.strip().lower() for name in row) for row in layout)
        bad = next((name for row in names for name in row if name not in _LAYOUT_NAMES.values()), None)
        if bad is not None:
            raise RequestError(setting, bad, "is no layer name", "use embedding, decoder, mtp and loss")
        return names
    text = layout.replace(",", "")
    for pattern in (_PARENTHESES, _REPEATED):
        text = pattern.sub(lambda match: match.group(1) * int(match.group(2)), text)
    bad = next((letter for letter in text if letter not in _LAYOUT_NAMES and letter != "|"), None)
    if bad is not None:
        raise RequestError(setting, layout, f"{bad!r} is no layer", "use E, t, m, L, | between chunks, x*n and (xy)*n")
    return tuple(tuple(_LAYOUT_NAMES[letter] for letter in chunk) for chunk in text.split("|"))


def _stages_of_layout(layout: Layout, workload: Workload, mtp: int) -> tuple[Stage, ...]:
    parallel, model = workload.parallel, workload.model
    pp, vpp = parallel.pipeline_model_parallel_size, parallel.virtual_pipeline_model_parallel_size
    _check_layout(layout, workload, mtp)
    chunks = len(layout) // pp
    if vpp is not None and vpp != chunks:
        raise RequestError(
            "model.virtual_pipeline_model_parallel_size", vpp, f"the layout has {chunks} chunks a stage", "make the two agree"
        )
    counts = [[layout[v * pp + p].count("decoder") for p in range(pp)] for v in range(chunks)]
    if (held := sum(map(sum, counts))) != model.num_layers:
        raise RequestError(
            "model.pipeline_model_parallel_layout",
            str(parallel.pipeline_model_parallel_layout),
            f"places {held} decoder layers of {model.num_layers}",
            "place every layer once",
        )
    numbered = _numbered(counts)
    return tuple(
        Stage(
            index=p,
            rank=first_rank(parallel, p),
            chunks=tuple(numbered[v][p] for v in range(chunks)),
            has_embedding=any("embedding" in layout[v * pp + p] for v in range(chunks)),
            has_loss=any("loss" in layout[v * pp + p] for v in range(chunks)),
            mtp_layers=sum(layout[v * pp + p].count("mtp") for v in range(chunks)),
        )
        for p in range(pp)
    )


def _check_layout(layout: Layout, workload: Workload, mtp: int) -> None:
    """Rules of PipelineParallelLayerLayout.validate_layer_layout."""
    parallel = workload.parallel
    value = str(parallel.pipeline_model_parallel_layout)
    flat = [name for chunk in layout for name in chunk]
    pp = parallel.pipeline_model_parallel_size
    broken = {
        f"has {len(layout)} chunks for {pp} pipeline stages": len(layout) % pp != 0,
        "has to begin with one embedding": flat[:1] != ["embedding"] or flat.count("embedding") != 1,
        "has to end with one loss": flat[-1:] != ["loss"] or flat.count("loss") != 1,
        f"places {flat.count('mtp')} MTP layers of {mtp}": flat.count("mtp") != mtp,
        "places a decoder layer after an MTP layer": "mtp" in flat and "decoder" in flat[flat.index("mtp") :],
    }
    for rule, is_broken in broken.items():
        if is_broken:
            raise RequestError("model.pipeline_model_parallel_layout", value, rule, "mend the layout")
