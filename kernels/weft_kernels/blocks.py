"""How arrays are cut where elements are worked on one by one, so that results do not depend on the cut."""

from __future__ import annotations

from typing import Final

VECTOR_BLOCK: Final = 64
"""Elements are computed in whole blocks of so many. A vectorised function may differ in its last bit between the body
and the tail of an array; where every array is whole blocks, there is no tail. No processor's vector is longer."""

CACHE_ELEMENTS: Final = 1 << 15
"""Elements worked on at once, so that what is made on the way stays in a core's second cache: 128 KiB an array of
float32. A whole number of `VECTOR_BLOCK`."""


def whole_blocks(elements: int) -> int:
    """How many elements the whole blocks have that hold so many."""
    return -(-elements // VECTOR_BLOCK) * VECTOR_BLOCK
