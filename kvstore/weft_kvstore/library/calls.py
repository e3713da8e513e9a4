"""The calls of a KVStore on values and on rows, of one key or of many."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import MAX_PULLED_ROWS, StoreCalls
from weft_kvstore.client.plan import KeySet, TableKey
from weft_kvstore.description.form import BARRIER_KEY, user_key
from weft_kvstore.description.records import KeyDescription, StoreDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.futures import finished, joined
from weft_kvstore.library.arrays import (
    ArrayTraffic,
    checked,
    checked_ids,
    checked_outs,
    flat_ids,
    form_of,
    is_on_device,
    is_several,
    sum_of,
)
from weft_kvstore.library.key_registry import KeyRegistry
from weft_kvstore.library.steps import Barriers, SlotSteps, check_number, check_priority
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import Pulled
from weft_kvstore.wire.messages import MAX_RUNS

# --- Keys that are at several steps: those at one step go together ----------------------------------------------------


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
    return groups[0] if len(groups) == 1 else joined(groups, _nothing)


def _grouped(steps: Sequence[int]) -> list[tuple[int, list[int]]]:
    """The numbers of the keys that are at each step."""
    found: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        found.setdefault(step, []).append(number)
    return list(found.items())


def _own(outs: Sequence[Array | None], numbers: Sequence[int]) -> list[Array] | None:
    """The arrays that the store may write itself: all of them or none."""
    own = [outs[number] for number in numbers]
    fit = [out for out in own if out is not None and out.flags.c_contiguous]
    return fit if len(fit) == len(own) else None


# ----------------------------------------------------------------------------------------------------------------------
# A slot's calls on whole values: a user's arguments checked, counted, brought to the host, and handed to a `Store`.


MASTER: Final = "weft.master"
"""In a key's state: the float32 value of a key whose users have 16 bits."""

Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""A dtype and a shape."""


@dataclass(frozen=True, slots=True)
class _Several:
    """Gradients of one key of which some are on a GPU: added up once they are on the host."""

    arrays: Sequence[Any]


class ValueCalls:
    """`key` is always one key or a list, and the future's result has the same form. All raise StoreRefusedError, at
    once, for arguments that do not fit; then nothing was begun."""

    def __init__(self, store: StoreCalls, registry: KeyRegistry, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._registry = registry
        self._steps = steps
        self._traffic = traffic

    def key_set(self, key: object) -> KeySet | None:
        """The store's of keys that may be pushed and pulled in one message; None where some cannot be. Errors are told
        by the calls."""
        try:
            _, _, specs, _ = self._registry.listed("pushpull", key, pushes=True)
        except StoreRefusedError:
            return None
        fit = 0 < len(specs) <= MAX_RUNS and not any(spec.half for spec in specs)
        return self._store.key_set([spec.key for spec in specs]) if fit else None

    def init(self, key: object, value: Any, by: int | None) -> Future[None]:
        _, keys, specs, (values,) = self._registry.listed("init", key, value, rows=None)
        for one, spec in zip(keys, specs, strict=True):
            self._registry.check_given(one, spec)
        if by is not None and not 0 <= by < self._registry.slots:
            raise StoreRefusedError(f"{self._registry.call('init')}: by: slot {by} of {self._registry.slots}")
        if by not in {None, self._registry.slot} or self._steps.start:  # Who takes over finds what was given.
            return finished(None)
        for one, spec, first in zip(keys, specs, values, strict=True):
            if first is None or self._steps.has_begun(spec.key):
                told = "slot {} has to give a value" if first is None else "slot {} has begun its steps: see set"
                raise StoreRefusedError(f"{self._registry.where('init', one)}: {told.format(self._registry.slot)}")
        arrays = self._wholes("init", keys, specs, values, "value")

        def give(_: list[int], hosts: list[Array]) -> Future[None]:
            firsts = _as_kept(specs, hosts)
            return joined([self._give(spec, first) for spec, first in zip(specs, firsts, strict=True)], _nothing)

        return self._steps.set("init", [spec.key for spec in specs], 0, arrays, give)

    def push(self, call: str, key: object, gradient: Any, step: int | None, priority: int) -> Future[None]:
        _, keys, specs, (gradients,) = self._registry.listed(call, key, gradient, pushes=True)
        if priority:
            check_priority(priority, self._registry.call(call))
        arrays, names = self._wholes(call, keys, specs, gradients, "gradient"), [spec.key for spec in specs]
        parts = [one.arrays if isinstance(one, _Several) else (one,) for one in arrays]

        def add_up(steps: list[int], hosts: list[Array]) -> Future[None]:
            brought = iter(hosts)
            sums = []
            for spec, some in zip(specs, parts, strict=True):
                mine = [next(brought) for _ in some]
                sums.append(mine[0] if len(mine) == 1 else sum_of(mine, np.dtype(spec.dtype)))
            return _sent(partial(self._store.push, priority=priority), names, steps, _as_kept(specs, sums))

        return self._steps.push(call, names, step, [one for some in parts for one in some], add_up)

    def pull(
        self, call: str, key: object, out: Any, version: int | None, *, settled: bool, priority: int
    ) -> Future[Any]:
        if priority:
            check_priority(priority, self._registry.call(call))
        single, specs, outs, arrays, more = self._asked(call, key, out)
        names = [spec.key for spec in specs]
        versions, guards = self._steps.versions(call, names, version)
        look = self._steps.look if version is None and not self._steps.are_seen(names) else None
        targets = self._traffic.targets(arrays)
        host_outs = [None if number in targets else array for number, array in enumerate(arrays)]
        store_outs = [None if spec.half else out for spec, out in zip(specs, host_outs, strict=True)]
        groups = _grouped(versions)

        def pull_group(version: int, numbers: list[int]) -> Future[list[Array]]:
            some, own = [names[number] for number in numbers], _own(store_outs, numbers)
            if look is None:
                return self._store.pull(some, version, settled=settled, out=own, priority=priority)

            def told(pulled: list[Pulled]) -> list[Array]:
                look(some, pulled[0].highest)
                return pulled[0].values

            return joined([self._store.pull_versions(some, version, settled=settled, out=own, priority=priority)], told)

        def ordered(found: list[list[Array]]) -> list[Array]:
            values = {
                number: value
                for (_, numbers), group in zip(groups, found, strict=True)
                for number, value in zip(numbers, group, strict=True)
            }
            return _as_given(specs, [values[number] for number in range(len(names))], host_outs)

        def begin(_: list[Array]) -> Future[list[Array]]:
            return joined([pull_group(*group) for group in groups], ordered, guards)

        pulled = self._traffic.delivered(self._traffic.bring(names, [], begin), outs, targets, single=single)
        return self._traffic.copied(pulled, more, single=single) if more else pulled

    def pushpull(self, key: object, gradient: Any, out: Any, step: int | None, priority: int) -> Future[Any]:
        """A push and a pull."""
        self._asked("pushpull", key, out)  # What `pull` would refuse, before something is begun that belongs to it.
        pushed = self.push("pushpull", key, gradient, step, priority)
        pulled = self.pull("pushpull", key, out, None if step is None else step + 1, settled=False, priority=priority)
        return joined([pulled, pushed], itemgetter(0))

    def pull_state(self, key: object, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_state"
        single, _, specs, _ = self._registry.listed(call, key)
        names = [spec.key for spec in specs]
        versions, guards = self._steps.versions(call, names, version)

        def begin(_: list[Array]) -> Future[Any]:
            pulled = [self._state(spec, at, settled=settled) for spec, at in zip(specs, versions, strict=True)]
            return joined(pulled, lambda found: found[0] if single else found, guards)

        return self._traffic.bring(names, [], begin)

    def restore(self, key: object, value: Any, state: Any, step: int) -> Future[None]:
        call = "restore"
        _, keys, specs, (values, states) = self._registry.listed(call, key, value, state)
        check_number(step, f"{self._registry.call(call)}: step", may_lack=False)
        arrays: list[Any] = []
        places: list[tuple[str, int]] = []
        for one, spec, first, named in zip(keys, specs, values, states, strict=True):
            where = self._registry.where(call, one)
            given = dict(named or {})
            master = given.pop(MASTER, None) if spec.half is not None else None
            wanted = self._registry.state_of(spec) if given or named else ()
            if given.keys() != set(wanted):
                told = f"{', '.join(given) or 'nothing'}; the rule keeps {', '.join(wanted) or 'nothing'}"
                raise StoreRefusedError(f"{where}: state: {told}, and all of it is needed")
            for number, name in enumerate(wanted, 1):
                dtype = np.dtype(spec.dtype)
                arrays.append(checked(given[name], dtype, tuple(spec.shape), f"{where}: state {name!r}"))
                places.append((spec.key, number))
            whole = first if master is None else master
            dtype = _dtype(spec) if master is None else np.dtype(spec.dtype)
            arrays.append(checked(whole, dtype, tuple(spec.shape), f"{where}: value"))
            places.append((spec.key, 0))
        kept = {spec.key: spec.dtype for spec in specs}

        def give(versions: list[int], hosts: list[Array]) -> Future[None]:
            """The rule's state first: with the value steps may begin, and what is of one key arrives in order."""
            parts = zip(places, cycle(versions), hosts, strict=False)
            return joined(
                [
                    self._store.restore(name, version, host.astype(kept[name], copy=False), number)
                    for (name, number), version, host in parts
                ],
                _nothing,
            )

        return self._steps.set(call, [spec.key for spec in specs], step, arrays, give)

    def set(self, key: object, value: Any, version: int) -> Future[None]:
        _, keys, specs, (values,) = self._registry.listed("set", key, value)
        arrays, names = self._wholes("set", keys, specs, values, "value"), [spec.key for spec in specs]
        return self._steps.set(
            "set",
            names,
            version,
            arrays,
            lambda versions, hosts: _sent(self._store.set, names, versions, _as_kept(specs, hosts)),
        )

    def read_consistent(self, key: object) -> Future[tuple[int, list[Array]]]:
        call = "read_consistent"
        self._registry.check_sync(call)
        _, _, specs, _ = self._registry.listed(call, key)
        names = [spec.key for spec in specs]
        read = self._traffic.bring(names, [], lambda _: self._store.read_consistent(names))
        return joined([read], lambda found: (found[0][0], _as_given(specs, found[0][1], [None] * len(names))))

    def _state(self, spec: KeyDescription, version: int, *, settled: bool) -> Future[Any]:
        """The rule's state; of a key of 16 bits with what its shard has in float32."""
        state = self._store.pull_state(spec.key, version, settled=settled)
        if spec.half is None:
            return state
        kept: Future[Any] = self._store.pull(spec.key, version, settled=settled, as_kept=True)
        return joined([state, kept], lambda both: {**both[0], MASTER: both[1]})

    def _asked(
        self, call: str, key: object, out: Any
    ) -> tuple[bool, list[KeyDescription], list[Any], list[Any], list[tuple[int, Any, Any]]]:
        """Whether one key was given; the keys; of each the caller's first array, and it as it is written; and further
        arrays: the number of the key, the caller's, and it as it is written."""
        firsts, others = out, []
        if isinstance(out, list | tuple):
            single = isinstance(key, str | int | np.integer)
            groups = [one if isinstance(one, list | tuple) and one else [one] for one in ([out] if single else out)]
            others = [(number, one) for number, group in enumerate(groups) for one in group[1:]]
            firsts = groups[0][0] if single else [group[0] for group in groups]
        single, keys, specs, (outs,) = self._registry.listed(call, key, firsts)
        if out is None:
            return single, specs, outs, outs, []

        def written(some: Sequence[tuple[int, Any]]) -> list[Any]:
            forms = [_form(specs[number]) for number, _ in some]
            return checked_outs(
                [one for _, one in some], forms, lambda at: self._registry.where(call, keys[some[at][0]])
            )

        arrays, more = written(list(enumerate(outs))), written(others)
        return single, specs, outs, arrays, [(*one, array) for one, array in zip(others, more, strict=True)]

    def _wholes(
        self, call: str, keys: Sequence[object], specs: Sequence[KeyDescription], values: Sequence[Any], what: str
    ) -> list[Any]:
        found: list[Any] = []
        for one, spec, value in zip(keys, specs, values, strict=True):
            dtype, shape = _form(spec)
            # What fits is seen at a glance: a step has hundreds of keys, and its caller waits.
            if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and value.flags.c_contiguous:
                found.append(value)
            elif what == "gradient" and is_several(value, shape):
                where = f"{self._registry.where(call, one)}: {what}"
                parts = [checked(part, dtype, shape, f"{where} {at}") for at, part in enumerate(value)]
                kept = np.dtype(spec.dtype)
                found.append(_Several(parts) if any(map(is_on_device, parts)) else sum_of(parts, kept))
            else:
                found.append(checked(value, dtype, shape, f"{self._registry.where(call, one)}: {what}"))
        return found

    def _give(self, spec: KeyDescription, value: Array) -> Future[None]:
        """The first value."""
        if spec.rows:
            return self._store.set_rows(spec.key, 0, np.arange(len(value)), value)
        return self._store.set(spec.key, 0, value)


