"""Who may send a model: a place is taken before a body is read, so that no more lies on the disk than is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft_server.refusals import FullError


class ModelPlaces:
    """At most `most` models that come, wait or are read, of at most `most_bytes` together. Belongs to one loop."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._taken = 0
        self._taken_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether no body is taken, of whatever size."""
        return self._taken >= self._most

    @contextmanager
    def place(self, nbytes: int) -> Iterator[None]:
        """Held within the block, for a body of at most so many bytes. Raises FullError.

        One that is alone is taken whatever its size, which has a bound of its own.
        """
        if self.is_full:
            raise FullError("model", self._most)
        if self._taken and self._taken_bytes + nbytes > self._most_bytes:
            raise FullError("model", self._taken_bytes, unit="bytes of ")
        self._taken += 1
        self._taken_bytes += nbytes
        try:
            yield
        finally:
            self._taken -= 1
            self._taken_bytes -= nbytes
