"""Fields that only a second trial can fill."""

from __future__ import annotations

from made_records import oom, rank, record

from autotune.boundary.boundary import Boundary
from autotune.trial.comparison import compare

CONTROL = Boundary.selective()


def test_farther_but_still_out_of_memory() -> None:
    control = oom([rank(0, 66e9)], step=1, boundary=CONTROL)
    later = oom([rank(0, 62e9)], step=2, number=1)
    assert compare(later, control).farther_but_still_oom
    assert not compare(control, later).farther_but_still_oom
    assert not compare(record([rank(0, 62e9)], number=1), control).farther_but_still_oom


def test_hot_rank_moved() -> None:
    control = record([rank(0, 66e9), rank(1, 60e9)], boundary=CONTROL)
    other = record([rank(0, 50e9), rank(1, 55e9)], number=1)
    assert compare(other, control).hot_rank_moved
    assert not compare(record([rank(0, 55e9), rank(1, 50e9)], number=1), control).hot_rank_moved
    assert not compare(record([rank(1, 55e9)], number=1, world_size=2), control).hot_rank_moved


def test_label_without_effect() -> None:
    control = record([rank(0, 66e9), rank(1, 60e9)], boundary=CONTROL)
    same = record([rank(0, 66e9 + 1e6), rank(1, 60e9)], number=1)
    assert compare(same, control).label_without_effect
    assert not compare(record([rank(0, 65e9), rank(1, 60e9)], number=1), control).label_without_effect
    assert not compare(oom([rank(0, 66e9), rank(1, 60e9)], number=1), control).label_without_effect
