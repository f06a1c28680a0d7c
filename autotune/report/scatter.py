"""A small scatter plot in plain characters, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark; a later point is drawn over an earlier one in the same cell."""

    x: float
    y: float
    mark: str


def draw(
    points: Sequence[Point], *, y_line: float | None, width: int, height: int, x_title: str, y_title: str, line_name: str
) -> list[str]:
    """The plot as lines of at most ``width`` characters.

    ``y_line`` is a horizontal line (a limit), drawn under the points and named at its right end.
    """
    ys = [point.y for point in points] + ([] if y_line is None else [y_line])
    xs = [point.x for point in points]
    if not points:
        return []
    y_low, y_high = _padded(min(ys), max(ys))
    x_low, x_high = _padded(min(xs), max(xs))
    decimals = 1 if y_high - y_low >= 1 else 3
    labels = {row: f"{y_high - (y_high - y_low) * row / (height - 1):.{decimals}f}" for row in (0, height // 2, height - 1)}
    margin = max(map(len, labels.values()))
    columns = width - margin - 2

    def row_of(y: float) -> int:
        return round((y_high - y) / (y_high - y_low) * (height - 1))

    def column_of(x: float) -> int:
        return round((x - x_low) / (x_high - x_low) * (columns - 1))

    grid = [[" "] * columns for _ in range(height)]
    if y_line is not None:
        name = f" {line_name}"
        grid[row_of(y_line)] = list(("-" * max(0, columns - len(name)) + name)[:columns])
    for point in points:
        grid[row_of(point.y)][column_of(point.x)] = point.mark
    lines = [y_title]
    lines += [f"{labels.get(row, ''):>{margin}} |{''.join(cells)}".rstrip() for row, cells in enumerate(grid)]
    lines.append(f"{'':{margin}} +{'-' * columns}")
    left, right = f"{max(x_low, 0):.0f}", f"{x_high:.0f}"
    middle = max(0, columns - len(left) - len(right))
    lines.append(f"{'':{margin}}  {left}{x_title[:middle]:^{middle}}{right}"[:width].rstrip())
    return [line[:width] for line in lines]


def _padded(low: float, high: float) -> tuple[float, float]:
    """The range with some air, and never empty."""
    pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - pad, high + pad
