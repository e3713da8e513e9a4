"""Batches as a program's inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from weft_data.numpy_source import NpzSource
from weft_graph.ir import Input
from weft_graph.types import BATCH, DType, TensorType
from weft_worker.feed import Feeder

X, Y = np.arange(40, dtype=np.uint8).reshape(10, 4), np.arange(10) * 7
INPUTS = (Input("x", TensorType(DType.FLOAT32, (BATCH, 4))), Input("y", TensorType(DType.INT64, (BATCH,))))


def test_batches_of_one_size_lie_in_the_same_arrays_where_that_is_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    source = NpzSource(str(tmp_path / "data.npz"))
    plain, reusing = (Feeder(source, {"x": "x", "y": "y"}, INPUTS, reuse=reuse) for reuse in (False, True))
    first: dict[int, dict[str, np.ndarray]] = {}
    for rows in (np.array(each, np.int64) for each in ([3, 1, 2], [9, 9], [0, 5, 4], [7, 8], [6, 6, 6])):
        read, again = plain.read(rows), reusing.read(rows)
        assert {name: array.dtype.name for name, array in again.items()} == {"x": "float32", "y": "int64"}
        np.testing.assert_array_equal(again["x"], X[rows])
        np.testing.assert_array_equal(again["y"], Y[rows])
        kept = first.setdefault(len(rows), again)
        assert all(again[name] is kept[name] and read[name] is not kept[name] for name in again)
    source.close()
