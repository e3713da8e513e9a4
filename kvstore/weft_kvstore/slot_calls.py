"""What stands behind `KVStore`: a user's calls checked, counted, brought to the host, and handed to a `Store`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

import numpy as np

from weft_kvstore.array_traffic import ArrayTraffic
from weft_kvstore.description import KeyDescription, StoreDescription
from weft_kvstore.joined_future import finished, joined
from weft_kvstore.key_book import KeyBook, listed
from weft_kvstore.key_name import BARRIER_KEY, user_key
from weft_kvstore.many_keys import ManyKeys
from weft_kvstore.meetings import Meetings
from weft_kvstore.push_log import PushedStep, PushLog
from weft_kvstore.step_counts import StepCounts
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import Array, BulkStore, StoreError, StoreRefusedError
from weft_kvstore.tables.ids import check_ids
from weft_kvstore.user_array import checked, checked_ids, checked_out, flat_ids, form_of, is_on_device

R = TypeVar("R")

MAX_STEP: Final = 1 << 62


class SlotCalls:
    """The calls of one slot; `key` is always one key or a list, and the future's result has the same form.

    Raises StoreRefusedError, at once, for arguments that do not fit; then nothing was begun.
    """

    def __init__(self, store: BulkStore, description: StoreDescription, slot: int, step: int) -> None:
        self.store = store
        self.book = KeyBook(description, slot)
        self._description = description
        self._slot = slot
        self._many = ManyKeys(store)
        self._counts = StepCounts(self.book.pushed, step)
        self._meetings = Meetings(store)
        self._unseen = set(self.book.pushed)
        """Keys that the slot pushes and that have not told yet which step they are at."""
        self._log = PushLog(self._counts)
        self._traffic = ArrayTraffic()
        self._lock = threading.Lock()
        """Held while steps are counted."""

    def steps(self, key: object) -> int:
        name = self.book.known(key, "steps").key
        with self._lock:
            self._log.settle([name])
            return self._counts[name]

    def init(self, key: object, value: Any, by: int | None) -> Future[None]:
        _, keys, (values,) = listed(key, self._call("init"), value)
        specs = [self.book.given(one) for one in keys]
        if by is not None and not 0 <= by < self._description.slots:
            raise StoreRefusedError(f"{self._call('init')}: by: slot {by} of {self._description.slots}")
        if by not in {None, self._slot} or self._counts.start:  # Who takes over finds what was given.
            return finished(None)
        arrays = []
        for one, spec, first in zip(keys, specs, values, strict=True):
            if first is None or self._counts.has_begun(spec.key):
                told = "slot {} has to give a value" if first is None else "slot {} has begun its steps: see set"
                raise StoreRefusedError(f"{self.book.where('init', one)}: {told.format(self._slot)}")
            arrays.append(_whole(spec, first, f"{self.book.where('init', one)}: value"))
        return self._traffic.bring(arrays, lambda hosts: joined(list(map(self._set_first, specs, hosts)), _nothing))

    def push(self, call: str, key: object, gradient: Any, step: int | None) -> Future[None]:
        _, keys, (gradients,) = listed(key, self._call(call), gradient)
        specs = [self.book.pushing(one, call, rows=False) for one in keys]
        arrays = [
            _whole(spec, array, f"{self.book.where(call, one)}: gradient")
            for one, spec, array in zip(keys, specs, gradients, strict=True)
        ]
        return self._send(call, specs, step, arrays, self._many.push)

    def push_rows(self, key: object, ids: Any, rows: Any, step: int | None) -> Future[None]:
        call = "push_rows"
        specs, given = self._rows_of(call, key, ids, rows, pushing=True)

        def begin(names: list[str], steps: list[int], hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, hosts)
            pushed = [self.store.push_rows(n, s, *part) for n, s, part in zip(names, steps, parts, strict=True)]
            return joined(pushed, _nothing)

        return self._send(call, specs, step, given, begin)

    def pull(self, call: str, key: object, out: Any, version: int | None, *, settled: bool) -> Future[Any]:
        single, keys, (outs,) = listed(key, self._call(call), out)
        specs = [self.book.find(one, call, rows=False) for one in keys]
        arrays = self._outs(call, keys, outs, [(np.dtype(spec.dtype), tuple(spec.shape)) for spec in specs])
        names, versions = self._at(call, specs, version)
        places = self._traffic.places(arrays)
        host_outs = [None if place in places else array for place, array in enumerate(arrays)]
        look = self._look if version is None and not self._unseen.isdisjoint(names) else None
        guards = self._guards(names, versions, version)
        pulled = self._many.pull(names, versions, host_outs, settled=settled, guards=guards, look=look)
        return self._traffic.delivered(pulled, outs, places, single=single)

    def check_outs(self, call: str, key: object, out: Any) -> None:
        """What `pull` would refuse, before something is begun that belongs to it."""
        _, keys, (outs,) = listed(key, self._call(call), out)
        specs = [self.book.find(one, call, rows=False) for one in keys]
        self._outs(call, keys, outs, [(np.dtype(spec.dtype), tuple(spec.shape)) for spec in specs])

    def pull_rows(self, key: object, ids: Any, out: Any, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_rows"
        single, keys, (wanted, outs) = listed(key, self._call(call), ids, out)
        specs = [self.book.find(one, call, rows=True) for one in keys]
        given = [checked_ids(one, self.book.where(call, name)) for name, one in zip(keys, wanted, strict=True)]
        forms = [
            (np.dtype(spec.dtype), (*form_of(one)[1], *spec.shape[1:])) for spec, one in zip(specs, given, strict=True)
        ]
        given = [self._seen_ids(call, spec, one) for spec, one in zip(specs, given, strict=True)]
        arrays = self._outs(call, keys, outs, forms)
        names, versions = self._at(call, specs, version)
        places, guards = self._traffic.places(arrays), self._guards(names, versions, version)
        host_outs = [None if place in places else array for place, array in enumerate(arrays)]

        def begin(hosts: list[Array]) -> Future[list[Array]]:
            flat = [self._flat_ids(call, spec, one) for spec, one in zip(specs, hosts, strict=True)]
            pulled = [
                self.store.pull_rows(name, one, at, settled=settled)
                for name, one, at in zip(names, flat, versions, strict=True)
            ]
            shapes = [shape for _, shape in forms]
            return joined(pulled, lambda values: _shaped(values, shapes, host_outs), guards)

        return self._traffic.delivered(self._traffic.bring(given, begin), outs, places, single=single)

    def pull_state(self, key: object, version: int | None, *, settled: bool) -> Future[Any]:
        single, keys, _ = listed(key, self._call("pull_state"))
        specs = [self.book.find(one, "pull_state", rows=False) for one in keys]
        names, versions = self._at("pull_state", specs, version)
        pulled = [self.store.pull_state(name, at, settled=settled) for name, at in zip(names, versions, strict=True)]
        return joined(pulled, lambda found: found[0] if single else found, self._guards(names, versions, version))

    def set(self, key: object, value: Any, version: int) -> Future[None]:
        _, keys, (values,) = listed(key, self._call("set"), value)
        specs = [self.book.find(one, "set", rows=False) for one in keys]
        names, versions = self._at("set", specs, version)
        arrays = [
            _whole(spec, array, f"{self.book.where('set', one)}: value")
            for one, spec, array in zip(keys, specs, values, strict=True)
        ]
        return self._traffic.bring(arrays, lambda hosts: self._many.set(names, versions, hosts))

    def set_rows(self, key: object, ids: Any, rows: Any, version: int) -> Future[None]:
        call = "set_rows"
        specs, given = self._rows_of(call, key, ids, rows, pushing=False)
        names, versions = self._at(call, specs, version)

        def begin(hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, hosts)
            done = [self.store.set_rows(n, v, *part) for n, v, part in zip(names, versions, parts, strict=True)]
            return joined(done, _nothing)

        return self._traffic.bring(given, begin)

    def end_step(self, step: int | None) -> Future[StepOutcome | None]:
        with self._lock:
            self._check_ended(step)
            try:
                ended = self._counts.end(step)
            except ValueError as error:
                raise StoreRefusedError(f"{self._call('end_step')}: {error}") from None
        barriers = [self.store.barrier(one, nothing) for one, nothing in ended]
        return joined(barriers, lambda outcomes: outcomes[-1])

    def barrier(self) -> Future[None]:
        if self._description.commit is not None:
            return joined([self.end_step(None)], _nothing)
        if all(key.key != BARRIER_KEY for key in self._description.keys):
            raise StoreRefusedError(f"{self._call('barrier')}: the store was described with barrier = false")
        return self._meetings.meet()

    def set_hyper(self, name: str, value: float, step: int | None, key: object) -> Future[int]:
        of = None if key is None else self.book.known(key, "set_hyper").key
        _check_number(step, f"{self._call('set_hyper')}: step")

        def changed(begun: list[int]) -> int:
            self.book.changed(of, begun[0], {name: float(value)})
            return begun[0]

        return joined([self.store.set_hyper({name: value}, step=step, key=of)], changed)

    def read_consistent(self, key: object) -> Future[tuple[int, list[Array]]]:
        _, keys, _ = listed(key, self._call("read_consistent"))
        return self.store.read_consistent([self.book.find(one, "read_consistent", rows=False).key for one in keys])

    def close(self) -> None:
        self._traffic.close()
        self.store.close()

    def _call(self, call: str) -> str:
        return f"slot {self._slot}: {call}"

    def _send(
        self,
        call: str,
        specs: Sequence[KeyDescription],
        step: int | None,
        arrays: list[Any],
        begin: Callable[[list[str], list[int], list[Array]], Future[None]],
    ) -> Future[None]:
        """Begins a step of each key, and with `begin` its push; what raises has begun none."""
        _check_number(step, f"{self._call(call)}: step")
        names = [spec.key for spec in specs]
        with self._lock:
            self._log.settle(names)
            if step is None:
                self._check_no_gap(call, names)
            taken = self._log.take(names, None if step is None else int(step))
        steps = [one.step for one in taken]
        try:
            pushed = self._traffic.bring(arrays, lambda hosts: begin(names, steps, hosts))
        except BaseException:
            with self._lock:
                self._log.give_back(names, taken)
            raise
        with self._lock:
            self._log.add(names, taken, pushed)
        return pushed

    def _check_no_gap(self, call: str, names: Sequence[str]) -> None:
        """Raises StoreRefusedError where a step before the next one was refused: without it, none after it applies."""
        for name in names:
            failed = self._log.failed(name, self._counts[name])
            if failed is not None and failed.is_refused:
                raise StoreRefusedError(f"{self.book.where(call, user_key(name))}: {_again(failed)}")

    def _check_ended(self, step: int | None) -> None:
        """Raises StoreRefusedError where a step is to be ended whose push was refused: it would count as nothing."""
        _check_number(step, f"{self._call('end_step')}: step")
        self._log.settle(self.book.pushed)
        last = self._counts.last(step)
        for name in self.book.pushed:
            failed = self._log.failed(name, last + 1)
            if failed is not None and failed.is_back:
                raise StoreRefusedError(f"{self.book.where('end_step', user_key(name))}: {_again(failed)}")

    def _at(self, call: str, specs: Sequence[KeyDescription], version: int | None) -> tuple[list[str], list[int]]:
        """The keys' names, and which version of each is meant."""
        _check_number(version, f"{self._call(call)}: version")
        names = [spec.key for spec in specs]
        with self._lock:
            self._log.settle(names)
        return names, [self._counts[name] if version is None else version for name in names]

    def _rows_of(
        self, call: str, key: object, ids: Any, rows: Any, *, pushing: bool
    ) -> tuple[list[KeyDescription], list[Any]]:
        """The tables, and by turns the ids and the rows of each, checked."""
        _, keys, (all_ids, all_rows) = listed(key, self._call(call), ids, rows)
        find = self.book.pushing if pushing else self.book.find
        specs = [find(one, call, rows=True) for one in keys]
        given: list[Any] = []
        for one, spec, some, values in zip(keys, specs, all_ids, all_rows, strict=True):
            where = self.book.where(call, one)
            found = checked_ids(some, where)
            shape = (*form_of(found)[1], *spec.shape[1:])
            given += [self._seen_ids(call, spec, found), checked(values, np.dtype(spec.dtype), shape, f"{where}: rows")]
        return specs, given

    def _flat(self, call: str, specs: Sequence[KeyDescription], hosts: list[Array]) -> list[tuple[Array, Array]]:
        """Ids (n) and rows (n, ...) of each table."""
        found = []
        for spec, ids, rows in zip(specs, hosts[::2], hosts[1::2], strict=True):
            flat = self._flat_ids(call, spec, ids)
            found.append((flat, rows.reshape(len(flat), *spec.shape[1:])))
        return found

    def _flat_ids(self, call: str, spec: KeyDescription, ids: Array) -> Array:
        """The ids (n) as the table takes them. Raises StoreRefusedError for one that it cannot have."""
        where = self.book.where(call, user_key(spec.key))
        flat = flat_ids(ids, where, any_64_bits=spec.growth is not None)
        check_ids(flat, spec, where)
        return flat

    def _seen_ids(self, call: str, spec: KeyDescription, ids: Any) -> Any:
        """`_flat_ids` of ids on the host; a GPU's are looked at once they are there."""
        return ids if is_on_device(ids) else self._flat_ids(call, spec, ids)

    def _look(self, names: Sequence[str], highest: Array) -> None:
        """Raises StoreRefusedError where a key has seen more steps of this slot than this process has begun: it was
        pushed by a process before this one, and what is pushed again would count for nothing."""
        for name, version in zip(names, highest.tolist(), strict=True):
            if name in self._unseen and version > self._counts[name]:
                told = f"it has seen {version} steps of this slot, and this process has begun {self._counts[name]}"
                raise StoreRefusedError(
                    f"{self.book.where('pull', user_key(name))}: {told}: another one was here before it, and what is "
                    f"pushed again counts for nothing; to go on, connect with step={version}, and with a higher "
                    "incarnation= where the other may still live"
                )
        self._unseen.difference_update(names)

    def _set_first(self, spec: KeyDescription, value: Array) -> Future[None]:
        if spec.rows:
            return self.store.set_rows(spec.key, 0, np.arange(len(value)), value)
        return self.store.set(spec.key, 0, value)

    def _outs(
        self, call: str, keys: Sequence[object], outs: Sequence[Any], forms: Sequence[tuple[Any, tuple[int, ...]]]
    ) -> list[Any]:
        return [
            None if out is None else checked_out(out, *form, self.book.where(call, key))
            for key, out, form in zip(keys, outs, forms, strict=True)
        ]

    def _guards(self, names: Sequence[str], versions: Sequence[int], version: int | None) -> list[Future[Any]]:
        """Pushes without which pulls of these versions would wait in vain. `version`: what the caller said of it."""
        found: dict[int, Future[Any]] = {}
        with self._lock:
            for name, at in zip(names, versions, strict=True):
                failed = self._log.failed(name, version)
                if failed is not None:
                    return [_failure(failed)]
                found.update((id(pushed), pushed) for pushed in self._log.waiting(name, at))
        return list(found.values())


