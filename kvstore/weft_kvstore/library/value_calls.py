"""A slot's calls on whole values: a user's arguments checked, counted, brought to the host, and handed to a `Store`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import numpy as np

from weft_kvstore.arrays.array import Array
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.library.array_traffic import ArrayTraffic
from weft_kvstore.library.key_book import KeyBook
from weft_kvstore.library.many_keys import ManyKeys
from weft_kvstore.library.slot_steps import SlotSteps
from weft_kvstore.library.user_array import checked, checked_outs
from weft_kvstore.runtime.joined_future import finished, joined
from weft_kvstore.store import BulkStore

Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""A dtype and a shape."""


class ValueCalls:
    """`key` is always one key or a list, and the future's result has the same form. All raise StoreRefusedError, at
    once, for arguments that do not fit; then nothing was begun."""

    def __init__(self, store: BulkStore, book: KeyBook, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._book = book
        self._steps = steps
        self._traffic = traffic
        self._many = ManyKeys(store)

    def init(self, key: object, value: Any, by: int | None) -> Future[None]:
        _, keys, specs, (values,) = self._book.listed("init", key, value, rows=None)
        for one, spec in zip(keys, specs, strict=True):
            self._book.check_given(one, spec)
        if by is not None and not 0 <= by < self._book.slots:
            raise StoreRefusedError(f"{self._book.call('init')}: by: slot {by} of {self._book.slots}")
        if by not in {None, self._book.slot} or self._steps.start:  # Who takes over finds what was given.
            return finished(None)
        for one, spec, first in zip(keys, specs, values, strict=True):
            if first is None or self._steps.has_begun(spec.key):
                told = "slot {} has to give a value" if first is None else "slot {} has begun its steps: see set"
                raise StoreRefusedError(f"{self._book.where('init', one)}: {told.format(self._book.slot)}")
        arrays = self._wholes("init", keys, specs, values, "value")

        def give(_: list[int], hosts: list[Array]) -> Future[None]:
            return joined([self._give(spec, first) for spec, first in zip(specs, hosts, strict=True)], _nothing)

        return self._steps.set("init", [spec.key for spec in specs], 0, arrays, give)

    def push(self, call: str, key: object, gradient: Any, step: int | None) -> Future[None]:
        _, keys, specs, (gradients,) = self._book.listed(call, key, gradient, pushes=True)
        arrays, names = self._wholes(call, keys, specs, gradients, "gradient"), [spec.key for spec in specs]
        return self._steps.push(call, names, step, arrays, lambda steps, hosts: self._many.push(names, steps, hosts))

    def pull(self, call: str, key: object, out: Any, version: int | None, *, settled: bool) -> Future[Any]:
        single, specs, outs, arrays = self._asked(call, key, out)
        names = [spec.key for spec in specs]
        versions, guards = self._steps.versions(call, names, version)
        look = self._steps.look if version is None and not self._steps.are_seen(names) else None
        targets = self._traffic.targets(arrays)
        host_outs = [None if number in targets else array for number, array in enumerate(arrays)]

        def begin(_: list[Array]) -> Future[list[Array]]:
            return self._many.pull(names, versions, host_outs, settled=settled, guards=guards, look=look)

        return self._traffic.delivered(self._traffic.bring(names, [], begin), outs, targets, single=single)

    def check_outs(self, call: str, key: object, out: Any) -> None:
        """What `pull` would refuse, before something is begun that belongs to it."""
        self._asked(call, key, out)

    def pull_state(self, key: object, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_state"
        single, _, specs, _ = self._book.listed(call, key)
        names = [spec.key for spec in specs]
        versions, guards = self._steps.versions(call, names, version)

        def begin(_: list[Array]) -> Future[Any]:
            pulled = [self._store.pull_state(n, at, settled=settled) for n, at in zip(names, versions, strict=True)]
            return joined(pulled, lambda found: found[0] if single else found, guards)

        return self._traffic.bring(names, [], begin)

    def set(self, key: object, value: Any, version: int) -> Future[None]:
        _, keys, specs, (values,) = self._book.listed("set", key, value)
        arrays, names = self._wholes("set", keys, specs, values, "value"), [spec.key for spec in specs]
        return self._steps.set(
            "set", names, version, arrays, lambda versions, hosts: self._many.set(names, versions, hosts)
        )

    def read_consistent(self, key: object) -> Future[tuple[int, list[Array]]]:
        call = "read_consistent"
        self._book.check_sync(call)
        _, _, specs, _ = self._book.listed(call, key)
        names = [spec.key for spec in specs]
        return self._traffic.bring(names, [], lambda _: self._store.read_consistent(names))

    def _asked(self, call: str, key: object, out: Any) -> tuple[bool, list[KeyDescription], list[Any], list[Any]]:
        """Whether one key was given; the keys, the caller's arrays, and these as they are written."""
        single, keys, specs, (outs,) = self._book.listed(call, key, out)
        if out is None:
            return single, specs, outs, outs
        forms = [_form(spec) for spec in specs]
        return single, specs, outs, checked_outs(outs, forms, lambda number: self._book.where(call, keys[number]))

    def _wholes(
        self, call: str, keys: Sequence[object], specs: Sequence[KeyDescription], values: Sequence[Any], what: str
    ) -> list[Any]:
        found = []
        for one, spec, value in zip(keys, specs, values, strict=True):
            dtype, shape = _form(spec)
            # What fits is seen at a glance: a step has hundreds of keys, and its caller waits.
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and value.flags.c_contiguous:
                found.append(value)
            else:
                found.append(checked(value, dtype, shape, f"{self._book.where(call, one)}: {what}"))
        return found

    def _give(self, spec: KeyDescription, value: Array) -> Future[None]:
        """The first value."""
        if spec.rows:
            return self._store.set_rows(spec.key, 0, np.arange(len(value)), value)
        return self._store.set(spec.key, 0, value)


def _form(spec: KeyDescription) -> Form:
    return np.dtype(spec.dtype), tuple(spec.shape)


def _nothing(_: object) -> None:
    pass
