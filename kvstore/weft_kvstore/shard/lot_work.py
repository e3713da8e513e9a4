"""What there is to do for a range of a lot. Pure."""

from __future__ import annotations

from weft_kvstore.merging.work import PIECE_BYTES, Work


class LotWork(Work):
    """Something to do for a lot: it counts in a job's turn what it works on."""

    __slots__ = ("_bytes",)

    def __init__(self, priority: int, nbytes: int) -> None:
        super().__init__(priority)
        self._bytes = min(nbytes, PIECE_BYTES)

    @property
    def piece_bytes(self) -> int:
        return self._bytes
