"""The part of an arena for payloads without a fixed length: ids and rows of tables, compressed gradients."""

from __future__ import annotations

from bisect import bisect_left

from weft_kvstore.same_host.layout import ALIGNMENT


class SpareSpace:
    """Gives out pieces of a range of offsets, the lowest that fits first; pure.

    Against a ring: pieces come back in any order, since shards acknowledge apart, and one slow shard must not hold up
    the others' pieces. The lowest first keeps a steady run in the same pages, which are in the cache and mapped.
    """

    def __init__(self, room: range) -> None:
        self._starts: list[int] = [room.start] if room else []
        self._ends: list[int] = [room.stop] if room else []
        self._taken: dict[int, int] = {}

    def take(self, nbytes: int) -> int | None:
        """The offset of a piece of at least this length, or None if no gap is long enough."""
        if nbytes <= 0:
            raise ValueError(f"a piece of {nbytes} bytes")
        length = -(-nbytes // ALIGNMENT) * ALIGNMENT
        gaps = enumerate(zip(self._starts, self._ends, strict=True))
        place = next((number for number, (start, end) in gaps if end - start >= length), None)
        if place is None:
            return None
        start = self._starts[place]
        self._starts[place] = start + length
        if start + length == self._ends[place]:
            del self._starts[place], self._ends[place]
        self._taken[start] = length
        return start

    def give(self, offset: int) -> None:
        """A piece comes back. Raises ValueError for an offset that no piece has."""
        length = self._taken.pop(offset, None)
        if length is None:
            raise ValueError(f"no piece was taken at {offset}")
        end = offset + length
        place = bisect_left(self._starts, offset)
        if place < len(self._starts) and self._starts[place] == end:
            end = self._ends[place]
            del self._starts[place], self._ends[place]
        if place > 0 and self._ends[place - 1] == offset:
            self._ends[place - 1] = end
        else:
            self._starts.insert(place, offset)
            self._ends.insert(place, end)
