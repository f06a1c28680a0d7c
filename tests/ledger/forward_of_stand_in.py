"""Program: what one forward of real Megatron modules saves on a CPU, for workloads and boundaries read from standard input.

Reads a JSON list of ``[workload, boundary]``; prints a JSON list of bytes of distinct saved storages, parameters left out.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile

from autotune.boundary.boundary import Boundary
from autotune.records import from_builtins
from autotune.trial.prelude import install
from autotune.workload.workload import Workload

counter = install()

import torch  # noqa: E402

from autotune.trial import core_loop  # noqa: E402
from autotune.trial.spec import TrialSpec  # noqa: E402


def saved_bytes(spec: TrialSpec) -> int:
    """Bytes of the storages that the graph of one forward keeps."""
    model = core_loop.build_model(spec, core_loop.transformer_config(spec))
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        storage = tensor.untyped_storage()
        saved.setdefault(storage._cdata, storage)
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = core_loop._forward_step(core_loop._batches(spec, 0, counter), model[0])
    parameters = {parameter.untyped_storage()._cdata for chunk in model for parameter in chunk.parameters()}
    del model, output
    gc.collect()
    return sum(storage.nbytes() for key, storage in saved.items() if key not in parameters)


def main() -> None:
    """Measure all cases in this process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ.setdefault("MASTER_PORT", "29511")
    core_loop.preload()
    answers = []
    for number, (workload, boundary) in enumerate(json.load(sys.stdin)):
        spec = TrialSpec(
            number=number,
            workload=from_builtins(workload, Workload, setting="workload"),
            boundary=from_builtins(boundary, Boundary, setting="boundary"),
            world_size=1,
            steps=1,
            backend="cpu",
            folder=tempfile.mkdtemp(),
        )
        if not number:
            core_loop._initialise(spec)
        answers.append(saved_bytes(spec))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
