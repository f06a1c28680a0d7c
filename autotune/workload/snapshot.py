"""Takes and renews the snapshots of the catalog: ``python -m autotune.workload.snapshot [ALIAS ...]``.

Needs Megatron Bridge (0.6 or newer). Writes ``search_spaces/recipes/ALIAS.yaml`` for each alias of ``SNAPSHOTS`` (all by
default) and ``search_spaces/bridge_fields.yaml``, the names of Bridge's configuration fields, with which overrides of a
snapshot are checked where Bridge is absent.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from autotune.records import to_builtins, write_atomically
from autotune.workload.architecture import classify
from autotune.workload.bridge_recipe import describe_bridge, load_live
from autotune.workload.catalog import FOLDER, CatalogEntry, CatalogFile
from autotune.workload.workload import Source, Stack, Workload

FIELDS = FOLDER.parent / "bridge_fields.yaml"
PRECISION_FIELDS = frozenset({
    "params_dtype", "grad_reduce_in_fp32", "fp8", "fp8_recipe", "fp8_param_gather", "fp4", "fp4_param_gather",
    "first_last_layers_bf16", "num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16",
    "reuse_grad_buf_for_mxfp8_param_ag",
})  # fmt: skip
BRIDGE_CONTAINER = "nvcr.io/nvidia/pytorch:26.06-py3"
"""Base image of Bridge 0.6 (docker/Dockerfile.ci at v0.6.0 and 600d069b)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOf:
    """What to take a snapshot of; fields as in ``CatalogEntry``."""

    title: str
    function: str
    base_overrides: tuple[str, ...] = ()
    trial_overrides: tuple[str, ...] = ()
    why: str = ""
    differs: tuple[str, ...] = ()


_SEED = ("Bridge 600d069b (0.7.0) with Megatron Core 24bad8e6 (0.20.0), on which the published H100 table ran: no field differs",)
SNAPSHOTS: dict[str, SnapshotOf] = {
    "nemotron3nano": SnapshotOf(
        title="Nemotron 3 Nano 30B-A3B, 16 H100, BF16 (performance recipe)",
        function="nemotron_3_nano_pretrain_16gpu_h100_bf16_config",
        trial_overrides=("train.global_batch_size=16",),
        why="the recipe accumulates 64 micro batches a step; with one stage its memory is that of one",
        differs=_SEED,
    ),
    "nemotron3super": SnapshotOf(
        title="Nemotron 3 Super 120B-A12B, 64 H100, BF16 (performance recipe)",
        function="nemotron_3_super_pretrain_64gpu_h100_bf16_config",
        trial_overrides=("train.global_batch_size=32",),
        why="the recipe accumulates 40 micro batches a step; with one stage its memory is that of one",
    ),
    "moonlight16b": SnapshotOf(
        title="Moonlight 16B-A3B, 8 H100, BF16",
        function="moonlight_16b_pretrain_8gpu_h100_bf16_config",
        trial_overrides=("train.global_batch_size=4",),
        why="the recipe accumulates 512 micro batches a step; with one stage its memory is that of one",
        differs=_SEED,
    ),
    "llama3_8b": SnapshotOf(
        title="Llama 3 8B, 8 H100, BF16 (performance recipe)",
        function="llama3_8b_pretrain_8gpu_h100_bf16_config",
    ),
    "llama3_70b": SnapshotOf(
        title="Llama 3 70B, 64 H100, BF16 (performance recipe)",
        function="llama3_70b_pretrain_64gpu_h100_bf16_config",
    ),
    "llama3_70b_sft": SnapshotOf(
        title="Llama 3 70B full fine-tuning, 32 H100, FP8 current scaling (performance recipe)",
        function="llama3_70b_sft_32gpu_h100_fp8cs_config",
    ),
    "llama31_405b": SnapshotOf(
        title="Llama 3.1 405B, 1,024 H100, BF16 (performance recipe)",
        function="llama31_405b_pretrain_1024gpu_h100_bf16_config",
    ),
    "qwen3_30b_a3b": SnapshotOf(
        title="Qwen3 30B-A3B, 16 H100, BF16 (performance recipe)",
        function="qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
    ),
    "qwen3_235b_a22b": SnapshotOf(
        title="Qwen3 235B-A22B, 256 H100, BF16 (performance recipe)",
        function="qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config",
    ),
    "qwen3_next_80b_a3b": SnapshotOf(
        title="Qwen3-Next 80B-A3B, 128 H100, BF16 (performance recipe)",
        function="qwen3_next_80b_a3b_pretrain_128gpu_h100_bf16_config",
    ),
    "deepseek_v3": SnapshotOf(
        title="DeepSeek V3 671B, 1,024 H100, BF16 (performance recipe)",
        function="deepseek_v3_pretrain_1024gpu_h100_bf16_config",
    ),
    "kimi_k2": SnapshotOf(
        title="Kimi K2 1T, 1,024 H100, BF16 (performance recipe)",
        function="kimi_k2_pretrain_1024gpu_h100_bf16_config",
    ),
    "gpt_oss_120b": SnapshotOf(
        title="gpt-oss 120B, 64 H100, BF16 (performance recipe)",
        function="gpt_oss_120b_pretrain_64gpu_h100_bf16_config",
    ),
}


