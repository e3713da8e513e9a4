"""A slot's calls of one key take effect in their order: requests come behind the values that were set before. Pure.

A request is a message of control, which overtakes data. A pull would miss the value; a word that there is nothing would
end the step for which the value was meant, and then it would come too late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft_kvstore.operations.operation import Link, Operation


@dataclass(slots=True, eq=False)
class _Behind:
    """A request and the links that it is for; of its keys, by place, the numbers of the calls that it comes behind."""

    operation: Operation
    links: Sequence[Link]
    missing: dict[int, set[int]]


class SetsUnderWay:
    """`_of_key` has, by the key's place, the numbers of the calls that set it and have not ended; `_before` what comes
    behind each of those calls. False where none is under way."""

    __slots__ = ("_before", "_of_key")

    def __init__(self) -> None:
        self._of_key: dict[int, set[int]] = {}
        self._before: dict[int, list[_Behind]] = {}

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def begin(self, operation: Operation, links: Sequence[Link]) -> None:
        """Begins it: what of it comes behind values that were set, once those calls have ended, however they do."""
        missing = {place: set(before) for place in operation.asks_of if (before := self._of_key.get(place))}
        for place in operation.sets:
            self._of_key.setdefault(place, set()).add(operation.number)
        if missing:
            behind = _Behind(operation, links, missing)
            for number in set().union(*missing.values()):
                self._before.setdefault(number, []).append(behind)
            for link in links:
                operation.because[link.shard] = "it comes behind a value that was set and has not arrived"
        if not missing or operation.hold(missing.keys()):
            for link in links:
                operation.begin(link)

    def ended(self, operation: Operation) -> None:
        """A call has ended: nothing comes behind it any more."""
        for place in operation.sets:
            left = self._of_key.get(place, set())
            left.discard(operation.number)
            if not left:
                self._of_key.pop(place, None)
        for behind in self._before.pop(operation.number, ()):
            if not behind.operation.ended:
                _go_on(behind, operation)

    def close(self) -> None:
        """Nothing goes on any more."""
        self._of_key.clear()
        self._before.clear()


def _go_on(behind: _Behind, before: Operation) -> None:
    free = []
    for place in before.sets:
        left = behind.missing.get(place)
        if left is not None:
            left.discard(before.number)
            if not left:
                free.append(place)
                del behind.missing[place]
    if not behind.missing:
        behind.operation.because.clear()
    if free:
        behind.operation.go_on(free, behind.links, whole=not behind.missing)
