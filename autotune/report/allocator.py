"""Advice on the allocator's environment, and when it does not hold."""

from __future__ import annotations

from autotune.trial.allocator_setting import is_expandable
from autotune.workload.workload import Workload


def allocator_advice(workload: Workload) -> tuple[str, ...]:
    """One line for each setting of the allocator or of NCCL that is missing or does not go together; none if all is well.

    Sources: Megatron-LM asserts ``NCCL_GRAPH_REGISTER=0`` beside ``expandable_segments:True`` under Transformer Engine's CUDA
    graphs (megatron/training/arguments.py:validate_args, core 0.19.2: illegal memory access otherwise) and refuses
    ``expandable_segments`` with ``nccl_ub`` before torch 2.11 (distributed_data_parallel_config.py:__post_init__); Bridge
    sets the pair for its recipes (recipes/utils/environment_utils.py:COMMON_RECIPE_ENV_VARS, 0.6.2).
    """
    variables = workload.env_vars
    expandable = is_expandable(variables)
    graphs = workload.features.cuda_graph_impl != "none"
    advice = []
    if workload.other.get("ddp.nccl_ub"):
        if expandable:
            advice.append(
                "expandable_segments is set together with NCCL user buffers (ddp.nccl_ub): torch before 2.11 cannot use both"
            )
        return tuple(advice)
    if not expandable:
        advice.append(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True is not set: worth setting against fragmentation"
            + (", together with NCCL_GRAPH_REGISTER=0 since CUDA graphs are captured" if graphs else "")
            + ("; not where an inference engine such as vLLM shares the GPU")
        )
    elif graphs and variables.get("NCCL_GRAPH_REGISTER") != "0":
        advice.append("expandable_segments is set and CUDA graphs are captured: NCCL_GRAPH_REGISTER=0 has to be set as well")
    return tuple(advice)
