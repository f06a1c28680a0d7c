"""Facts of the accelerators, from ``search_spaces/gpus``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import search_spaces
from autotune.errors import RequestError
from autotune.workload.yaml_files import load_yaml

_FOLDER = Path(search_spaces.__file__).parent / "gpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One accelerator. Rates are the vendor's dense peaks of one GPU; ``sources`` cites each fact by field name.

    Attributes:
        name: Name by which workloads refer to it.
        title: The product.
        sm: Compute capability times ten (90 is Hopper).
        device_memory_bytes: What ``torch.cuda.get_device_properties(0).total_memory`` reports, near enough (drivers differ
            by tens of MB).
        bf16_flop_per_s: BF16 tensor cores, dense.
        fp8_flop_per_s: FP8 tensor cores, dense; None where the chip has none.
        hbm_bytes_per_s: Device memory bandwidth.
        nvlink_bytes_per_s: NVLink bandwidth in one direction.
        gpus_per_node: GPUs of one NVLink node as usually built.
    """

    name: str
    title: str
    sm: int
    device_memory_bytes: int
    bf16_flop_per_s: float
    fp8_flop_per_s: float | None
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    gpus_per_node: int
    sources: Mapping[str, str]


def gpu_names() -> tuple[str, ...]:
    """Names of all known GPUs."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_gpu(name: str) -> Gpu:
    """Facts of one GPU; upper and lower case do not matter.

    Raises:
        RequestError: No such GPU is known.
    """
    for known in gpu_names():
        if known.lower() == name.lower():
            return load_yaml(_FOLDER / f"{known}.yaml", Gpu)
    near = get_close_matches(name.upper(), gpu_names(), n=1, cutoff=0.3)
    raise RequestError(
        "hardware.gpu",
        name,
        f"no such GPU is known ({', '.join(gpu_names())})",
        f"did you mean {near[0]}?" if near else "use one of these",
    )
