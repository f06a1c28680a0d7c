"""A pure-PyTorch package that stands for Transformer Engine where there is none.

Megatron Core's own wrappers (megatron/core/extensions/transformer_engine.py) are built over it unchanged, so module specs,
call sites of recompute and sharding are Megatron's. Each class keeps for backward what TE's keeps; its file names the TE
source. What is not stood in for is absent, and Megatron then takes the path it takes for a TE without that feature, or
raises ``NotImplementedError`` with the name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from typing import Any

from autotune.errors import RequestError
from autotune.trial.prelude.modules import make_module

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
    make_module(te, __version__=VERSION)
    make_module(f"{te}.common")
    recipes = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
    formats = types.SimpleNamespace(E4M3="E4M3", HYBRID="HYBRID")
    make_module(f"{te}.common.recipe", Format=formats, **{name: type(name, (_Refused,), {}) for name in (*recipes, "Recipe")})
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
    make_module(f"{te}.pytorch", **modules, **fp8)
    make_module(f"{te}.pytorch.fp8", **fp8)
    make_module(f"{te}.pytorch.tensor", QuantizedTensor=_Refused)
    make_module(f"{te}.pytorch.ops", Sequential=_Refused, FusibleOperation=_Refused)  # Base classes and annotations only.
    make_module(f"{te}.pytorch.module", **modules)
    make_module(f"{te}.pytorch.module.base", TransformerEngineBaseModule=base.BaseModule, get_dummy_wgrad=_dummy_wgrad)
    make_module(f"{te}.pytorch.distributed", **_public(distributed))
    make_module(f"{te}.pytorch.optimizers", **_public(optimizers))
    make_module(
        f"{te}.pytorch.router",
        **{
            n: _absent(n)
            for n in ("fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss", "fused_topk_with_score_function")
        },
    )
    # TE's modules add weight gradients into main_grad themselves; Megatron's own output layer asks this package of Apex.
    if importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is None:
        make_module(
            "fused_weight_gradient_mlp_cuda",
            wgrad_gemm_accum_fp32=lambda x, dy, grad: kernels.matmul_into(grad, dy.t(), x, accumulate=True),
            wgrad_gemm_accum_fp16=lambda x, dy, grad: kernels.matmul_into(grad, dy.t(), x, accumulate=True),
        )


def _dummy_wgrad(shape: list[int], dtype: Any, zero: bool = False) -> Any:
    from autotune.trial.prelude.te_stand_in.kernels import dummy_wgrad

    return dummy_wgrad(shape, dtype, zero=zero)


def _public(module: types.ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
