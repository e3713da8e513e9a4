"""Where along an axis an element stands: what ArgMax and ArgMin have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft_graph.attributes import as_int
from weft_graph.ir import AttributeValue
from weft_kernels.kernel import Array


def place(xp: Any, first: Callable[..., Array], data: Array, attributes: Mapping[str, AttributeValue]) -> Array:
    """The int64 index along `axis` of what `first(data, axis=)` finds the first of, or of the last of its equals."""
    axis = as_int(attributes["axis"])
    if as_int(attributes["select_last_index"]):
        index = data.shape[axis] - 1 - first(xp.flip(data, axis), axis=axis)
    else:
        index = first(data, axis=axis)
    index = xp.asarray(index, dtype=xp.int64)
    return xp.expand_dims(index, axis) if as_int(attributes["keepdims"]) else index  # type: ignore[no-any-return]  # xp is Any
