"""What a source of samples tells and gives, whatever it reads from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from weft_graph.types import DType

Array = np.ndarray[Any, np.dtype[Any]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name, element type, and the shape of one row (empty for a scalar a row)."""

    name: str
    dtype: DType
    row_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Description:
    """What a source holds: the number of rows, which all columns share, and the columns by name."""

    rows: int
    columns: tuple[Column, ...]
    content: str = field(default="", compare=False)
    """The same for columns of the same elements, wherever they lie; other elements have another one."""

    def column(self, name: str) -> Column | None:
        """The column of that name, or None."""
        return next((column for column in self.columns if column.name == name), None)


class Source(Protocol):
    """Rows of named columns. Every method may be called from any thread, and raises a DataError."""

    def describe(self) -> Description:
        """What the source holds, without reading its rows."""

    def read(self, columns: Sequence[str], rows: Rows, *, out: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """The rows asked for, in that order, repeats allowed: an array (len(rows), *row_shape) for each column.

        The arrays are C-contiguous, of native byte order, and owned by the caller: those of `out`, or new ones.
        """

    def close(self) -> None:
        """Release the file. Idempotent; nothing may be read afterwards."""
