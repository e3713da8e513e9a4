"""Values that were set in a table: at once, or for a version that is still to come. Pure."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, Final

import numpy as np

from weft_kvstore.description.records import Mode
from weft_kvstore.merging.steps import PushRefusedError, Steps
from weft_kvstore.rows.index import IdIndex
from weft_kvstore.rows.memory import GrowingArray
from weft_kvstore.rows.rows import Rows
from weft_kvstore.settings import SETS_AHEAD, SETS_WAITING
from weft_kvstore.tables.values import KeyRules

# --- Values that were set for a version that is still to come: of one place the last one ------------------------------


class RowsAhead:
    """Rows of one version by their places: what is set once more takes no more memory."""

    def __init__(self, width: int, dtype: np.dtype[Any], id_dtype: np.dtype[Any], *, a_piece: int) -> None:
        """`a_piece` rows are given back at once."""
        self._a_piece = a_piece
        self._id_dtype = id_dtype
        self._index = IdIndex(secrets.randbits(64))
        self._values = GrowingArray(width, dtype)

    def __len__(self) -> int:
        """How many parts wait."""
        return int(self._index.count > 0)

    @property
    def nbytes(self) -> int:
        """Bytes of the values and of the index."""
        return self._index.count * self._values.row_bytes + self._index.nbytes

    def add(self, value: Rows) -> None:
        """One more value. Raises MemoryError."""
        ids = value.ids.view(np.uint64)
        rows = self._index.find(ids)
        new = np.flatnonzero(rows < 0)
        rows[new] = self._index.count + np.arange(len(new))
        most = self._index.count + len(new)
        if most > len(self._values):
            self._values.grow(max(most, 3 * len(self._values) // 2))
        self._index.add(ids[new], rows[new])
        self._values.array[rows] = value.values

    def values(self) -> Iterator[Rows]:
        """What was set, piece by piece; the ids of each ascend."""
        for low in range(0, self._index.count, self._a_piece):
            high = min(low + self._a_piece, self._index.count)
            ids = self._index.ids.array[low:high].view(self._id_dtype)
            order = np.argsort(ids)
            yield Rows(ids[order], self._values.array[low:high][order])


# --- Values that were set of a table: which of them hold at once, and which wait for a version or an update's end -----


SETS_KEPT: Final = 1024
"""How many of the last parts that were set a table knows again, should they be sent again after a broken connection."""


class Taken(Enum):
    """What becomes of a value that was taken in."""

    AGAIN = "again"
    """It was there before."""
    NOW = "now"
    """It holds from now on."""
    FIRST = "first"
    """It is a first value that comes late: it holds where none was set."""
    WAITS = "waits"
    """It holds at a version to come."""
    BEHIND_UPDATE = "behind update"
    """It holds once the update under way has ended."""


class TableSets:
    """`reached` is the version that the last update leads to: what one under way has read is set no more.

    Invariants: `_ahead` holds only versions beyond the present one; `_late` is empty while no update is under way.
    """

    __slots__ = ("_ahead", "_is_ending", "_late", "_nothing_ahead", "_spec", "_steps", "_taken", "reached")

    def __init__(self, spec: KeyRules, steps: Steps[Any], nothing_ahead: Callable[[], RowsAhead]) -> None:
        """`nothing_ahead` makes the place where values of one version wait."""
        self._spec = spec
        self._steps = steps
        self._nothing_ahead = nothing_ahead
        self.reached = 0
        self._ahead: dict[int, RowsAhead] = {}
        self._late: deque[Rows] = deque()
        self._is_ending = False
        self._taken: deque[Hashable] = deque(maxlen=SETS_KEPT)

    @property
    def waiting(self) -> int:
        """Parts that were set for versions that are still to come; may be asked on any thread."""
        return sum(len(ahead) for ahead in list(self._ahead.values()))

    def check(self, slot: int, version: int, origin: Hashable) -> None:
        """Raises PushRefusedError for a version that has passed, that is too far ahead, or that is one too many."""
        if origin in self._taken or self._spec.holds_at_once:
            return
        now, passed = self._steps.version, self._passed
        where = f"{self._spec.named(slot)}, version {version}: the value cannot be set"
        if version == 0 and not self._spec.given:
            raise PushRefusedError(f"{where}: version 0 is the initializer's")
        if version < passed and not (version == 0 and self._spec.given):
            raise PushRefusedError(f"{where}: it is at version {passed} already")
        if version > now + SETS_AHEAD:
            raise PushRefusedError(f"{where}: more than {SETS_AHEAD} ahead of version {now}")
        if version > now and version not in self._ahead and len(self._ahead) >= SETS_WAITING:
            raise PushRefusedError(f"{where}: values wait for versions {sorted(self._ahead)} already")

    def accept(self, version: int, value: Rows, origin: Hashable, *, is_changing: bool) -> Taken:
        """Takes in what `check` lets pass, once, and keeps what has to wait. `is_changing`: an update is under way."""
        if origin in self._taken:
            return Taken.AGAIN
        self._taken.append(origin)
        spec, at_once = self._spec, self._spec.holds_at_once
        is_first = version == 0 and spec.given and spec.mode is not Mode.SYNC and bool(spec.slots)
        if is_first or (version < self._passed and not at_once):
            return Taken.FIRST  # Given once: a process that starts anew does not undo what was learned.
        if version > self._steps.version and not at_once:
            if version not in self._ahead:
                self._ahead[version] = self._nothing_ahead()
            self._ahead[version].add(value)
            return Taken.WAITS
        if not is_changing:
            return Taken.NOW
        self._late.append(value)
        return Taken.BEHIND_UPDATE

    def relieve(self) -> Rows | None:
        """A value to be put now for one that has just come, where an update is at its end: what waits grows no more,
        and so the update ends. None otherwise."""
        return self._late.popleft() if self._is_ending else None

    def due(self) -> Iterator[Rows]:
        """What was set for the version that begins, and what has come since, to be put one by one."""
        ahead = self._ahead.pop(self._steps.version, None)
        if ahead is not None:
            yield from ahead.values()
        self._is_ending = True
        while self._late:
            yield self._late.popleft()
        self._is_ending = False

    @property
    def _passed(self) -> int:
        """The version before which nothing can be set any more."""
        return max(self._steps.version, self.reached)
