"""Feeds a program's inputs from a source's columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from weft_data.source import Array, Column, Rows, Source
from weft_graph.ir import Input
from weft_graph.program import LOSS_SCALE
from weft_graph.types import BATCH
from weft_worker.errors import TaskError


class Feeder:
    """Reads rows as a program's inputs. `columns` maps an input to a column of the source.

    Raises TaskError, when made, for an input without a column, a column that the source lacks, one whose values the
    input's type cannot hold, and one whose rows have another shape.
    """

    def __init__(
        self, source: Source, columns: Mapping[str, str], inputs: Sequence[Input], *, reuse: bool = False
    ) -> None:
        """`reuse`: batches of one size lie in the same arrays, each until the next one is read."""
        self._source = source
        self._reuse = reuse
        self._kept: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
        """By the number of rows, arrays for columns, and for inputs."""
        self._inputs = [declared for declared in inputs if declared.name != LOSS_SCALE]
        self._columns: dict[str, str] = {}
        self._dims: dict[str, int] = {}
        description = source.describe()
        self.rows = description.rows
        for declared in self._inputs:
            if declared.name not in columns:
                raise TaskError(f"input {declared.name!r} has no column; the data has {sorted(columns)}")
            name = columns[declared.name]
            column = description.column(name)
            if column is None:
                there = sorted(column.name for column in description.columns)
                raise TaskError(f"input {declared.name!r} is column {name!r}; the source has {there}")
            self._fit(declared, column)
            self._columns[declared.name] = name
        self._read = sorted(set(self._columns.values()))
        self._described = {name: column for name in self._read if (column := description.column(name)) is not None}

    def dims(self, samples: int) -> dict[str, int]:
        """The dimensions of a batch of `samples`: its own, and those that the shapes of rows fill."""
        return {**self._dims, BATCH: samples}

    def read(self, rows: Rows) -> dict[str, Array]:
        """An array of the input's type for each input, in the order of `rows`. Raises DataError."""
        if not self._reuse:
            return self._inputs_of(self._source.read(self._read, rows))
        count = len(rows)
        if count not in self._kept:
            columns = {
                name: np.zeros((count, *column.row_shape), column.dtype.numpy)
                for name, column in self._described.items()
            }
            self._kept[count] = columns, self._inputs_of(columns)
        columns, inputs = self._kept[count]
        self._source.read(self._read, rows, out=columns)
        for name, array in inputs.items():
            column = columns[self._columns[name]]
            if array is not column:
                np.copyto(array, column, casting="unsafe")
        return dict(inputs)

    def _inputs_of(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        return {
            declared.name: columns[self._columns[declared.name]].astype(declared.type.dtype.numpy, copy=False)
            for declared in self._inputs
        }

    def locate(self, rows: Rows, value: int, inputs: Collection[str] = ()) -> str | None:
        """Where these rows have the whole number: `row 7 of column 'y'`. None where they do not, or several columns do
        and none of them feeds one of `inputs`. Raises DataError."""
        found = self._first(rows, lambda array: array == value if array.dtype.kind in "iu" else None)
        fed = [where for name, where in found.items() if name in inputs] or list(found.values())
        return fed[0] if len(fed) == 1 else None

    def not_finite(self, rows: Rows) -> str:
        """Where these rows first have a number that is not finite: `row 7 of column 'x'`; empty where they have none.
        Raises DataError."""
        found = self._first(rows, lambda array: ~np.isfinite(array) if array.dtype.kind == "f" else None)
        return next(iter(found.values()), "")

    def _first(self, rows: Rows, wrong: Callable[[Array], Array | None]) -> dict[str, str]:
        """For each input that has a wrong element in these rows, where the first is."""
        found: dict[str, str] = {}
        for name, array in self.read(rows).items():
            mask = wrong(array)
            if mask is not None and mask.any():
                row = rows[mask.reshape(len(rows), -1).any(axis=1).argmax()]
                found[name] = f"row {row} of column {self._columns[name]!r}"
        return found

    def _fit(self, declared: Input, column: Column) -> None:
        shown = f"input {declared.name!r} is {declared.type}, column {column.name!r} is {column.dtype} with rows of"
        shown = f"{shown} shape {list(column.row_shape)}"
        if not np.can_cast(column.dtype.numpy, declared.type.dtype.numpy, "same_kind"):
            raise TaskError(f"{shown}: the element types do not fit")
        if declared.type.rank != 1 + len(column.row_shape) or declared.type.shape[0] != BATCH:
            raise TaskError(f"{shown}: the shapes do not fit")
        for dim, size in zip(declared.type.shape[1:], column.row_shape, strict=True):
            known = self._dims.setdefault(dim, size) if isinstance(dim, str) else dim
            if known != size:
                raise TaskError(f"{shown}: dimension {dim!r} is {known}, not {size}")
