"""What answers a pull, or a part of it. Values."""

from __future__ import annotations

from typing import NamedTuple

from weft_kvstore.arrays.array import Array
from weft_kvstore.wire.lending import Lendable
from weft_kvstore.wire.out_run import OneBuffer


class Answer(NamedTuple):
    """Slices, or chunks, from `first` on of a lot at a version: the pull's array number `array`. Part i of them has
    bytes `bounds[i]` to `bounds[i + 1]` of `source` and priority `priorities[i]`, or `priority` where those are None.

    `compressed`: the bytes are encoded. They are parts of `held` from `part` on, which are lent until they arrive;
    None where the bytes are the pull's own.
    """

    array: int
    lot: int
    version: int
    first: int
    bounds: Array
    source: OneBuffer
    held: Lendable | None
    priority: int
    priorities: Array | None = None
    part: int = 0
    compressed: bool = False

    @property
    def parts(self) -> int:
        return len(self.bounds) - 1
