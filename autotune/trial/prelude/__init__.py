"""What stands for the GPU in a trial on a CPU: torch.cuda, Transformer Engine, and a device memory that is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.trial.prelude.allocator import Counter

__all__ = ["install"]


def install(collectives: Callable[[], None] | None = None) -> Counter:
    """Make this process one whose GPU is its CPU. Call it before Megatron is imported; it starts no thread.

    Nothing is counted until ``Counter.count_this_thread``, so what is imported in between costs no device memory.

    Args:
        collectives: Installs other collectives than those over gloo.

    Raises:
        RequestError: There is no C++ compiler, or Megatron is already imported.
    """
    import os

    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Megatron's jit_fuser is torch.compile: eager here.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    import torch
    import torch._dynamo  # It keeps a table of torch's functions, which has to be made before some are replaced.

    from autotune.trial.prelude import allocator, cuda_shim, fused, ssm_stand_in, te_stand_in
    from autotune.trial.prelude import collectives as over_gloo
    from autotune.trial.prelude.te_stand_in import kernels

    torch.set_num_threads(1)
    counter = allocator.install()
    cuda_shim.install(counter)
    if collectives is None:
        over_gloo.install(counter)
    else:
        collectives()
    fused.install(counter)
    kernels.set_scratch(counter.paused)
    te_stand_in.install()
    ssm_stand_in.install()
    import megatron.core  # noqa: F401

    from autotune.trial.prelude import megatron_names

    megatron_names.install()
    return counter
