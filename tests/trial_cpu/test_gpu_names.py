"""Every name of torch's CUDA side that a rank on a GPU touches: a new torch breaks a test, and not a user's trial."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

NAMES: dict[str, tuple[str, ...]] = {
    "Event": ("enable_timing",),
    "current_device": (),
    "get_rng_state": ("device",),
    "is_available": (),
    "is_initialized": (),
    "manual_seed": ("seed",),
    "max_memory_allocated": ("device",),
    "max_memory_reserved": ("device",),
    "mem_get_info": ("device",),
    "memory_allocated": ("device",),
    "memory_stats": ("device",),
    "memory": (),
    "reset_peak_memory_stats": ("device",),
    "set_device": ("device",),
    "set_rng_state": ("new_state", "device"),
    "synchronize": ("device",),
}
"""Of ``torch.cuda``, with the parameters that are given or relied on."""
OF_EVENTS = ("record", "elapsed_time", "synchronize", "query")
OF_A_CUDA_BUILD = ("_cuda_attach_out_of_memory_observer", "_cuda_memoryStats")
"""Of ``torch._C``; a build for CPUs has none of them."""
KEYS = ("num_alloc_retries", "allocated_bytes.{all,large_pool,small_pool}.{current,peak,allocated,freed}")
"""Of ``memory_stats``, as its documentation tells them."""
_TOUCHED = re.compile(r"\b(?:torch\.cuda|self\._cuda)\.([a-z_]+|Event)\b")
_PRIVATE = re.compile(r"torch\._C[.,] ?\"?(_cuda\w+)")


def sources(project_root: Path) -> list[Path]:
    """What runs in a rank on a GPU: all of ``trial`` but what stands for CUDA where there is none."""
    return [path for path in (project_root / "autotune/trial").rglob("*.py") if "prelude" not in path.parts]


def test_names_of_torch_cuda() -> None:
    for name, parameters in NAMES.items():
        found = getattr(torch.cuda, name)
        have = set(inspect.signature(found).parameters) if callable(found) and not inspect.isclass(found) else set(parameters)
        assert set(parameters) <= have, name
    assert all(hasattr(torch.cuda.Event, name) for name in OF_EVENTS)
    assert hasattr(torch.cuda.memory, "_snapshot")
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    told = " ".join((torch.cuda.memory_stats.__doc__ or "").split())
    assert all(key in told for key in KEYS)


@pytest.mark.skipif(torch.version.cuda is None, reason="a torch without CUDA")
def test_private_names_of_a_cuda_build() -> None:
    assert [name for name in OF_A_CUDA_BUILD if not hasattr(torch._C, name)] == []


def test_all_that_is_touched_is_named_here(project_root: Path) -> None:
    text = "\n".join(path.read_text() for path in sources(project_root))
    assert set(_TOUCHED.findall(text)) <= set(NAMES)
    assert set(_PRIVATE.findall(text)) == set(OF_A_CUDA_BUILD)
