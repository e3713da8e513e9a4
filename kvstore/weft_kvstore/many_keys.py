"""Pushes and pulls of several keys: in one call of the store where it has one, else key by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_kvstore.joined_future import joined
from weft_kvstore.store import Array, Store

Outs = Sequence[Array | None]


class ManyKeys:
    """A store, for lists of keys. Keys that are at one step go together."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._push_many: Callable[..., Future[None]] | None = getattr(store, "push_many", None)
        self._pull_many: Callable[..., Future[list[Array]]] | None = getattr(store, "pull_many", None)

    def push(self, names: Sequence[str], steps: Sequence[int], gradients: Sequence[Array]) -> Future[None]:
        """Pushes each key's gradient of its step."""
        if self._push_many is None or len(names) == 1:
            alone = [self._store.push(*each) for each in zip(names, steps, gradients, strict=True)]
            return alone[0] if len(alone) == 1 else joined(alone, _none)
        groups = [
            self._push_many([names[place] for place in places], step, [gradients[place] for place in places])
            for step, places in _by_number(steps)
        ]
        return groups[0] if len(groups) == 1 else joined(groups, _none)

    def pull(
        self, names: Sequence[str], versions: Sequence[int], outs: Outs, *, settled: bool, guards: Sequence[Future[Any]]
    ) -> Future[list[Array]]:
        """Pulls each key's value of its version, into the arrays of `outs` where they are not None. Fails when one of
        `guards` does."""
        if self._pull_many is None or len(names) == 1:
            alone = [
                self._store.pull(name, version, settled=settled) for name, version in zip(names, versions, strict=True)
            ]
            return joined(alone, lambda values: _put(values, outs), guards)
        groups = _by_number(versions)
        futures = [
            self._pull_many([names[place] for place in places], version, settled=settled, out=_own(outs, places))
            for version, places in groups
        ]

        def ordered(found: list[list[Array]]) -> list[Array]:
            values = {
                place: value
                for (_, places), group in zip(groups, found, strict=True)
                for place, value in zip(places, group, strict=True)
            }
            return _put([values[place] for place in range(len(names))], outs)

        return joined(futures, ordered, guards)


def _by_number(numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The places of each number."""
    found: dict[int, list[int]] = {}
    for place, number in enumerate(numbers):
        found.setdefault(number, []).append(place)
    return list(found.items())


def _own(outs: Outs, places: Sequence[int]) -> list[Array] | None:
    """The arrays that the store may write itself: all of them or none."""
    own = [outs[place] for place in places]
    fit = [out for out in own if out is not None and out.flags.c_contiguous]
    return fit if len(fit) == len(own) else None


def _put(values: list[Array], outs: Outs) -> list[Array]:
    """The values where they are wanted."""
    found = []
    for value, out in zip(values, outs, strict=True):
        if out is not None and out is not value:
            np.copyto(out, value)
        found.append(value if out is None else out)
    return found


def _none(_: object) -> None:
    pass
