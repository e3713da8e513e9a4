"""Cases of the operators that pick entries by index."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from gradient_case import Array, GradientCase, Reference, floats, integers

SEVERAL: Array = np.array([[3, 0, 3], [1, 3, 0]])
"""Ids of two ranks that name rows 3 and 0 more than once and row 2 never."""


def row_cases() -> list[GradientCase]:
    return [*_gather_cases(), *_embedding_cases()]


def _gather_cases() -> list[GradientCase]:
    def along(axis: int, indices: Array) -> Reference:
        """NumPy's indexing counts from the end below 0, as ONNX does."""
        return lambda x: x[(slice(None),) * (axis % x.ndim) + (indices,)]

    def case(name: str, data: Array, indices: Array, axis: int = 0) -> GradientCase:
        return GradientCase(name, "Gather", (data, indices), along(axis, indices), {"axis": axis})

    return [
        GradientCase("default_axis", "Gather", (floats(4, 3), SEVERAL), along(0, SEVERAL)),
        case("int32", floats(4, 3), SEVERAL.astype(np.int32)),
        case("negative_ids", floats(4, 3), integers(-1, 3, -4, 0)),
        case("middle_axis", floats(2, 4, 3), SEVERAL, axis=1),
        case("last_axis", floats(2, 4), SEVERAL, axis=-1),
        case("scalar_id", floats(4, 3), np.array(2)),
        case("vector", floats(4), SEVERAL),
        case("no_ids", floats(4, 3), np.zeros((2, 0), dtype=np.int64)),
        case("one_id_often", floats(2, 3), np.zeros(40, dtype=np.int64)),
    ]


def _embedding_cases() -> list[GradientCase]:
    def case(name: str, table: Array, ids: Array, padding_id: int | None = None) -> GradientCase:
        def reference(x: Any) -> Any:
            if padding_id is None:
                return x[ids]
            padded = (ids == padding_id).reshape(*ids.shape, *(1,) * (x.ndim - 1))
            return jnp.where(padded, 0, x[np.where(ids == padding_id, 0, ids)])

        attributes = {} if padding_id is None else {"padding_id": padding_id}
        return GradientCase(name, "Embedding", (table, ids), reference, attributes, domain="weft")

    return [
        case("plain", floats(4, 3), SEVERAL),
        case("padding_is_a_row", floats(4, 3), SEVERAL, padding_id=3),
        case("padding_below_0", floats(4, 2, 3), np.array([[-1, 2], [2, -1]]), padding_id=-1),
        case("padding_beyond", floats(4, 3), np.array([9, 1, 9], dtype=np.int32), padding_id=9),
        case("all_padding", floats(4, 3), integers(0, 0), padding_id=0),
        case("padding_unused", floats(4), integers(1, 1), padding_id=2),
    ]