def _again(failed: PushedStep) -> str:
    """What is to be done about it."""
    what = "does not count: push it again" if failed.is_back else f"has to be pushed again, with step={failed.step}"
    return f"step {failed.step} {what}; its push failed: {failed.error}"


def _failure(failed: PushedStep) -> Future[Any]:
    """A future that has failed, as the push did."""
    future: Future[Any] = Future()
    error = failed.error
    future.set_exception(type(error)(_again(failed)) if isinstance(error, StoreError) else error)
    return future


def _whole(spec: KeyDescription, value: Any, where: str) -> Any:
    return checked(value, np.dtype(spec.dtype), tuple(spec.shape), where)


def _shaped(values: list[Array], shapes: Sequence[tuple[int, ...]], outs: Sequence[Array | None]) -> list[Array]:
    """Rows in the shape of the ids that asked for them, in the arrays where they are wanted."""
    found = [value.reshape(shape) for value, shape in zip(values, shapes, strict=True)]
    for value, out in zip(found, outs, strict=True):
        if out is not None:
            np.copyto(out, value)
    return found


def _check_number(number: int | None, where: str) -> None:
    if number is None:
        return
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < MAX_STEP:
        raise StoreRefusedError(f"{where}: a number from 0 to 2**62 - 1, not {number!r}")


def _nothing(_: object) -> None:
    pass
