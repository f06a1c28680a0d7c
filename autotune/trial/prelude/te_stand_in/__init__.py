"""A pure-PyTorch package that stands for Transformer Engine where there is none.

Megatron Core's own wrappers (megatron/core/extensions/transformer_engine.py) are built over it unchanged, so module specs,
call sites of recompute and sharding are Megatron's. Each class keeps for backward what TE's keeps; its file names the TE
source. What is not stood in for is absent, and Megatron then takes the path it takes for a TE without that feature, or
raises ``NotImplementedError`` with the name.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from autotune.errors import RequestError

VERSION = "2.17.1"
"""The Transformer Engine whose behaviour is stood in for; Megatron takes its code paths by this number."""


class FP8GlobalStateManager:
    """FP8 is always off."""

    fp8_available = False

    @staticmethod
    def is_fp8_enabled() -> bool:
        """Whether FP8 compute is on."""
        return False

    @staticmethod
    def is_fp8_calibration() -> bool:
        """Whether FP8 calibration is on."""
        return False

    @staticmethod
    def get_fp8_recipe() -> None:
        """There is no recipe."""

    @staticmethod
    def reset() -> None:
        """Nothing to reset."""


def fp8_autocast(enabled: bool = False, **_: Any) -> contextlib.AbstractContextManager[None]:
    """A context that does nothing, and refuses to be enabled."""
    if enabled:
        raise NotImplementedError("the Transformer Engine stand-in has no FP8")
    return contextlib.nullcontext()


class _Refused:
    """A class that Megatron names when it is imported; no object of it can be made."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("the Transformer Engine stand-in has neither quantised tensors nor fused operations")


def _absent(name: str) -> Any:
    def call(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"the Transformer Engine stand-in has no {name}")

    return call


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name, "Stands for a module of Transformer Engine.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__dict__.update(members)
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)
    return module


def install() -> None:
    """Register the package as ``transformer_engine``, before Megatron is imported.

    Raises:
        RequestError: A Transformer Engine, or a Megatron that looked for one, is already imported.
    """
    if getattr(sys.modules.get("transformer_engine"), "__stand_in__", False):
        return
    if "transformer_engine" in sys.modules or "megatron.core.extensions.transformer_engine" in sys.modules:
        raise RequestError("--backend", "cpu", "Transformer Engine or Megatron Core is already imported", "start a fresh process")
    from autotune.trial.prelude.te_stand_in import attention, base, distributed, grouped_linear, kernels, linear, norm, optimizers

    te = "transformer_engine"
    _module(te, __version__=VERSION, __stand_in__=True)
    _module(f"{te}.common")
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
    formats = types.SimpleNamespace(E4M3="E4M3", HYBRID="HYBRID")
    _module(f"{te}.common.recipe", Format=formats, **{name: type(name, (_Refused,), {}) for name in (*recipes, "Recipe")})
    fp8 = {
        "FP8GlobalStateManager": FP8GlobalStateManager,
        "fp8_autocast": fp8_autocast,
        "fp8_model_init": fp8_autocast,
        "autocast": fp8_autocast,
        "quantized_model_init": fp8_autocast,
    }
    modules: dict[str, Any] = {
        "Linear": linear.Linear,
        "LayerNormLinear": linear.LayerNormLinear,
        "GroupedLinear": grouped_linear.GroupedLinear,
        "LayerNorm": norm.LayerNorm,
        "RMSNorm": norm.RMSNorm,
        "DotProductAttention": attention.DotProductAttention,
    }
    _module(f"{te}.pytorch", **modules, **fp8)
    _module(f"{te}.pytorch.fp8", **fp8)
    _module(f"{te}.pytorch.tensor", QuantizedTensor=_Refused)
    _module(f"{te}.pytorch.ops", Sequential=_Refused, FusibleOperation=_Refused)  # Base classes and annotations only.
    _module(f"{te}.pytorch.module", **modules)
    _module(f"{te}.pytorch.module.base", TransformerEngineBaseModule=base.BaseModule, get_dummy_wgrad=_dummy_wgrad)
    _module(f"{te}.pytorch.distributed", **_public(distributed))
    _module(f"{te}.pytorch.optimizers", **_public(optimizers))
    _module(
        f"{te}.pytorch.router",
        **{n: _absent(n) for n in ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")},
    )
    # TE's modules add weight gradients into main_grad themselves; Megatron's own output layer asks this package of Apex.
    if importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is None:
        _module(
            "fused_weight_gradient_mlp_cuda",
            wgrad_gemm_accum_fp32=lambda x, dy, grad: kernels.matmul_into(grad, dy.t(), x, accumulate=True),
            wgrad_gemm_accum_fp16=lambda x, dy, grad: kernels.matmul_into(grad, dy.t(), x, accumulate=True),
        )


def _dummy_wgrad(shape: list[int], dtype: Any, zero: bool = False) -> Any:
    from autotune.trial.prelude.te_stand_in.kernels import dummy_wgrad

    return dummy_wgrad(shape, dtype, zero=zero)


def _public(module: types.ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
