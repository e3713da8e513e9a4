"""Standard row-sparse semantics: rows that updates passed by get what a gradient of zeros would have done to them.

A row is brought up to date when it is next touched or read, by the rule itself, update by update with the numbers of
each: to the bits of a dense key whose gradient is zero there. No closed form has them: powers round otherwise than
repeated products. Rows are worked on together, those furthest behind first; the others join as their updates come.

Cost: an element is updated as often as the dense rule would have, but in the cache, and each update of a piece costs
one call of the rule (10 to 30 microseconds) whatever few rows it is for. Nothing is computed for rows that stand
still (`Rule.still`: all under plain descent and Adagrad without decay, those that were never touched under most rules),
nor for those that have come to rest under numbers that stay: momentum of 0.9 does within 1,000 updates in float32. Rows
of Adam that were touched never do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weft_kernels.blocks import CACHE_ELEMENTS, VECTOR_BLOCK, whole_blocks
from weft_kernels.kernel import Array
from weft_kernels.row_copies import put_rows
from weft_kernels.rules.hyper_log import HyperLog
from weft_kernels.rules.record import Hyper, Rule
from weft_kernels.rules.rows import gathered_rows

REST_INTERVAL: Final = 32
"""Updates between two looks at which rows have come to rest: a look costs about as much as an update."""

WORK_ELEMENTS: Final = 1 << 21
"""Elements updated between two yields: 20 ms or less of one core."""

CALL_ELEMENTS: Final = 1 << 12
"""What an update of fewer elements counts as, for its calls take as long."""


def replay_rows(
    rule: Rule, weight: Array, state: Mapping[str, Array], places: Array, *, since: Array, log: HyperLog
) -> None:
    """Brings the rows `places` (n,) int64 of `weight` and of each state (rows, width) up to the log's last update.

    `since` (n,) has the last update that each row has seen, 0 for none; places are distinct and from 0. Raises
    ValueError for a rule that needs keys whole, and for updates that the log does not know.
    """
    for _ in replaying(rule, weight, state, places, since=since, log=log):
        pass


def replaying(
    rule: Rule, weight: Array, state: Mapping[str, Array], places: Array, *, since: Array, log: HyperLog
) -> Iterator[None]:
    """The same in parts of about `WORK_ELEMENTS`. All rows are right when it is over; until then some are not."""
    if rule.whole:
        raise ValueError(f"rule {rule.name!r} needs a key whole, and is asked to replay {len(places)} rows")
    width = weight.shape[1]
    behind = np.flatnonzero(since < log.last)
    if not width or not behind.size:
        return
    order = behind[np.argsort(since[behind], kind="stable")]
    rows = max(CACHE_ELEMENTS // width, 1)
    for begin in range(0, len(order), rows):
        some = order[begin : begin + rows]
        arrays = {name: gathered_rows(array, places[some]) for name, array in state.items()}
        piece = _Piece(rule, gathered_rows(weight, places[some]), arrays, since[some], width)
        yield from piece.replaying(log)
        size, shape = len(some) * width, (len(some), width)
        for array, updated in ((weight, piece.weight), *((state[name], arrays[name]) for name in state)):
            put_rows(array, places[some], updated[:size].reshape(shape))


@dataclass(slots=True)
class _Piece:
    """Rows one after the other, filled up to whole blocks; `since` ascends, so those that an update is for come first.

    The first `_rest` rows have come to rest under the numbers of now.
    """

    rule: Rule
    weight: Array
    state: Mapping[str, Array]
    since: Array
    width: int
    _rest: int = 0
    _looked: int = 0
    _still: tuple[tuple[str, ...] | None, int] = (None, 0)
    _zeros: Array = field(init=False)

    def __post_init__(self) -> None:
        self._zeros = np.zeros_like(self.weight)
        self._zeros.flags.writeable = False

    def replaying(self, log: HyperLog) -> Iterator[None]:
        work = 0
        for first, stop, hyper in log.runs(int(self.since[0]), log.last):
            self._rest, update = self._standing(hyper), first
            while update < stop:
                joined, until = self._joined(update, stop)
                if self._rest >= joined:
                    update = until
                    continue
                work += max(self._update(joined, update, hyper), CALL_ELEMENTS)
                update += 1
                if work >= WORK_ELEMENTS:
                    work = 0
                    yield

    def _standing(self, hyper: Hyper) -> int:
        """How many of the first rows stand still under these numbers. Rows that do are not written meanwhile."""
        names = None if self.rule.still is None else self.rule.still(hyper)
        if names == self._still[0]:
            return self._still[1]
        rows = 0
        if names:
            moves = np.zeros(len(self.since) * self.width, np.bool_)
            for name in names:
                moves |= self._bits(self.state[name])[: moves.size] != 0
            rows = int(moves.argmax()) // self.width if moves.any() else len(self.since)
        elif names is not None and (self.weight.dtype != np.float16 or not self.state):
            # A float16 state is brought within its range by the first update, whatever the gradient.
            rows = len(self.since)
        self._still = names, rows
        return rows

    def _joined(self, update: int, stop: int) -> tuple[int, int]:
        """How many rows have not seen this update, and the next one before which a row joins them."""
        joined = int(np.searchsorted(self.since, update))
        return joined, stop if joined == len(self.since) else min(stop, int(self.since[joined]) + 1)

    def _update(self, joined: int, update: int, hyper: Hyper) -> int:
        """Runs the rule on rows `_rest` to `joined` and gives how many elements that were."""
        low = self._rest * self.width // VECTOR_BLOCK * VECTOR_BLOCK
        end = joined * self.width
        high = whole_blocks(end)
        parts = {name: array[low:high] for name, array in self.state.items()}
        moved = self.weight[low:high]
        everything = (moved, *parts.values())
        # What fills the last block belongs to rows that this update is not for.
        beyond = [array[end - low :].copy() for array in everything] if joined < len(self.since) else []
        looks = not self.rule.counts and self._looks()
        before = [array.copy() for array in everything] if looks else []
        self.rule.apply(moved, self._zeros[low:high], parts, update, hyper)
        for array, kept in zip(everything, beyond, strict=False):
            array[end - low :] = kept
        if looks:
            self._find_rest(low, end, everything, before)
        return high - low

    def _looks(self) -> bool:
        self._looked = (self._looked + 1) % REST_INTERVAL
        return not self._looked

    def _find_rest(self, low: int, end: int, now: tuple[Array, ...], before: list[Array]) -> None:
        """The leading rows of which no bit has changed are at rest: the same update would change none again."""
        changed = np.zeros(end - low, np.bool_)
        for array, old in zip(now, before, strict=True):
            changed |= (self._bits(array) != self._bits(old))[: end - low]
        self._rest = (low + int(changed.argmax())) // self.width if changed.any() else end // self.width

    @staticmethod
    def _bits(array: Array) -> Array:
        return array.view(f"u{array.dtype.itemsize}")
