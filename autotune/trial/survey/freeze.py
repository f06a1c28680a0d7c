"""Batches, random numbers and weights of a survey's steps: those of a launch at first, then one step's again and again.

While a survey records, each step has what the same step of an ordinary launch has, so that what is recorded is what a launch
will need. From the last of these on every step repeats it, so that settings alone make the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class FrozenBatches:
    """An iterator over one step's micro batches, again and again, or over those of one step after another.

    A batch is handed out as a shallow copy: the training loop copies its (host) tensors to the device and may drop keys.
    """

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._batches: list[Any] = []
        self._next = 0

    def rewind(self) -> None:
        """A step begins, with the batches of the one before."""
        self._next = 0

    def go_on(self) -> None:
        """A step begins, with batches of its own."""
        self._batches.clear()
        self._next = 0

    def __iter__(self) -> FrozenBatches:
        return self

    def __next__(self) -> Any:
        if self._next == len(self._batches):
            self._batches.append(next(self._source))
        batch = self._batches[self._next]
        self._next += 1
        return dict(batch) if isinstance(batch, dict) else batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


class Freezer:
    """Freezes batches, random states, learning rates and router biases from a step on."""

    def __init__(self) -> None:
        self._batches: dict[int, FrozenBatches] = {}
        self._random: Any = None
        self._frozen = False

    def batches(self, source: Any) -> Any:
        """The frozen stand-in of a data iterator; None (a pipeline stage without data) stays None."""
        if source is None or isinstance(source, FrozenBatches):
            return source
        return self._batches.setdefault(id(source), FrozenBatches(source))

    def start_step(self, optimizer: Any, configs: list[Any], *, freeze: bool) -> None:
        """Let a step train, or freeze: its own batch the first time, then all as it was there, and the learning rate 0."""
        again, self._frozen = self._frozen, freeze
        for batches in self._batches.values():
            if again:
                batches.rewind()
            else:
                batches.go_on()
        if not freeze:
            return
        self._same_random_numbers(again)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        for config in configs:
            if getattr(config, "moe_router_bias_update_rate", None):
                config.moe_router_bias_update_rate = 0.0

    def _same_random_numbers(self, again: bool) -> None:
        import torch
        from megatron.core.tensor_parallel import get_cuda_rng_tracker

        tracker = get_cuda_rng_tracker()
        current = tracker.get_states()
        if not again:
            states = {name: to_numpy(state) for name, state in current.items()}
            self._random = (to_numpy(torch.get_rng_state()), to_numpy(torch.cuda.get_rng_state()), states)
        else:
            cpu, device, states = self._random
            torch.set_rng_state(_to_tensor(cpu))
            torch.cuda.set_rng_state(_to_tensor(device))
            tracker.set_states({name: restored(current[name], state) for name, state in states.items()})


def to_numpy(state: Any) -> Any:
    """A random state outside the memory that the trial counts.

    Where graphs will be captured, the tracker's states are generators (tensor_parallel/random.py:CudaRNGStatesTracker.add).
    """
    import torch

    return (state.get_state() if isinstance(state, torch.Generator) else state).cpu().numpy().copy()


def restored(current: Any, state: Any) -> Any:
    """A tracked state as it was. A generator stays the one it is: a graph that is captured later holds on to it."""
    import torch

    if not isinstance(current, torch.Generator):
        return _to_tensor(state)
    current.set_state(_to_tensor(state))
    return current


def _to_tensor(state: Any) -> Any:
    import torch

    return torch.from_numpy(state.copy())
