"""How single values of Bridge's configuration are spelled in a Workload."""

from __future__ import annotations

from typing import Any

_DTYPES = {
    "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8",
    "torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8",
}  # fmt: skip
_LISTS = frozenset({"cuda_graph_modules", "cuda_graph_scope", "offload_modules"})


def converted(field_name: str, raw: Any) -> Any:
    """A value in the Workload's spelling: short dtypes, lists where Bridge also takes one name, None for no MTP."""
    if isinstance(raw, str) and field_name.endswith("dtype"):
        return _DTYPES.get(raw, raw)
    if field_name == "mtp_num_layers" and raw == 0:
        return None
    if field_name in _LISTS:
        return [] if raw in (None, "", "none") else [raw] if isinstance(raw, str) else raw
    return raw
