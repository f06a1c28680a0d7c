"""Random states and the recompute contexts. Source: transformer_engine/pytorch/distributed.py at 2.17.1."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class CudaRNGStatesTracker:
    """Named random states; ``fork`` runs a block under one of them."""

    def __init__(self) -> None:
        self.states_: dict[str, Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forget all states."""
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Tensor]:
        """The states by name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        """Put states back."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Make a state from a seed; neither name nor seed may repeat."""
        if seed in self.seeds_ or name in self.states_:
            raise RuntimeError(f"random state {name!r} or seed {seed} is already in use")
        self.seeds_.add(seed)
        before = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """Run a block under a named state, which advances."""
        if name not in self.states_:
            raise KeyError(f"random state {name!r} was not added")
        before = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(before)


@contextlib.contextmanager
def activation_recompute_forward(activation_recompute: bool = False, recompute_phase: bool = False) -> Iterator[None]:
    """Concerns FP8 scaling factors only; nothing to do without FP8."""
    yield


def get_all_rng_states() -> dict[str, Any]:
    """States of TE's own tracker; Megatron asks only under CUDA graphs."""
    return {}


def checkpoint(function: Any, *arguments: Any, **keywords: Any) -> Any:
    """TE's checkpoint is used under FP8 and FP4 only, which the stand-in does not do."""
    raise NotImplementedError("the Transformer Engine stand-in has no checkpoint: it serves FP8 and FP4 only")
