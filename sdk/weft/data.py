"""Data sources as a script writes them."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any

from weft.api.data import DataSpec, NumpySource, Rows
from weft.arguments import checked, says_its_words
from weft.errors import ArgumentError


@says_its_words
def numpy_data(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    train: tuple[int, int] | None = None,
    evaluate: tuple[int, int] | None = None,
    shuffle: bool = True,
) -> DataSpec:
    """A `.npz` file: each array is a column, with a row for each sample along its first axis.

    The server and the workers read `path`. A relative one starts from where the cluster was started; if no such file is
    there, and one in the folder of this program, a submitted job has that one's absolute path.

    `columns` maps inputs of the graph to columns; other inputs take the column of their own name. `train` and
    `evaluate` are ranges of rows, (first, last + 1). Without `evaluate` there is no evaluation. Without `train`,
    training reads the rows before `evaluate`, or all. Raises ArgumentError for empty or overlapping ranges.
    """
    train, evaluate = _rows("train", train), _rows("evaluate", evaluate)
    if train is None and evaluate is not None:
        if evaluate[0] == 0:
            raise ArgumentError(
                "the evaluated rows come first, so none are before them: say which rows train=(...) reads"
            )
        train = (0, evaluate[0])
    if train is not None and evaluate is not None and max(train[0], evaluate[0]) < min(train[1], evaluate[1]):
        raise ArgumentError(
            f"rows {evaluate[0]} to {evaluate[1]} are for evaluation; training reads {train[0]} to {train[1]}"
        )
    with checked("numpy_data"):
        return DataSpec(
            source=NumpySource(path=os.fspath(path)),
            columns=dict(columns or {}),
            train=Rows(start=train[0], stop=train[1]) if train else None,
            evaluate=Rows(start=evaluate[0], stop=evaluate[1]) if evaluate else None,
            shuffle=shuffle,
        )


def _rows(argument: str, rows: Any) -> tuple[int, int] | None:
    """The rows as two numbers; NumPy's own will do."""
    if rows is None:
        return None
    try:
        start, stop = rows
        return operator.index(start), operator.index(stop)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{argument} is {rows!r}; it should be rows from (included) to (excluded), such as (0, 1600)"
        ) from None
