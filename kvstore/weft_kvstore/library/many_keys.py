"""Pushes, sets and pulls of keys that are at several steps: those at one step go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.runtime.joined_future import joined
from weft_kvstore.store import BulkStore

Outs: TypeAlias = Sequence[Array | None]
Look: TypeAlias = Callable[[Sequence[str], Array], None]
"""look(names, versions): told which versions keys are at, (n) int64, where somebody asks. What it raises fails the
pull."""


class ManyKeys:
    """A store, for lists of keys."""

    def __init__(self, store: BulkStore) -> None:
        self._store = store

    def push(self, names: Sequence[str], steps: Sequence[int], gradients: Sequence[Array]) -> Future[None]:
        """Pushes each key's gradient of its step."""
        if len(names) == 1:
            return self._store.push(names[0], steps[0], gradients[0])
        return _sent(self._store.push_many, names, steps, gradients)

    def set(self, names: Sequence[str], versions: Sequence[int], values: Sequence[Array]) -> Future[None]:
        """Makes these the keys' values at their versions."""
        return _sent(self._store.set_many, names, versions, values)

    def pull(
        self,
        names: Sequence[str],
        versions: Sequence[int],
        outs: Outs,
        *,
        settled: bool,
        guards: Sequence[Future[Any]],
        look: Look | None = None,
    ) -> Future[list[Array]]:
        """Pulls each key's value of its version, into the arrays of `outs` where they are not None. Fails when one of
        `guards` does."""
        if len(names) == 1 and look is None:
            own = outs[0] if outs[0] is not None and outs[0].flags.c_contiguous else None
            alone = self._store.pull(names[0], versions[0], settled=settled, out=own)
            return joined([alone], lambda values: _put(values, outs), guards)
        groups = _grouped(versions)
        futures = [
            self._pull([names[number] for number in numbers], version, _own(outs, numbers), look, settled=settled)
            for version, numbers in groups
        ]

        def ordered(found: list[list[Array]]) -> list[Array]:
            values = {
                number: value
                for (_, numbers), group in zip(groups, found, strict=True)
                for number, value in zip(numbers, group, strict=True)
            }
            return _put([values[number] for number in range(len(names))], outs)

        return joined(futures, ordered, guards)

    def _pull(
        self, names: list[str], version: int, out: list[Array] | None, look: Look | None, *, settled: bool
    ) -> Future[list[Array]]:
        """Keys that are at one version."""
        if look is None:
            return self._store.pull_many(names, version, settled=settled, out=out)
        tell = look

        def told(pulled: list[Any]) -> list[Array]:
            tell(names, pulled[0].highest)
            values: list[Array] = pulled[0].values
            return values

        return joined([self._store.pull_versions(names, version, settled=settled, out=out)], told)


def _sent(
    send: Callable[[Sequence[str], int, Sequence[Array]], Future[None]],
    names: Sequence[str],
    steps: Sequence[int],
    arrays: Sequence[Array],
) -> Future[None]:
    """Sends each key's array, those of one step, or version, together."""
    groups = [
        send([names[number] for number in numbers], step, [arrays[number] for number in numbers])
        for step, numbers in _grouped(steps)
    ]
    return groups[0] if len(groups) == 1 else joined(groups, _none)


def _grouped(steps: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The numbers of the keys that are at each step."""
    found: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        found.setdefault(step, []).append(number)
    return list(found.items())


def _own(outs: Outs, numbers: Sequence[int]) -> list[Array] | None:
    """The arrays that the store may write itself: all of them or none."""
    own = [outs[number] for number in numbers]
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
