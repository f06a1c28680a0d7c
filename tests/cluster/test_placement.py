"""Which rank takes which slot, and what a GPU node says of itself."""

from __future__ import annotations

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from autotune.cluster.gpus import parse_gpus
from autotune.cluster.group import is_rays, order
from autotune.cluster.slot import SlotFacts


def fact(node: str, *gpus: str, pid: int = 1) -> SlotFacts:
    return SlotFacts(node_id=node, address=f"10.0.0.{ord(node[0]) % 200}", host=node, pid=pid, gpu_ids=gpus)


def test_ranks_go_node_by_node_and_see_all_of_their_nodes_gpus() -> None:
    slots, places = order([fact("b", "3"), fact("a", "10"), fact("b", "0"), fact("a", "2"), fact("b", "1")])
    assert slots == [2, 4, 0, 3, 1]
    assert [(p.node, p.local_rank, p.local_world_size) for p in places] == [(0, 0, 3), (0, 1, 3), (0, 2, 3), (1, 0, 2), (1, 1, 2)]
    assert [p.devices for p in places] == ["0,1,3", "0,1,3", "0,1,3", "2,10", "2,10"]


def test_slots_without_gpus_show_none() -> None:
    _, places = order([fact("a"), fact("a")])
    assert [(p.local_rank, p.devices) for p in places] == [(0, None), (1, None)]


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_every_slot_is_one_rank_and_nodes_are_contiguous(nodes: list[str]) -> None:
    slots, places = order([fact(node) for node in nodes])
    assert sorted(slots) == list(range(len(nodes)))
    assert [place.node for place in places] == sorted(place.node for place in places)
    for node in {place.node for place in places}:
        local = [place.local_rank for place in places if place.node == node]
        assert local == list(range(len(local)))


def test_nvidia_smi_is_read() -> None:
    text = (
        "0, GPU-aa, NVIDIA H100 80GB HBM3, 81559, 4, 550.54.15, 1980, 0x0000000000000001\n"
        "1, GPU-bb, NVIDIA H100 80GB HBM3, 81559, 70123, 550.54.15, [N/A], [Not Supported]\nNo devices\n"
    )
    first, second = parse_gpus(text)
    assert (first.index, first.name, first.total_bytes, first.used_bytes) == (
        0,
        "NVIDIA H100 80GB HBM3",
        81559 * 2**20,
        4 * 2**20,
    )
    assert (first.clock_mhz, first.throttled) == (1980, "0x0000000000000001")
    assert (second.clock_mhz, second.throttled, second.driver) == (None, None, "550.54.15")


@pytest.mark.parametrize(
    ("error", "is_its_own"),
    [
        (ray.exceptions.RayActorError(), True),
        (ray.exceptions.GetTimeoutError("late"), True),
        (ConnectionError("GCS"), True),
        (Exception("Placement group PlacementGroupID(1) does not exist."), True),
        (AttributeError("'SlotGroup' object has no attribute 'pleacement'"), False),
        (TypeError("placement group"), False),
        (Exception("something else"), False),
    ],
)
def test_only_rays_own_errors_are_a_lost_cluster(error: Exception, is_its_own: bool) -> None:
    assert is_rays(error) is is_its_own
