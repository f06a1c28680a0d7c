"""Balanced routing with real token counts: logits are a pattern, the router and the dispatcher's bookkeeping run for real."""

from __future__ import annotations

import functools
from typing import Any

import torch

from autotune.trial.trace.kernels import SkippedKernels


def install(mode: SkippedKernels) -> None:
    """Wrap Megatron Core's router and token dispatchers."""
    from megatron.core.transformer.moe import router, token_dispatcher

    _real(router.TopKRouter, "forward", mode)
    gating = router.TopKRouter.gating

    @functools.wraps(gating)
    def balanced(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with mode.real(False):
            logits = gating(self, *arguments, **keywords)
        _fill(logits, self.topk)
        return logits

    router.TopKRouter.gating = balanced
    for name in ("MoEAllGatherTokenDispatcher", "MoEAlltoAllTokenDispatcher"):
        dispatcher = getattr(token_dispatcher, name)
        for method in ("preprocess", "_maybe_update_cuda_sync_point", "_maybe_dtoh_and_synchronize"):
            if method in vars(dispatcher):
                _real(dispatcher, method, mode)


def _fill(logits: Any, topk: int) -> None:
    """Token i prefers experts i k, i k + 1, ... (modulo their number): every expert gets the same share."""
    with torch.no_grad():
        flat = logits.data.view(-1, logits.shape[-1])  # Not detach(): autograd must not see a write into its view.
        experts = flat.shape[1]
        first = (torch.arange(flat.shape[0]) * topk) % experts
        distance = (torch.arange(experts)[None, :] - first[:, None]) % experts
        flat.copy_(-(distance.float() / experts))


def _real(owner: Any, name: str, mode: SkippedKernels) -> None:
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with mode.real():
            return function(*arguments, **keywords)

    setattr(owner, name, call)
