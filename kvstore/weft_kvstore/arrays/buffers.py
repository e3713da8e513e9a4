"""The bytes of arrays."""

from __future__ import annotations

from typing import TypeAlias

from weft_kvstore.arrays.array import Array

Buffer: TypeAlias = bytes | bytearray | memoryview


def bytes_of(array: Array) -> memoryview:
    """The bytes of a C-contiguous array, as a view; empty for an empty one."""
    if not array.size:
        return memoryview(b"")
    return memoryview(array.reshape(-1)).cast("B")  # type: ignore[arg-type]  # mypy does not know arrays as buffers