def take(alias: str, wanted: SnapshotOf) -> CatalogFile:
    """Load one recipe live and make it a catalog file."""
    live = load_live(wanted.function, overrides=wanted.base_overrides, name=alias)
    workload = _as_snapshot(live)
    entry = CatalogEntry(
        alias=alias,
        title=wanted.title,
        bridge_function=wanted.function,
        revision=live.stack.megatron_bridge,
        date=datetime.now(UTC).date().isoformat(),
        architecture=classify(workload).class_,
        gpus=workload.parallel.world_size,
        gpu=workload.hardware.gpu,
        base_overrides=wanted.base_overrides,
        trial_overrides=wanted.trial_overrides,
        why=wanted.why,
        differs=wanted.differs,
    )
    return CatalogFile(entry=entry, workload=workload)


def _as_snapshot(live: Workload) -> Workload:
    """Replace what belongs to the machine that took the snapshot by what belongs to the revision."""
    stack = Stack(
        megatron_core=live.stack.megatron_core,
        megatron_bridge=live.stack.megatron_bridge,
        transformer_engine=live.stack.transformer_engine,
        container=BRIDGE_CONTAINER,
    )
    notes = tuple(note for note in live.source.notes if " here: " not in note)
    source = Source(
        kind="catalog",
        reference=live.name,
        revision=live.stack.megatron_bridge,
        overrides=live.source.overrides,
        notes=(*notes, f"Transformer Engine {stack.transformer_engine} and {BRIDGE_CONTAINER}: those Bridge is built with"),
    )
    return replace(live, stack=stack, source=source)


def _fields_yaml() -> str:
    described = describe_bridge()
    recipes = {
        name: {key: value for key, value in values.items() if key in PRECISION_FIELDS}
        for name, values in described["mixed_precision"].items()
    }
    content = {"revision": described["revision"], "mixed_precision": recipes, "sections": described["sections"]}
    return "# Taken with: python -m autotune.workload.snapshot\n" + _dump(content)


def as_yaml(content: CatalogFile) -> str:
    """A catalog file's text; short lists on one line."""
    return f"# Taken with: python -m autotune.workload.snapshot {content.entry.alias}\n" + _dump(to_builtins(content))


def _dump(content: Any) -> str:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Mappings as blocks, short lists on a line."""

    def represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
        flow = all(not isinstance(item, str) or len(item) < 50 for item in items)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)

    Dumper.add_representer(list, represent_list)
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


def main(arguments: list[str]) -> int:
    """Take the named snapshots, or all of them."""
    unknown = set(arguments) - set(SNAPSHOTS)
    if unknown:
        sys.exit(f"no such snapshot: {', '.join(sorted(unknown))}; known: {', '.join(SNAPSHOTS)}")
    if not arguments:
        write_atomically(FIELDS, _fields_yaml())
    for alias in arguments or SNAPSHOTS:
        write_atomically(FOLDER / f"{alias}.yaml", as_yaml(take(alias, SNAPSHOTS[alias])))
        print(f"{alias}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
