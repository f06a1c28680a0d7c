"""FP8 and FP4 rules. Lines: megatron/core/transformer/transformer_config.py at 2a75ac12.

``fp8_recipe`` is ``delayed`` by default even in BF16, so every rule asks first whether ``fp8`` is set.
"""

from __future__ import annotations

from autotune.boundary.boundary import Boundary
from autotune.boundary.context import Context
from autotune.boundary.rules.rule import rule

_TE_NEEDED = (2, 6, 0)
_OUTPUT_DISCARD_UNDER_FP8 = ("moe_act", "layernorm")


@rule("invalid", "transformer_config.py:1878-1884", labels=_OUTPUT_DISCARD_UNDER_FP8)
def fp8_delayed_scaling(context: Context, boundary: Boundary) -> str | None:
    """Delayed scaling keeps an amax history that the replay would write twice."""
    precision = context.workload.precision
    if not precision.fp8 or precision.fp8_recipe != "delayed":
        return None
    return f"{_named(boundary)} cannot be recomputed under FP8 delayed scaling"


@rule("invalid", "transformer_config.py:1885-1890", labels=_OUTPUT_DISCARD_UNDER_FP8)
def fp8_transformer_engine_version(context: Context, boundary: Boundary) -> str | None:
    """The output-discarding checkpoint needs support in Transformer Engine."""
    if not _needs_te(context) or context.te_release is None or context.te_release >= _TE_NEEDED:
        return None
    version = context.workload.stack.transformer_engine
    return f"{_named(boundary)} under FP8 needs Transformer Engine >= 2.6.0.dev0, the workload has {version}"


@rule("not_checkable", "transformer_config.py:1885-1890", labels=_OUTPUT_DISCARD_UNDER_FP8)
def fp8_transformer_engine_unknown(context: Context, boundary: Boundary) -> str | None:
    """Without the version nobody can tell here."""
    if not _needs_te(context) or context.te_release is not None:
        return None
    return f"{_named(boundary)} under FP8 needs Transformer Engine >= 2.6.0.dev0, and the workload names no version"


@rule("invalid", "transformer/experimental_attention_variant/absorbed_mla.py:661-663", labels=("mla_up_proj",), checked_in="run")
def absorbed_mla_quantized(context: Context, _: Boundary) -> str | None:
    """Absorbed MLA (sparse attention variants) asserts at run time that nothing is quantized."""
    if not context.absorbed_mla or not context.quantized:
        return None
    return "mla_up_proj on absorbed MLA does not work under FP8 or FP4"


def _needs_te(context: Context) -> bool:
    return bool(context.workload.precision.fp8) and context.workload.precision.fp8_recipe != "delayed"


def _named(boundary: Boundary) -> str:
    return " and ".join(label for label in _OUTPUT_DISCARD_UNDER_FP8 if label in boundary.modules)


RULES = (fp8_delayed_scaling, fp8_transformer_engine_version, fp8_transformer_engine_unknown, absorbed_mla_quantized)
