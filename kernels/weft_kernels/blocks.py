"""How arrays are cut where elements are worked on one by one, so that results do not depend on the cut."""

from __future__ import annotations

from typing import Final

VECTOR_BLOCK: Final = 64
"""Elements are computed in whole blocks of so many. A vectorised function may differ in its last bit between the body
and the tail of an array; where every array is whole blocks, there is no tail. No processor's vector is longer."""

CACHE_ELEMENTS: Final = 1 << 18
"""Elements worked on at once, so that what is made on the way stays in a core's caches. A whole number of
`VECTOR_BLOCK`. Measured over 2^16, 2^17, 2^18 and 2^19 on one core of an EPYC (1 MiB of second-level cache), rules over
3.2 million float32: sgd takes 1.8, 1.5, 1.3 and 1.2 ms, Adam 5.9, 5.6, 5.2 and 5.2; below 2^16 calls cost more."""

FUSED_ELEMENTS: Final = 1 << 17
"""The same for fused nodes, whose nodes write to arrays of that size again and again. Measured over 2^13 to 2^18 on one
core, six operators on 2^22 float32: each halving below 2^17 costs more calls than it saves misses."""


def whole_blocks(elements: int) -> int:
    """How many elements the whole blocks have that hold so many."""
    return -(-elements // VECTOR_BLOCK) * VECTOR_BLOCK
