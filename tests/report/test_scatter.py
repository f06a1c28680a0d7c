"""The small plot stays inside its box and puts points where they belong."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autotune.report.scatter import Point, draw

coordinates = st.floats(-1e6, 1e6, allow_nan=False)
points = st.lists(st.builds(Point, x=coordinates, y=coordinates, mark=st.sampled_from("o*x")), max_size=30)


@given(points, st.none() | coordinates, st.integers(30, 120), st.integers(4, 30))
def test_plot_stays_inside_its_box(found: list[Point], line: float | None, width: int, height: int) -> None:
    lines = draw(found, y_line=line, width=width, height=height, x_title="ms", y_title="GB", line_name="limit")
    assert lines == [] if not found else len(lines) == height + 3
    assert all(len(text) <= width for text in lines)


def test_highest_point_is_on_the_first_row_and_dearest_at_the_right() -> None:
    found = [Point(x=0, y=80, mark="a"), Point(x=100, y=60, mark="b")]
    lines = draw(found, y_line=70, width=50, height=11, x_title="ms", y_title="GB", line_name="limit")
    rows = {mark: next(i for i, text in enumerate(lines[1:]) if mark in text.split("|")[1]) for mark in "ab" if lines}
    line_row = next(i for i, text in enumerate(lines[1:]) if text.endswith("limit"))
    assert rows["a"] < line_row < rows["b"]
    assert lines[1 + rows["a"]].index("a") < lines[1 + rows["b"]].index("b")
