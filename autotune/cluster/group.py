"""A group of rank slots: one placement, one bundle a rank, ranks ordered by node as torchrun orders them."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.cluster.connection import NAMESPACE
from autotune.cluster.rays_words import first_line
from autotune.cluster.slot import RankSlot, SlotFacts, Warmth
from autotune.errors import StoppedError
from autotune.trial.spec import Backend, Loop

Resources = Mapping[str, float]
START_S = 120.0
"""How long the processes of placed slots may take to start (Python on a cold file system)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank runs: its node's number in the group and its place on it."""

    node: int
    local_rank: int
    local_world_size: int
    address: str
    devices: str | None
    """``CUDA_VISIBLE_DEVICES`` of every rank on the node: all of the trial's GPUs there, in the order of local ranks."""


def order(facts: Sequence[SlotFacts]) -> tuple[list[int], list[Place]]:
    """Which slot each rank takes, and its place: node by node, the node of most slots first, GPUs in their own order."""
    by_node: defaultdict[str, list[int]] = defaultdict(list)
    for number, fact in enumerate(facts):
        by_node[fact.node_id].append(number)
    slots: list[int] = []
    places: list[Place] = []
    for node, name in enumerate(sorted(by_node, key=lambda name: (-len(by_node[name]), facts[by_node[name][0]].address, name))):
        numbers = sorted(by_node[name], key=lambda n: (_gpu_order(facts[n].gpu_ids), n))
        ids = [gpu for n in numbers for gpu in facts[n].gpu_ids]
        for local, number in enumerate(numbers):
            slots.append(number)
            places.append(
                Place(
                    node=node,
                    local_rank=local,
                    local_world_size=len(numbers),
                    address=facts[number].address,
                    devices=",".join(ids) if ids else None,
                )
            )
    return slots, places


def _gpu_order(ids: Sequence[str]) -> tuple[int, str]:
    first = ids[0] if ids else ""
    return (int(first), "") if first.isdigit() else (0, first)


