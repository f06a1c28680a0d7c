"""The few names of Megatron Core that have to be replaced on a CPU, after it is imported. Its sources stay as they are."""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Replace them. Each says why."""
    import torch
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    # They go through a queue that torch empties when CUDA is initialised, which never happens here. Where graphs will be
    # captured a state is a generator; a CPU's cannot be shared with the default one, so it is a copy.
    def set_state(new_state: Any, device: Any = -1, graph_safe: bool = False) -> None:
        torch.cuda.set_rng_state(new_state.get_state() if graph_safe else new_state)

    def get_state(device: Any = "cuda", clone: bool = False, graph_safe: bool = False) -> Any:
        state = torch.cuda.get_rng_state()
        if not graph_safe:
            return state
        generator = torch.Generator()
        generator.set_state(state)
        return generator

    megatron_random._set_cuda_rng_state = set_state
    megatron_random._get_cuda_rng_state = get_state

    # Split sizes of the expert all-to-all become host numbers only where ``Tensor.is_cuda`` says so.
    real_move = moe_utils.maybe_move_tensor_to_cpu

    def move_to_cpu(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return real_move(tensor, as_numpy, record_stream)
        host = tensor.cpu()
        return host.numpy() if as_numpy else host

    for module in (moe_utils, token_dispatcher):
        if hasattr(module, "maybe_move_tensor_to_cpu"):
            module.maybe_move_tensor_to_cpu = move_to_cpu
