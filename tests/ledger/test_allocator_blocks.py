from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.ledger.allocator import unsplit_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("mib", "waste_mib"),
    [
        (11, 1),  # a segment of 12 MiB whose last MiB is not split off
        (12, 0),
        (22, 0),
        (10.5, 0),  # 1.5 MiB remain: split
        (6, 0),  # three in 20 MiB, 2 MiB remain for others
        (9.75, 0.25),  # two in 20 MiB, half a MiB remains unsplit
    ],
)
def test_blocks_of_fresh_segments(mib: float, waste_mib: float) -> None:
    assert unsplit_bytes(int(mib * MIB), expandable_segments=False) == waste_mib * MIB


@given(st.integers(1, 200 * MIB))
def test_waste_is_below_a_mebibyte_and_gone_with_expandable_segments(nbytes: int) -> None:
    assert 0 <= unsplit_bytes(nbytes, expandable_segments=False) <= MIB
    assert 0 <= unsplit_bytes(nbytes, expandable_segments=True) < 512