class SlotGroup:
    """Slots for one trial at a time.

    Args:
        ranks: How many.
        bundle: What each takes of the cluster (``{"CPU": 1}``, ``{"GPU": 1, "CPU": 1}``).
        timeout_s: How long the placement may take.

    Raises:
        StoppedError: The cluster is too small, or the placement is not ready in time.
    """

    def __init__(self, ranks: int, bundle: Resources, *, timeout_s: float) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._ray = ray
        refuse_too_large(ranks, bundle)
        self._placement: Any = placement_group([dict(bundle)] * ranks, strategy="PACK")
        self.slots: list[Any] = []
        self.names: list[str] = []
        self.places: list[Place] = []
        try:
            try:
                placed = self._placement.wait(timeout_s)
            except Exception as error:
                if not is_rays(error):
                    raise
                raise StoppedError(f"the Ray cluster was lost ({first_line(error)}); start it and add --resume") from error
            if not placed:
                free = ray.available_resources()
                raise StoppedError(
                    f"{ranks} rank slots were not placed within {timeout_s:.0f} s: needed {_listed(bundle, ranks)}, free now "
                    f"{_listed({name: free.get(name, 0) for name in bundle})}; wait for the cluster and add --resume"
                )
            actor = ray.remote(RankSlot)
            # Every rank sees all of the trial's GPUs on its node, as under torchrun; Ray would leave it one.
            unmasked = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}} if bundle.get("GPU") else {}
            name = f"slot-{uuid.uuid4().hex[:12]}"
            made = [
                actor.options(
                    name=f"{name}-{number}",
                    namespace=NAMESPACE,
                    num_cpus=bundle.get("CPU", 0),
                    num_gpus=bundle.get("GPU", 0),
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=self._placement, placement_group_bundle_index=number
                    ),
                    runtime_env=unmasked,
                    max_restarts=0,
                ).remote()
                for number in range(ranks)
            ]
            self.slots = made
            try:
                facts = ray.get([slot.facts.remote() for slot in made], timeout=max(timeout_s, START_S))
            except ray.exceptions.GetTimeoutError:
                raise StoppedError(f"{ranks} rank slots were placed but did not start; see Ray's logs, then --resume") from None
            except ray.exceptions.RayActorError as error:
                raise StoppedError(f"a rank slot died while it started ({first_line(error)}); add --resume to go on") from None
            chosen, self.places = order(facts)
            self.slots = [made[number] for number in chosen]
            self.names = [f"{name}-{number}" for number in chosen]
            self.pids = tuple(facts[number].pid for number in chosen)
        except BaseException:
            self.close()
            raise

    @property
    def nodes(self) -> int:
        """How many nodes the group spans."""
        return len({place.node for place in self.places})

    def warm(
        self, backend: Backend, loop: Loop | None, environment: Mapping[str, str], program: str, *, timeout_s: float
    ) -> list[Warmth]:
        """Have a zygote ready on every slot.

        Raises:
            RequestError: A node lacks what a trial needs.
            StoppedError: A slot died, or could not be made ready otherwise or in time.
        """
        calls = [
            slot.warm.remote(backend, loop, {**environment, **self.devices(rank)}, program)
            for rank, slot in enumerate(self.slots)
        ]
        try:
            found: list[Warmth] = self._ray.get(calls, timeout=timeout_s)
        except self._ray.exceptions.GetTimeoutError:
            raise StoppedError(f"the rank slots were not ready within {timeout_s:.0f} s; add --resume to go on") from None
        except self._ray.exceptions.RayActorError as error:
            raise StoppedError(f"a rank slot died before it was ready ({first_line(error)}); add --resume to go on") from None
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            # A disk, a limit of the node's; or what Ray could not bring over, whose text is all there is.
            if cause is None or isinstance(cause, OSError | self._ray.exceptions.RayError):
                raise StoppedError(
                    f"a rank slot could not be made ready ({first_line(cause or error)}); see Ray's logs, then add --resume"
                ) from error
            raise cause from None
        return found

    def devices(self, rank: int) -> dict[str, str]:
        """The variable that shows a rank its node's GPUs; empty without GPUs."""
        devices = self.places[rank].devices
        return {"CUDA_VISIBLE_DEVICES": devices} if devices is not None else {}

    def close(self) -> None:
        """End all slots with their zygotes, and give the placement back."""
        calls = []
        for slot in self.slots:
            with _gone_is_fine():
                calls.append(slot.close.remote())
        if calls:
            with _gone_is_fine():
                self._ray.wait(calls, num_returns=len(calls), timeout=10)
        for slot in self.slots:
            with _gone_is_fine():
                self._ray.kill(slot)
        self.slots = []
        with _gone_is_fine():
            self._ray.util.remove_placement_group(self._placement)


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    """While something is ended: what Ray no longer has needs no end."""
    try:
        yield
    except Exception as error:
        if not is_rays(error):
            raise


def is_rays(error: Exception) -> bool:
    """Whether an error is Ray's own: the cluster, or something on it, is gone or does not answer.

    A placement that went with its cluster is a bare ``Exception`` there (_raylet.pyx:wait_placement_group_ready, 2.60).
    """
    import ray

    if isinstance(error, ray.exceptions.RayError | ConnectionError):
        return True
    return type(error) is Exception and "placement group" in str(error).lower()


def refuse_too_large(ranks: int, bundle: Resources) -> None:
    """Stop where the cluster, busy or not, has no room for so many slots.

    Raises:
        StoppedError: It has not.
    """
    import ray

    room = room_for(bundle)
    if room < ranks:
        total = ray.cluster_resources()
        nodes = Counter(node["Alive"] for node in ray.nodes())[True]
        raise StoppedError(
            f"the cluster is too small: {ranks} ranks need {_listed(bundle, ranks)}, its {nodes} nodes have "
            f"{_listed({name: total.get(name, 0) for name in bundle})} in all, room for {room} ranks; add nodes and --resume"
        )


def room_for(bundle: Resources) -> int:
    """How many bundles the living nodes have room for when nothing else runs."""
    import ray

    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            room += int(min(has.get(name, 0) // amount for name, amount in bundle.items() if amount))
    return room


def _listed(resources: Resources, times: int = 1) -> str:
    return ", ".join(f"{amount * times:g} {name}" for name, amount in resources.items())
