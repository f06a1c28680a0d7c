"""What the installed Transformer Engine, PyTorch, the GPU and the environment change in the ledger."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autotune.workload.workload import Workload

MIB = 2**20
NEWEST_TE = (2, 18)
"""Newest Transformer Engine whose sources were read."""
_FIRST_DETERMINISTIC_FLASH = (2, 4, 1)
_FIRST_DETERMINISTIC_CONTAINER = (24, 3)
"""NGC PyTorch 24.01 and 24.02 ship flash-attn 2.3 and older (release notes of the containers)."""
NEWEST_MCORE = (0, 20)
"""Newest Megatron Core whose sources were read (d98e8a64)."""
DEFAULT_TE = (2, 17, 1)
"""What Megatron Bridge 0.6 resolves (uv.lock at 600d069b)."""
_SM_OF_GPU = {
    "A100": 80, "A800": 80, "H100": 90, "H200": 90, "H800": 90, "GH200": 90,
    "B200": 100, "GB200": 100, "B300": 103, "GB300": 103,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedStack:
    """Facts that follow from versions, GPU and environment."""

    te: tuple[int, ...]
    mcore: tuple[int, ...]
    """Megatron Core's release; the newest read for an unknown one or a commit."""
    sm: int
    ce_fp32_gradient: bool
    """TE >= 2.18 (#3193) keeps the cross-entropy gradient in fp32 beside the BF16 logits."""
    torch_workspace_bytes: int
    """One cuBLAS workspace of PyTorch; each (handle, stream) has one."""
    te_workspace_bytes: int
    attention: str
    """``fused`` (cuDNN), ``flash`` or ``unfused``."""
    expandable_segments: bool
    notes: tuple[str, ...]


def version_tuple(text: str | None) -> tuple[int, ...] | None:
    """The leading numbers of a version: ``2.17.1+abc`` -> (2, 17, 1); None where there are none."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else None


def sm_of(gpu: str) -> int | None:
    """Compute capability times ten of a GPU name such as ``H100-80GB``; None where it is unknown."""
    name = gpu.upper().replace("NVIDIA", "").strip(" -_")
    best = [key for key in _SM_OF_GPU if name.startswith(key)]
    return _SM_OF_GPU[max(best, key=len)] if best else None


def attention_backend(workload: Workload, te: tuple[int, ...], sm: int) -> str:
    """The attention backend that runs, which is not always the one asked for.

    Source: transformer_engine/pytorch/attention/dot_product_attention/utils.py:get_attention_backend at 2.17.1 and 2.9.
    Order: explicit choice, then MLA (flash-attn 2 has no head dims that differ), then determinism (no fused on sm80; on
    sm100 no fused up to TE 2.11, later only with dropout), then fused on sm90 and newer, flash on sm80.
    flash-attn before 2.4.1 is not deterministic: the choice then falls through to unfused.
    """
    features, model, train = workload.features, workload.model, workload.train
    asked = features.attention_backend
    if features.transformer_impl == "local" or asked in ("unfused", "local"):
        return "unfused"
    env = {key: str(value) for key, value in workload.env_vars.items()}
    flash = asked != "fused" and env.get("NVTE_FLASH_ATTN", "1") != "0" and not model.multi_latent_attention
    fused = asked != "flash" and env.get("NVTE_FUSED_ATTN", "1") != "0"
    if train.deterministic_mode or env.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0":
        if sm < 90 or (sm >= 100 and (te < (2, 12) or model.attention_dropout > 0)):
            fused = False
        flash_version = version_tuple(workload.stack.flash_attn)
        container = version_tuple(workload.stack.container)
        if (flash_version or _FIRST_DETERMINISTIC_FLASH) < _FIRST_DETERMINISTIC_FLASH or (
            flash_version is None and container is not None and container < _FIRST_DETERMINISTIC_CONTAINER
        ):
            flash = False
    if model.softmax_type != "vanilla":
        flash = False
    if flash and (not fused or sm < 90):
        return "flash"
    return "fused" if fused else "unfused"


def resolve_stack(workload: Workload) -> ResolvedStack:
    """Resolve the stack; what is unknown is taken as the nearest known and named in ``notes``."""
    notes: list[str] = []
    te = version_tuple(workload.stack.transformer_engine)
    if te is None:
        te = DEFAULT_TE
        notes.append("Transformer Engine version unknown: 2.17.1 assumed, which Megatron Bridge 0.6 resolves")
    elif te[:2] > NEWEST_TE:
        notes.append(
            f"Transformer Engine {workload.stack.transformer_engine} is newer than the sources read (2.18): used as 2.18"
        )
    released = version_tuple(workload.stack.megatron_core)
    mcore = released if released is not None and released[0] == 0 and len(released) > 1 else NEWEST_MCORE
    sm = sm_of(workload.hardware.gpu)
    if sm is None:
        sm = 90
        notes.append(f"GPU {workload.hardware.gpu} unknown: H100 assumed")
    env = {key: str(value) for key, value in workload.env_vars.items()}
    # PyTorch CublasHandlePool.cpp:parseChosenWorkspaceSize: 32 MiB on sm90, else 4096 KiB * 2 + 16 KiB * 8; the
    # environment decides first, and deterministic mode asks for :4096:8 (megatron/training/determinism.py).
    configured = env.get("CUBLAS_WORKSPACE_CONFIG") or (":4096:8" if workload.train.deterministic_mode else "")
    container = version_tuple(workload.stack.container)
    if configured:
        pairs = re.findall(r":(\d+):(\d+)", configured)
        torch_workspace = sum(int(kib) * 1024 * int(count) for kib, count in pairs)
    elif sm == 90 or (sm >= 100 and container is not None and container >= (26, 4)):
        torch_workspace = 32 * MIB
    else:
        torch_workspace = 8519680
    allocator = env.get("PYTORCH_CUDA_ALLOC_CONF", "") + "," + env.get("PYTORCH_ALLOC_CONF", "")
    return ResolvedStack(
        te=te,
        mcore=mcore,
        sm=sm,
        ce_fp32_gradient=te >= (2, 18),
        torch_workspace_bytes=torch_workspace,
        # TE cpp_extensions/gemm.py:get_cublas_workspace_size_bytes: 32 MiB (+ 1 KiB for alignment) from Hopper on, else 4 MiB
        te_workspace_bytes=32 * MIB + 1024 if sm >= 90 else 4 * MIB,
        attention=attention_backend(workload, te, sm),
        expandable_segments="expandable_segments:true" in allocator.lower().replace(" ", ""),
        notes=tuple(notes),
    )
