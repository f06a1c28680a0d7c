"""Gated Delta Net in deterministic mode: the rule of single operations keeps what autograd counts, a multiple of the kernel's."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from ledger_workloads import small

from autotune.boundary.boundary import Boundary
from autotune.ledger.gdn import _chunk_rule_bytes
from autotune.ledger.ledger import Ledger

COUNT = """
import sys, torch
try:
    from megatron.core.ssm.gated_delta_net.common import torch_chunk_gated_delta_rule as rule
except ImportError:
    from megatron.core.ssm.gated_delta_net import torch_chunk_gated_delta_rule as rule
torch.set_num_threads(1)
batch, length, heads, dk, dv = map(int, sys.argv[1:])
def leaf(*shape):
    return torch.rand(*shape, requires_grad=True)
inputs = [leaf(batch, length, heads, width).bfloat16() for width in (dk, dk, dv)]
gates = [-leaf(batch, length, heads), leaf(batch, length, heads).bfloat16()]
kept = {}
def note(tensor):
    storage = tensor.untyped_storage()
    kept[storage.data_ptr()] = (storage.nbytes(), tensor)
    return tensor
with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
    rule(*inputs, g=gates[0], beta=gates[1])
for tensor in (*inputs, *gates):
    kept.pop(tensor.untyped_storage().data_ptr(), None)
print(sum(nbytes for nbytes, _ in kept.values()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 512, 4, 16, 16), (2, 256, 2, 16, 32), (1, 512, 2, 64, 32)])
def test_the_rule_keeps_what_autograd_keeps(shape: tuple[int, int, int, int, int]) -> None:
    done = subprocess.run([sys.executable, "-c", COUNT, *map(str, shape)], capture_output=True, text=True, check=True)
    counted = int(done.stdout.splitlines()[-1])
    batch, length, heads, dk, dv = shape
    # The last chunk's state is not used, nor are the first chunk's zeros a tensor of their own everywhere.
    states = 4 * 2 * batch * heads * (dk * dv + 3 * 64)
    assert 0 <= _chunk_rule_bytes(batch * length * heads, dk, dv) - counted <= states + 4 * 3 * batch * length * heads


def test_figures_of_a_layer_worked_out_by_hand() -> None:
    positions, width = 16384 * 16, 128
    floats = 10 * width + 6 * 64 + 1365 + width * width / 64 + 5
    assert _chunk_rule_bytes(positions, width, width) == pytest.approx(4 * positions * floats)


def test_determinism_costs_a_layer_what_the_rule_keeps_and_what_the_kernel_does_not() -> None:
    plain = small("gdn")
    strict = replace(plain, train=replace(plain.train, deterministic_mode=True))
    boundary = Boundary.selective()
    held = [{line.name for line in Ledger(workload).lines(boundary) if line.held} for workload in (plain, strict)]
    assert {"gdn.q", "gdn.k", "gdn.v", "gdn.A"} == held[0] - held[1]
    assert {"gdn.chunk_rule", "gdn.conv_activation_in"} == held[1] - held[0]
    assert Ledger(strict).predict(boundary).peak_bytes > Ledger(plain).predict(boundary).peak_bytes
