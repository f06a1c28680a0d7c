"""What a checkpoint call costs beside its replay, in a process that trials are forked from."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs megatron-core"),
]

PROGRAM = """
import json, os
from autotune.trial import rank
rank.preload("cpu", "core")
counter = rank._counter[0]
counter.count_this_thread()
import torch
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
from megatron.core import parallel_state, tensor_parallel
parallel_state.initialize_model_parallel()
tensor_parallel.model_parallel_cuda_manual_seed(1)
from autotune.trial.survey.own_work import checkpoint_own_ms
before, state = counter.current_bytes(), torch.get_rng_state()
found = checkpoint_own_ms()
left, drawn = counter.current_bytes() - before, not torch.equal(state, torch.get_rng_state())
print(json.dumps({"own": found, "left": left, "drawn": drawn}))
"""


def test_both_kinds_of_checkpoint_cost_something_and_leave_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found["own"]) == {"C", "W"} and found["left"] == 0 and not found["drawn"]
    assert all(0.01 < cost < 20 for cost in found["own"].values()), "tens of microseconds, more on a busy machine"
