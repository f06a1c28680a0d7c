"""A table of texts, as every output shows it."""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[str, ...]
NOTHING = "nothing"
"""Stands where a saving would, and is none."""
LONGEST = 30
"""A longer text is a sentence, not a figure, whatever it begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text under named columns; ``note`` says what kind of figures they are."""

    title: str
    note: str
    columns: Row
    rows: tuple[Row, ...]
    narrow: Row = ()
    """Columns that a narrow terminal shows; the first three and the last where none is named."""

    @property
    def used_columns(self) -> tuple[int, ...]:
        """Columns in which at least one row says something."""
        return tuple(i for i in range(len(self.columns)) if any(row[i] not in ("", "-") for row in self.rows))

    def is_figure(self, index: int) -> bool:
        """Whether a column holds figures, which stand to the right."""
        return bool(self.rows) and all(
            row[index] == NOTHING or (row[index][:1] in "+-<>0123456789" and len(row[index]) <= LONGEST) for row in self.rows
        )
