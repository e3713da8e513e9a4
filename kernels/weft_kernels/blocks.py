"""How arrays are cut where elements are worked on one by one, so that results do not depend on the cut."""

from __future__ import annotations

from typing import Final

VECTOR_BLOCK: Final = 64
"""Elements are computed in whole blocks of so many. A vectorised function may differ in its last bit between the body
and the tail of an array; where every array is whole blocks, there is no tail. No processor's vector is longer."""

CACHE_ELEMENTS: Final = 1 << 16
"""Elements worked on at once, so that what is made on the way stays in a core's caches. A whole number of
`VECTOR_BLOCK`. Measured over 2^13 to 2^18 on one core: Adam as a graph over 2^21 float32 takes 22, 15, 10, 8.4, 8.6 and
7.4 ms; sums of rows take 2.9 ms at 2^13 and 2.2 from 2^15 on; first values are alike throughout."""

FUSED_ELEMENTS: Final = 1 << 17
"""The same for fused nodes, whose nodes write to arrays of that size again and again. Measured over 2^13 to 2^18 on one
core, six operators on 2^22 float32: each halving below 2^17 costs more calls than it saves misses."""


def whole_blocks(elements: int) -> int:
    """How many elements the whole blocks have that hold so many."""
    return -(-elements // VECTOR_BLOCK) * VECTOR_BLOCK
