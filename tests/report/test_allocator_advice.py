"""Advice on allocator and NCCL settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_samples import sample_workload

from autotune.report.allocator import allocator_advice
from autotune.workload.workload import Features

PAIR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,graph_capture_record_stream_reuse:True", "NCCL_GRAPH_REGISTER": "0"}


@pytest.mark.parametrize(
    ("variables", "other", "graphs", "said"),
    [
        (PAIR, {}, "transformer_engine", []),
        ({**PAIR, "NCCL_GRAPH_REGISTER": "1"}, {}, "transformer_engine", ["NCCL_GRAPH_REGISTER=0 has to be set as well"]),
        ({**PAIR, "NCCL_GRAPH_REGISTER": "1"}, {}, "none", []),
        ({}, {}, "transformer_engine", ["together with NCCL_GRAPH_REGISTER=0"]),
        ({}, {}, "none", ["is not set: worth setting against fragmentation; not where an inference engine"]),
        ({}, {"ddp.nccl_ub": True}, "transformer_engine", []),
        (PAIR, {"ddp.nccl_ub": True}, "transformer_engine", ["torch before 2.11 cannot use both"]),
    ],
)
def test_advice(variables: dict[str, str], other: dict[str, bool], graphs: str, said: list[str]) -> None:
    workload = replace(sample_workload(), env_vars=variables, other=other, features=Features(cuda_graph_impl=graphs))
    advice = allocator_advice(workload)
    assert len(advice) == len(said)
    for line, part in zip(advice, said, strict=True):
        assert part in line
