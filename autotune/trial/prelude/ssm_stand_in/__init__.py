"""Plain-PyTorch packages that stand for ``mamba_ssm``, ``causal_conv1d`` and ``fla`` where they are absent."""

from __future__ import annotations

import importlib.util

from autotune.trial.prelude.modules import make_module


def install() -> None:
    """Register those of the packages that are not installed."""
    from autotune.trial.prelude.ssm_stand_in import delta_rule, mamba

    if importlib.util.find_spec("mamba_ssm") is None:
        for name in ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton"):
            make_module(name, __version__="2.2.5")
        make_module("mamba_ssm.ops.triton.layernorm_gated", RMSNorm=mamba.RMSNormGated)
        make_module(
            "mamba_ssm.ops.triton.ssd_combined",
            mamba_split_conv1d_scan_combined=mamba.mamba_split_conv1d_scan_combined,
            mamba_chunk_scan_combined=mamba.mamba_chunk_scan_combined,
        )
    if importlib.util.find_spec("fla") is None:
        for name in ("fla", "fla.modules", "fla.ops"):
            make_module(name, __version__="0.4.0")
        make_module("fla.modules.convolution", causal_conv1d=delta_rule.causal_conv1d)
        make_module("fla.modules.l2norm", l2norm=delta_rule.l2norm)
        make_module("fla.ops.gated_delta_rule", chunk_gated_delta_rule=delta_rule.chunk_gated_delta_rule)
    if importlib.util.find_spec("causal_conv1d") is None:
        make_module("causal_conv1d", causal_conv1d_fn=delta_rule.causal_conv1d_fn, causal_conv1d_update=None)
