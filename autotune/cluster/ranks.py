"""The ranks of one trial on a group's slots, for ``trial.attend``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.cluster.gpu_memory import PATIENCE_S
from autotune.cluster.gpus import ASKING_S
from autotune.cluster.group import Place
from autotune.cluster.rays_words import without_colours
from autotune.records import to_builtins
from autotune.trial.attend import News
from autotune.trial.launch import KILL_S, TERM_S, free_port
from autotune.trial.spec import TrialSpec

ANSWER_S = 15.0
"""A slot that does not answer within this is lost: it waits for nothing longer than a fraction of a second."""
END_S = TERM_S + KILL_S + PATIENCE_S + 2 * ASKING_S + ANSWER_S
"""How long a slot may take to end its rank and to see its GPU's memory back, with a driver that hangs when it is asked. A node
that is gone is no answer that is late: Ray says so of it before (30 s)."""
NO_ANSWER = -1
"""In place of a process id: a slot has not said whether its processes are gone."""


class SlotRanks:
    """``attend.Ranks`` over actor handles, in the order of ranks."""

    def __init__(self, slots: Sequence[Any], places: Sequence[Place]) -> None:
        import ray

        self._ray = ray
        self._slots, self._places = slots, places

    def port(self) -> int:
        """A free port on rank 0's node; one of this node where that slot is gone, which shows in ``poll``."""
        try:
            return int(self._ray.get(self._slots[0].port.remote(), timeout=ANSWER_S))
        except self._ray.exceptions.RayError:
            return free_port()

    def start(self, spec: TrialSpec) -> None:
        """Start every rank on its slot; a slot that is gone shows in ``poll``."""
        one_node = len({place.node for place in self._places}) == 1
        address = "127.0.0.1" if one_node else self._places[0].address
        calls = []
        for rank, (slot, place) in enumerate(zip(self._slots, self._places, strict=True)):
            devices = {"CUDA_VISIBLE_DEVICES": place.devices} if place.devices is not None else {}
            own = replace(
                spec,
                master_addr=address,
                local_rank=place.local_rank,
                local_world_size=place.local_world_size,
                environment={**spec.environment, **devices},
            )
            calls.append(slot.start.remote(to_builtins(own), rank))
        for call in calls:
            with contextlib.suppress(self._ray.exceptions.RayActorError):
                self._ray.get(call)

    def poll(self) -> Mapping[int, News]:
        """News of all ranks, asked at once."""
        calls = [slot.poll.remote() for slot in self._slots]
        ready, _ = self._ray.wait(calls, num_returns=len(calls), timeout=ANSWER_S)
        answered = set(ready)
        news = {}
        for rank, call in enumerate(calls):
            if call not in answered:
                news[rank] = News(lost=f"its slot has not answered for {ANSWER_S:.0f} s")
                continue
            try:
                news[rank] = self._ray.get(call)
            except self._ray.exceptions.RayError as error:
                news[rank] = News(lost=_why_lost(error))
        return news

    def end(self) -> Sequence[int]:
        """End all ranks; the pids that would not end."""
        calls = [slot.end.remote() for slot in self._slots]
        ready, late = self._ray.wait(calls, num_returns=len(calls), timeout=END_S)
        left = [NO_ANSWER] if late else []
        for call in ready:
            # Where a node is gone so are its processes: they end with their slot.
            with contextlib.suppress(self._ray.exceptions.RayError):
                left += self._ray.get(call)
        return left


def _why_lost(error: Exception) -> str:
    text = " ".join(without_colours(str(error)).split())
    for cause in ("node died", "node was terminated", "node is dead", "Node"):
        if cause.lower() in text.lower():
            return f"its node died ({text[:200]})"
    return f"its slot died ({text[:200]})"
