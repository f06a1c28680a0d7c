"""The caching allocator's setting of a launch, and the variable that goes with it under CUDA graphs.

Megatron-LM asserts ``NCCL_GRAPH_REGISTER=0`` beside ``expandable_segments:True`` under Transformer Engine's CUDA graphs
(megatron/training/arguments.py:validate_args, core 0.19.2: illegal memory access otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping

from autotune.workload.workload import Workload

COMPANION = {"NCCL_GRAPH_REGISTER": "0"}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def is_expandable(variables: Mapping[str, str]) -> bool:
    """Whether an environment asks for expandable segments, by either name of the variable."""
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    return any("expandable_segments:true" in variables.get(name, "").lower().replace(" ", "") for name in names)


def lacking(workload: Workload) -> dict[str, str]:
    """What a GPU trial needs set beside the workload's own variables: the companion, where graphs are captured."""
    if workload.features.cuda_graph_impl == "none" or not is_expandable(workload.env_vars):
        return {}
    return {name: value for name, value in COMPANION.items() if workload.env_vars.get(name) != value}


def after_fragmentation(workload: Workload) -> dict[str, str]:
    """What a repeat after an out-of-memory by fragmentation runs with, over the workload's own variables.

    Another setting of the allocator in the same variable stays: the list's last value of a key holds.
    """
    name = next(iter(EXPANDABLE))
    own = workload.env_vars.get(name)
    return {name: f"{own},{EXPANDABLE[name]}" if own else EXPANDABLE[name], **COMPANION}
