"""The sum of a step's rows on its way, and how much of it lies in memory that no message brought. Pure."""

from __future__ import annotations

from weft_kvstore.arrays.array import Array
from weft_kvstore.tables.row_sums import merged
from weft_kvstore.tables.rows import Rows


class RowTotal:
    """Adds pushes, one sum at a time. Invariant: `_made` has, by the identity of its values, how many rows each part of
    the sum has that no message brought."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[int, int] = {}

    @property
    def rows_made(self) -> int:
        """Rows of the sum that no message's account has; may be asked on any thread."""
        return sum(self._made.values())

    def sum(self, one: Rows, other: Rows) -> Rows:
        """As `merged`."""
        total = merged(one, other)
        came = _parts(one, other) - self._made.keys()
        self._made = {id(values): len(ids) for ids, values in total.parts if id(values) not in came}
        return total

    def values(self, total: Rows) -> Array:
        """All values of the sum in one array, to be written."""
        came, values = _parts(total), total.values
        if id(values) not in came:
            self._made = {id(values): len(values)}
        return values

    def end(self) -> None:
        """The sum was made use of: the next one begins."""
        self._made = {}


def _parts(*rows: Rows) -> set[int]:
    return {id(values) for one in rows for _, values in one.parts}
