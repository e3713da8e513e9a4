"""What stands behind `KVStore`: the calls of one slot on values and on rows, and those on the slot as a whole."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from weft_kvstore.description.key_name import BARRIER_KEY
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.library.array_traffic import ArrayTraffic
from weft_kvstore.library.key_book import KeyBook
from weft_kvstore.library.meetings import Meetings
from weft_kvstore.library.row_calls import RowCalls
from weft_kvstore.library.slot_steps import SlotSteps, check_number
from weft_kvstore.library.value_calls import ValueCalls
from weft_kvstore.runtime.joined_future import joined
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BulkStore


class SlotCalls:
    """Raises StoreRefusedError, at once, for arguments that do not fit; then nothing was begun."""

    def __init__(self, store: BulkStore, description: StoreDescription, slot: int, step: int) -> None:
        self.book = KeyBook(description, slot)
        self._store = store
        self._description = description
        self._traffic = ArrayTraffic()
        self._steps = SlotSteps(store, self.book, self._traffic, step)
        self._meetings = Meetings(store)
        self._changing = threading.Lock()
        """Held for a moment, while the book is told of a change."""
        self.values = ValueCalls(store, self.book, self._steps, self._traffic)
        self.rows = RowCalls(store, self.book, self._steps, self._traffic)

    def steps(self, key: object) -> int:
        return self._steps.of(self.book.known(key, "steps").key)

    def end_step(self, step: int | None) -> Future[StepOutcome | None]:
        def end(ended: Sequence[tuple[int, list[str]]]) -> Future[StepOutcome | None]:
            barriers = [self._store.barrier(one, nothing) for one, nothing in ended]
            return joined(barriers, lambda outcomes: outcomes[-1])

        return self._steps.end(step, end)

    def barrier(self) -> Future[None]:
        if self._description.commit is not None:
            return joined([self.end_step(None)], _nothing)
        if all(key.key != BARRIER_KEY for key in self._description.keys):
            raise StoreRefusedError(f"{self.book.call('barrier')}: the store was described with barrier = false")
        return self._meetings.meet()

    def set_hyper(self, name: str, value: float, step: int | None, key: object) -> Future[int]:
        of = None if key is None else self.book.known(key, "set_hyper").key
        number = self.book.checked_number(name, value, key)
        check_number(step, f"{self.book.call('set_hyper')}: step")

        def changed(begun: list[int]) -> int:
            with self._changing:
                self.book.changed(of, begun[0], {name: number})
            return begun[0]

        return joined([self._store.set_hyper({name: number}, step=step, key=of)], changed)

    def close(self) -> None:
        self._traffic.close()
        self._store.close()


def _nothing(_: object) -> None:
    pass
