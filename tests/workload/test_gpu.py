from __future__ import annotations

import pytest

from autotune.workload.gpu import gpu_names, load_gpu


@pytest.mark.parametrize("name", gpu_names())
def test_gpu_has_a_source_for_its_figures(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert set(gpu.sources) == {"device_memory_bytes", "rates"}
    # A byte moved costs far more than an operation done; units mixed up would break this.
    assert 50 < gpu.bf16_flop_per_s / gpu.hbm_bytes_per_s < 500
    assert 2e9 < gpu.device_memory_bytes / gpu.gpus_per_node < 80e9


def test_named_gpus_are_there() -> None:
    assert set(gpu_names()) == {"A100-80GB", "H100", "H200", "B200", "GB200", "B300", "GB300"}
    assert load_gpu("h100") is load_gpu("h100")
    assert load_gpu("A100-80GB").fp8_flop_per_s is None