def _form(spec: KeyDescription) -> Form:
    return _dtype(spec), tuple(spec.shape)


def _dtype(spec: KeyDescription) -> np.dtype[Any]:
    """Of users' arrays."""
    return np.dtype(spec.half or spec.dtype)


def _as_kept(specs: Sequence[KeyDescription], arrays: Sequence[Array]) -> list[Array]:
    """As the shards keep the keys."""
    return [array.astype(spec.dtype, copy=False) for spec, array in zip(specs, arrays, strict=True)]


def _as_given(specs: Sequence[KeyDescription], values: Sequence[Array], outs: Sequence[Array | None]) -> list[Array]:
    """Values in the types that users have, in the arrays where they are wanted."""
    with np.errstate(over="ignore"):
        found = [value.astype(_dtype(spec), copy=False) for spec, value in zip(specs, values, strict=True)]
    for number, out in enumerate(outs):
        if out is not None:
            if out is not found[number]:
                np.copyto(out, found[number])
            found[number] = out
    return found


def _nothing(_: object) -> None:
    pass


# --- A slot's calls on rows of tables: ids and rows checked, counted, brought to the host, and handed to a `Store` ----


class RowCalls:
    """`key` is always one table or a list, and the future's result has the same form. All raise StoreRefusedError, at
    once, for arguments that do not fit, but for ids on a GPU, which are looked at on the host: that is told by the
    future, and there the step does not count."""

    def __init__(self, store: StoreCalls, registry: KeyRegistry, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._registry = registry
        self._steps = steps
        self._traffic = traffic

    def table(self, key: object) -> TableKey | None:
        """A table that the slot pushes, looked up once for all such calls of its rows as need only have these checked.
        None for any other key."""
        try:
            spec = self._registry.find(key, "push_rows", rows=True, pushes=True)
        except StoreRefusedError:
            return None
        return self._store.table(spec.key) if spec.half is None else None

    def push(self, key: object, ids: Any, rows: Any, step: int | None, priority: int) -> Future[None]:
        call = "push_rows"
        if priority:
            check_priority(priority, self._registry.call(call))
        specs, given = self._sent(call, key, ids, rows, pushing=True)
        names = [spec.key for spec in specs]

        def begin(steps: list[int], hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, given, hosts)
            pushed = [self._store.push_rows(*one, priority=priority) for one in _calls(names, steps, parts)]
            return joined(pushed, _nothing)

        return self._steps.push(call, names, step, given, begin)

    def set(self, key: object, ids: Any, rows: Any, version: int) -> Future[None]:
        call = "set_rows"
        specs, given = self._sent(call, key, ids, rows, pushing=False)
        names = [spec.key for spec in specs]

        def begin(versions: list[int], hosts: list[Array]) -> Future[None]:
            parts = self._flat(call, specs, given, hosts)
            return joined([self._store.set_rows(*one) for one in _calls(names, versions, parts)], _nothing)

        return self._steps.set(call, names, version, given, begin)

    def pull(
        self, key: object, ids: Any, out: Any, version: int | None, *, settled: bool, priority: int
    ) -> Future[Any]:
        call = "pull_rows"
        if priority:
            check_priority(priority, self._registry.call(call))
        single, keys, specs, (wanted, outs) = self._registry.listed(call, key, ids, out, rows=True)
        given = self._asked(call, keys, wanted)
        shapes = [(*form_of(one)[1], *spec.shape[1:]) for spec, one in zip(specs, given, strict=True)]
        forms = [(_dtype(spec), shape) for spec, shape in zip(specs, shapes, strict=True)]
        arrays = checked_outs(outs, forms, lambda number: self._registry.where(call, keys[number]))
        names, given = [spec.key for spec in specs], self._seen(call, specs, given)
        versions, guards = self._steps.versions(call, names, version)
        targets = self._traffic.targets(arrays)
        host_outs = [None if number in targets else array for number, array in enumerate(arrays)]

        def begin(hosts: list[Array]) -> Future[list[Array]]:
            flat = self._brought(call, specs, given, hosts)
            pulled = [
                self._store.pull_rows(name, one, at, settled=settled, priority=priority)
                for name, one, at in zip(names, flat, versions, strict=True)
            ]
            return joined(pulled, lambda values: _shaped(values, specs, shapes, host_outs), guards)

        return self._traffic.delivered(self._traffic.bring(names, given, begin), outs, targets, single=single)

    def pull_state(self, key: object, ids: Any, version: int | None, *, settled: bool) -> Future[Any]:
        call = "pull_state_rows"
        single, keys, specs, (wanted,) = self._registry.listed(call, key, ids, rows=True)
        given = self._asked(call, keys, wanted)
        shapes = [(*form_of(one)[1], *spec.shape[1:]) for spec, one in zip(specs, given, strict=True)]
        names, given = [spec.key for spec in specs], self._seen(call, specs, given)
        versions, guards = self._steps.versions(call, names, version)

        def shaped(states: list[Any]) -> Any:
            found = [
                {name: rows.reshape(shape) for name, rows in state.items()}
                for state, shape in zip(states, shapes, strict=True)
            ]
            return found[0] if single else found

        def begin(hosts: list[Array]) -> Future[Any]:
            flat = self._brought(call, specs, given, hosts)
            pulled = [
                self._store.pull_state_rows(name, one, at, settled=settled)
                for name, one, at in zip(names, flat, versions, strict=True)
            ]
            return joined(pulled, shaped, guards)

        return self._traffic.bring(names, given, begin)

    def _sent(
        self, call: str, key: object, ids: Any, rows: Any, *, pushing: bool
    ) -> tuple[list[KeyDescription], list[Any]]:
        """The tables, and by turns the ids and the rows of each, checked."""
        _, keys, specs, (all_ids, all_rows) = self._registry.listed(call, key, ids, rows, rows=True, pushes=pushing)
        given: list[Any] = []
        for one, spec, some, values in zip(keys, specs, all_ids, all_rows, strict=True):
            where = self._registry.where(call, one)
            found = checked_ids(some, where)
            shape = (*form_of(found)[1], *spec.shape[1:])
            (seen,) = self._seen(call, [spec], [found])
            given += [seen, checked(values, _dtype(spec), shape, f"{where}: rows")]
        return specs, given

    def _asked(self, call: str, keys: Sequence[object], wanted: Sequence[Any]) -> list[Any]:
        """The ids of each table, in the caller's shape."""
        found = [checked_ids(one, self._registry.where(call, name)) for name, one in zip(keys, wanted, strict=True)]
        for name, ids in zip(keys, found, strict=True):
            count = math.prod(form_of(ids)[1])
            if count > MAX_PULLED_ROWS:
                told = f"{count} rows; a call may ask for {MAX_PULLED_ROWS}"
                raise StoreRefusedError(f"{self._registry.where(call, name)}: {told}")
        return found

    def _flat(
        self, call: str, specs: Sequence[KeyDescription], given: list[Any], hosts: list[Array]
    ) -> list[tuple[Array, Array]]:
        """Ids (n) and rows (n, ...) of each table."""
        all_ids = self._brought(call, specs, given[::2], hosts[::2])
        return [
            (ids, rows.reshape(len(ids), *spec.shape[1:]).astype(spec.dtype, copy=False))
            for spec, ids, rows in zip(specs, all_ids, hosts[1::2], strict=True)
        ]

    def _brought(
        self, call: str, specs: Sequence[KeyDescription], given: Sequence[Any], hosts: Sequence[Array]
    ) -> list[Array]:
        """Ids (n) that are on the host by now: those that were on a GPU before are looked at now. Raises as `_seen`."""
        return [
            ids if ids is before else self._seen(call, [spec], [ids])[0]
            for spec, before, ids in zip(specs, given, hosts, strict=True)
        ]

    def _seen(self, call: str, specs: Sequence[KeyDescription], all_ids: Sequence[Any]) -> list[Any]:
        """Ids (n) as the tables take them; a GPU's as they are. Raises StoreRefusedError for one that a table cannot
        have."""
        found = []
        for spec, ids in zip(specs, all_ids, strict=True):
            flat = ids
            if not is_on_device(ids):
                where = self._registry.where(call, user_key(spec.key))
                flat = flat_ids(ids, where, any_64_bits=spec.growth is not None)
                check_ids(flat, spec, where)
            found.append(flat)
        return found


def _calls(
    names: Sequence[str], numbers: Sequence[int], parts: Sequence[tuple[Array, Array]]
) -> list[tuple[str, int, Array, Array]]:
    """What is handed over of each table."""
    return [(name, number, *part) for name, number, part in zip(names, numbers, parts, strict=True)]


def _shaped(
    values: list[Array],
    specs: Sequence[KeyDescription],
    shapes: Sequence[tuple[int, ...]],
    outs: Sequence[Array | None],
) -> list[Array]:
    """Rows in the shape of the ids that asked for them, in the arrays where they are wanted."""
    return _as_given(specs, [value.reshape(shape) for value, shape in zip(values, shapes, strict=True)], outs)


# --- What stands behind `KVStore`: the calls of one slot on values and on rows, and those on the slot as a whole ------


class SlotCalls:
    """Raises StoreRefusedError, at once, for arguments that do not fit; then nothing was begun."""

    def __init__(self, store: StoreCalls, description: StoreDescription, slot: int, step: int) -> None:
        self.registry = KeyRegistry(description, slot)
        self._store = store
        self._description = description
        self._traffic = ArrayTraffic()
        self.steps = SlotSteps(store, self.registry, self._traffic, step)
        self._barriers = Barriers(store)
        self._changing = threading.Lock()
        """Held for a moment, while the book is told of a change."""
        self.values = ValueCalls(store, self.registry, self.steps, self._traffic)
        self.rows = RowCalls(store, self.registry, self.steps, self._traffic)

    def steps_of(self, key: object) -> int:
        return self.steps.of(self.registry.known(key, "steps").key)

    def end_step(self, step: int | None) -> Future[StepOutcome | None]:
        def end(ended: Sequence[tuple[int, list[str]]]) -> Future[StepOutcome | None]:
            barriers = [self._store.barrier(one, nothing) for one, nothing in ended]
            return joined(barriers, lambda outcomes: outcomes[-1])

        return self.steps.end(step, end)

    def barrier(self) -> Future[None]:
        if self._description.commit is not None:
            return joined([self.end_step(None)], _nothing)
        if all(key.key != BARRIER_KEY for key in self._description.keys):
            raise StoreRefusedError(f"{self.registry.call('barrier')}: the store was described with barrier = false")
        return self._barriers.meet()

    def set_hyper(self, name: str, value: float, step: int | None, key: object) -> Future[int]:
        of = None if key is None else self.registry.known(key, "set_hyper").key
        number = self.registry.checked_number(name, value, key)
        check_number(step, f"{self.registry.call('set_hyper')}: step")

        def changed(begun: list[int]) -> int:
            with self._changing:
                self.registry.changed(of, begun[0], {name: number})
            return begun[0]

        return joined([self._store.set_hyper({name: number}, step=step, key=of)], changed)

    def close(self) -> None:
        self._traffic.close()
        self._store.close()
