"""Measured H100 tables of an activation-recompute guide, in the form in which a study writes them down.

Source: NVIDIA's skill nemo-mbridge-perf-activation-recompute (Apache-2.0), Megatron Bridge 600d069b with Megatron Core 24bad8e6.
Peaks are allocated memory of rank 0 in decimal GB, as Bridge prints them.
"""

from __future__ import annotations

from typing import Any

REVISIONS = {
    "bridge": "600d069b824dd5ce50367a311a5a3244478faf22",
    "megatron_core": "24bad8e677d22625d86ef2a54c9506b6e4992c93",
}


def _row(
    modules: list[str], peak_gb: float | None, step_ms: float | None, outcome: str = "completed", **more: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {"modules": modules, "outcome": outcome, **more}
    return row | ({"peak_gb": peak_gb} if peak_gb else {}) | ({"step_ms": step_ms} if step_ms else {})


MOONLIGHT = {
    "name": "moonlight_16b",
    "revisions": REVISIONS,
    "workload": {"model": "Moonlight 16B", "gpus": 8, "seq_length": 4096, "global_batch_size": 4, "tp": 2, "ep": 8, "steps": 20},
    "rows": [
        _row([], 36.618, 457.18),
        _row(["core_attn"], 36.614, 474.80),
        _row(["mla_up_proj"], 35.902, 480.89),
        _row(["mla_up_proj", "mlp"], 35.917, 496.73),
        _row(["moe_act"], 35.941, 466.26),
        _row(["layernorm", "moe_act"], 35.949, 506.53),
    ],
}
NEMOTRON = {
    "name": "nemotron_3_nano",
    "revisions": REVISIONS,
    "workload": {
        "model": "Nemotron 3 Nano 30B-A3B",
        "gpus": 16,
        "seq_length": 8192,
        "global_batch_size": 16,
        "ep": 8,
        "steps": 12,
    },
    "rows": [
        _row([], 66.297, None, "oom", failed_iteration=2, failed_at="MoE router; hot ranks had about 72.9 GiB allocated"),
        _row(["core_attn"], None, None, "oom", failed_iteration=1, failed_at="grouped-expert linear"),
        _row(["moe_act"], 62.103, None, "oom", failed_iteration=2, failed_at="output projection needed 2 GiB"),
        _row(["layernorm", "moe_act"], None, None, "oom", failed_iteration=1, failed_at="output projection needed 2 GiB"),
        _row(["moe"], 64.653, 657.42),
        _row(["moe", "layernorm"], 63.639, 677.62),
    ],
}
LLAMA_70B = {
    "name": "llama3_70b_sft",
    "workload": {"model": "Llama 3 70B", "gpus": 32, "precision": "fp8 current scaling", "tp": 4, "pp": 4, "vpp": 5, "dp": 2},
    "rows": [
        _row(["core_attn"], 58.8, None, "oom on rank 0", tflops=704),
        _row(["mlp"], 55.6, None, tflops=593.6),
        _row(["mlp", "core_attn"], 55.6, None, tflops=586.8),
        _row(["core_attn", "layernorm"], 59.6, None, "oom on rank 0", tflops=702),
    ],
}
TABLES = {"tables": [MOONLIGHT, NEMOTRON, LLAMA_70B]}
