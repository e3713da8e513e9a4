"""The calls of a `KVStore` on values and on rows, of one key or of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from operator import itemgetter
from typing import Any, Final, TypeAlias, overload

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.calls import MAX_PULLED_ROWS, StoreCalls
from weft_kvstore.client.plan import KEYS_KEPT, KeyLists, KeySet, TableKey
from weft_kvstore.client.row_operation import Ids
from weft_kvstore.description.form import UserKey
from weft_kvstore.description.records import KeyDescription
from weft_kvstore.errors import StoreRefusedError
from weft_kvstore.futures import finished, joined
from weft_kvstore.library.arrays import (
    ArrayTraffic,
    Outs,
    checked,
    checked_ids,
    checked_out,
    checked_outs,
    flat_ids,
    form_of,
    is_on_device,
    is_several,
    sum_of,
)
from weft_kvstore.library.key_registry import KeyRegistry
from weft_kvstore.library.steps import SlotSteps, check_number, checked_priority, is_whole
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.store import Pulled
from weft_kvstore.wire.messages import MAX_RUNS, PayloadKind

# ----------------------------------------------------------------------------------------------------------------------
# A slot's calls on whole values: a user's arguments checked, counted, brought to the host, and handed to a `Store`.


MASTER: Final = "weft.master"
"""In a key's state: the float32 value of a key whose users have 16 bits."""

Keys: TypeAlias = list[str] | list[int] | list[UserKey] | tuple[UserKey, ...]

Form: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""A dtype and a shape."""


@dataclass(frozen=True, slots=True)
class _Several:
    """Gradients of one key of which some are on a GPU: added up once they are on the host."""

    arrays: Sequence[Any]


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a call, `given` by their user, and looked up. `is_plain`: arrays travel as they are given, and one
    message may name all of them."""

    given: list[Any]
    specs: list[KeyDescription]
    names: list[str]
    known: KeySet
    single: bool
    is_plain: bool


class ValueCalls:
    """The calls of a `KVStore` on whole values. `key` is always one key or a list, and the future's result has the same
    form. All raise StoreRefusedError, at once, for arguments that do not fit; then nothing was begun."""

    def __init__(self, store: StoreCalls, registry: KeyRegistry, steps: SlotSteps, traffic: ArrayTraffic) -> None:
        self._store = store
        self._registry = registry
        self._steps = steps
        self._traffic = traffic
        most = KEYS_KEPT + 4 * len(registry.keys)
        self._pushed: KeyLists[_Keys] = KeyLists(most)
        """Keys that the slot pushes, as they were given to a call: looked up once."""
        self._pulled: KeyLists[_Keys] = KeyLists(most)

    def _keys(self, call: str, key: Any, *, pushes: bool) -> _Keys:
        cached = self._pushed if pushes else self._pulled
        hashed = key
        if type(key) is not str and type(key) is not int:
            is_list = (type(key) is list or type(key) is tuple) and not {*map(type, key)} - {str, int}
            hashed = tuple(key) if is_list else None
        found = None if hashed is None else cached.get(hashed)
        if found is None:
            single, given, specs, _ = self._registry.listed(call, key, pushes=pushes)
            names = [spec.key for spec in specs]
            plain = len(specs) <= MAX_RUNS and not any(spec.half for spec in specs)
            found = _Keys(given, specs, names, self._store.key_set(names), single, plain)
            if hashed is not None:
                cached.keep(hashed, found, len(names))
        return found

    def _at_each(
        self, keys: _Keys, numbers: Sequence[int], begin: Callable[[KeySet, int, Sequence[int] | None], Future[Any]]
    ) -> Future[Any]:
        """Begins a call for the keys that are at one step, or version, together: `begin(keys, number, which)`, None for
        all. Ends with a list in the order of the keys, where they are at several."""
        first = numbers[0] if numbers else 0
        if numbers.count(first) == len(numbers):
            return begin(keys.known, first, None)
        groups: dict[int, list[int]] = {}
        for which, number in enumerate(numbers):
            groups.setdefault(number, []).append(which)
        begun = [
            begin(self._store.key_set([keys.names[which] for which in some]), number, some)
            for number, some in groups.items()
        ]

        def ordered(found: list[Any]) -> list[Any]:
            values = [value for some in found for value in some or ()]
            order = [which for some in groups.values() for which in some]
            return [value for _, value in sorted(zip(order, values, strict=False), key=itemgetter(0))]

        return joined(begun, ordered)

    def init(self, key: UserKey | Keys, value: Any = None, *, by: int | None = 0) -> Future[None]:
        """Sets the initial value of keys whose initializer is "given"; of a table, all rows.

        All slots may call it, so that each can run the same program: the value of slot `by` is used. With `by=None`
        only this slot calls it. Pulls and the first update wait for the value. Later calls change nothing in async
        mode, or if the process connected at a later `step`; in sync mode they are rejected once a step was applied.
        """
        _, keys, specs, (values,) = self._registry.listed("init", key, value, rows=None)
        for one, spec in zip(keys, specs, strict=True):
            self._registry.check_given(one, spec)
        if by is not None and (not is_whole(by) or not 0 <= by < self._registry.slots):
            raise StoreRefusedError(f"{self._registry.call('init')}: by: slot {by!r} of {self._registry.slots}")
        if by not in {None, self._registry.slot} or self._steps.start:  # Who takes over finds what was given.
            return finished(None)
        for one, spec, first in zip(keys, specs, values, strict=True):
            if first is None or self._steps.has_begun(spec.key):
                detail = "slot {} has to give a value" if first is None else "slot {} has begun its steps: see set"
                raise StoreRefusedError(f"{self._registry.where('init', one)}: {detail.format(self._registry.slot)}")
        arrays = self._wholes("init", keys, specs, values, "value")

        def give(_: list[int], hosts: list[Array]) -> Future[None]:
            firsts = _as_kept(specs, hosts)
            return joined([self._give(spec, first) for spec, first in zip(specs, firsts, strict=True)], _nothing)

        return self._steps.set("init", [spec.key for spec in specs], 0, arrays, give)

    def push(self, key: UserKey | Keys, gradient: Any, *, step: int | None = None, priority: int = 0) -> Future[None]:
        """Adds this slot's gradient to the key's next step, or to `step`. Pushing a step twice counts once.

        A higher `priority` is sent first; equal ones follow the keys' priorities in the description. The future ends
        when the shards have the gradient, which may be before they apply it.
        """
        call = "push"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        return self._begin_push(call, self._keys(call, key, pushes=True), gradient, step, priority)

    def _begin_push(self, call: str, keys: _Keys, gradient: Any, step: int | None, priority: int) -> Future[None]:
        """Gradients that are not yet what the store takes are checked, brought to the host, and added up."""
        arrays = keys.known.fitting(gradient, single=keys.single) if keys.is_plain else None
        parts: list[Sequence[Any]] | None = None
        if arrays is None:
            given = keys.given[0] if keys.single else keys.given
            _, _, _, (gradients,) = self._registry.listed(call, given, gradient)
            wholes = self._wholes(call, keys.given, keys.specs, gradients, "gradient")
            parts = [one.arrays if isinstance(one, _Several) else (one,) for one in wholes]
            arrays = [one for some in parts for one in some]

        def send(steps: list[int], hosts: list[Array]) -> Future[None]:
            sums = hosts
            if parts is not None:
                brought = iter(hosts)
                groups = [[next(brought) for _ in some] for some in parts]
                added = [
                    some[0] if len(some) == 1 else sum_of(some, np.dtype(spec.dtype))
                    for spec, some in zip(keys.specs, groups, strict=True)
                ]
                sums = _as_kept(keys.specs, added)

            def begin(some: KeySet, step: int, which: Sequence[int] | None) -> Future[None]:
                arrays = sums if which is None else [sums[one] for one in which]
                return self._store.push(some, step, arrays, priority=priority)

            return self._at_each(keys, steps, begin)

        return self._steps.push(call, keys.names, step, arrays, send)

    @overload
    def pull(
        self, key: UserKey, *, version: int | None = ..., settled: bool = ..., out: Any = ..., priority: int = ...
    ) -> Future[Array]: ...
    @overload
    def pull(
        self, key: Keys, *, version: int | None = ..., settled: bool = ..., out: Any = ..., priority: int = ...
    ) -> Future[list[Array]]: ...
    def pull(
        self,
        key: UserKey | Keys,
        *,
        version: int | None = None,
        settled: bool = False,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """The key's value, including all that this slot has pushed, or at `version`.

        The result is a new array, or `out`, which may be on a GPU or a PyTorch parameter. In async mode `settled` waits
        for that version from every slot. A higher `priority` is sent first. Fails if a push that it waits for failed.
        """
        call = "pull"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        keys = self._keys(call, key, pushes=False)
        return self._begin_pull(call, keys, out, version, settled=settled, priority=priority)

    def _begin_pull(
        self, call: str, keys: _Keys, out: Any, version: int | None, *, settled: bool, priority: int
    ) -> Future[Any]:
        """The store itself writes arrays of `out` that it can; others, and those of another type than its, are written
        from what was pulled."""
        outs: Sequence[Array | None] | None
        outs = None if out is None else keys.known.fitting(out, single=keys.single, writable=True)
        groups: Outs | None = None
        if not keys.is_plain or (out is not None and outs is None):
            groups = self._outs(call, keys, out)
            firsts = [group[0][1] if group else None for group in groups]
            outs = [
                one if isinstance(one, np.ndarray) and one.flags.c_contiguous and not spec.half else None
                for spec, one in zip(keys.specs, firsts, strict=True)
            ]
        single = keys.single and groups is None

        def send(versions: list[int], _: list[Array]) -> Future[Any]:
            """The versions of keys that were not checked yet are compared with the steps begun."""
            checks_steps = version is None and not self._steps.unchecked.isdisjoint(keys.names)

            def begin(some: KeySet, version: int, which: Sequence[int] | None) -> Future[Any]:
                own: Any = outs if outs is None or which is None else [outs[one] for one in which]
                own = None if own is None or type(None) in map(type, own) else own
                wanted = some if len(some) <= MAX_RUNS else some.names
                if not checks_steps:
                    return self._store.pull(wanted, version, settled=settled, out=own, single=single, priority=priority)

                def values(pulled: list[Pulled]) -> Any:
                    self._steps.check_steps(some.names, pulled[0].highest)
                    return pulled[0].values[0] if single else pulled[0].values

                pulled = self._store.pull_versions(some.names, version, settled=settled, out=own, priority=priority)
                return joined([pulled], values)

            found = self._at_each(keys, versions, begin)
            return found if groups is None else joined([found], lambda values: _as_given(keys.specs, values[0]))

        found = self._steps.pull(call, keys.names, version, [], send)
        if groups is None:
            return found
        return self._traffic.deliver(self._registry.call(call), keys.names, found, groups, single=keys.single)

    @overload
    def pushpull(
        self, key: UserKey, gradient: Any, *, step: int | None = ..., out: Any = ..., priority: int = ...
    ) -> Future[Array]: ...
    @overload
    def pushpull(
        self, key: Keys, gradient: Any, *, step: int | None = ..., out: Any = ..., priority: int = ...
    ) -> Future[list[Array]]: ...
    def pushpull(
        self, key: UserKey | Keys, gradient: Any, *, step: int | None = None, out: Any = None, priority: int = 0
    ) -> Future[Any]:
        """`push`, then `pull` of the version that includes it, in one message. `out` may be the gradient itself."""
        call = "pushpull"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        keys = self._keys(call, key, pushes=True)
        arrays = keys.known.fitting(gradient, single=keys.single) if keys.is_plain else None
        outs = None if out is None else keys.known.fitting(out, single=keys.single, writable=True)
        if arrays and (out is None or outs is not None):
            begun = self._steps.push(
                call,
                keys.names,
                step,
                arrays,
                lambda steps, hosts: self._store.pushpull(
                    keys.known, steps[0], hosts, out=outs, single=keys.single, priority=priority
                ),
                pulls=True,
            )
            if begun is not None:
                return begun
        self._outs(call, keys, out)  # What `pull` would refuse, before something is begun that belongs to it.
        pushed = self._begin_push(call, keys, gradient, step, priority)
        version = None if step is None else step + 1
        pulled = self._begin_pull(call, keys, out, version, settled=False, priority=priority)
        return joined([pulled, pushed], itemgetter(0))

    def pull_state(self, key: UserKey | Keys, *, version: int | None = None, settled: bool = False) -> Future[Any]:
        """The optimizer's state of a key, such as momentum, by name; each of the key's shape."""
        call = "pull_state"
        single, _, specs, _ = self._registry.listed(call, key)

        def send(versions: list[int], _: list[Array]) -> Future[Any]:
            pulled = [self._state(spec, at, settled=settled) for spec, at in zip(specs, versions, strict=True)]
            return joined(pulled, lambda found: found[0] if single else found)

        return self._steps.pull(call, [spec.key for spec in specs], version, [], send)

    def set(self, key: UserKey | Keys, value: Any, *, version: int) -> Future[None]:
        """Sets the key's value at a version that has not passed; immediately in async mode."""
        keys = self._keys("set", key, pushes=False)
        _, _, _, (values,) = self._registry.listed("set", key, value)
        arrays = self._wholes("set", keys.given, keys.specs, values, "value")
        return self._steps.set(
            "set",
            keys.names,
            version,
            arrays,
            lambda _, hosts: self._store.set(keys.names, int(version), _as_kept(keys.specs, hosts)),
        )

    def restore(self, key: UserKey | Keys, value: Any, state: Any = None, *, step: int) -> Future[None]:
        """Restores keys from your own checkpoint after `step` steps: values from `pull`, and state from `pull_state` or
        None.

        Training continues with the same bits. Call it from one slot, on new shards, before any push; every slot
        connects with this `step` and pulls before it pushes. Tables have `restore_rows`. Not with `commit`.
        """
        call = "restore"
        _, keys, specs, (values, states) = self._registry.listed(call, key, value, state)
        check_number(step, f"{self._registry.call(call)}: step", may_lack=False)
        arrays: list[Any] = []
        places: list[tuple[str, int]] = []
        for one, spec, first, named in zip(keys, specs, values, states, strict=True):
            where = self._registry.where(call, one)
            given = dict(named or {})
            master = given.pop(MASTER, None) if spec.half is not None else None
            for number, name in enumerate(self._state_names(spec, given, where, required=bool(named)), 1):
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

    def read_consistent(self, key: Keys) -> Future[tuple[int, list[Array]]]:
        """(version, values): the values of several keys at one version, the newest available. Sync mode only."""
        call = "read_consistent"
        self._registry.check_sync(call)
        _, _, specs, _ = self._registry.listed(call, key)
        names = [spec.key for spec in specs]
        read = self._traffic.bring(self._registry.call(call), names, [], lambda _: self._store.read_consistent(names))
        return joined([read], lambda found: (found[0][0], _as_given(specs, found[0][1])))

    def _state(self, spec: KeyDescription, version: int, *, settled: bool) -> Future[Any]:
        """The rule's state; of a key of 16 bits with what its shard has in float32."""
        state = self._store.pull_state(spec.key, version, settled=settled)
        if spec.half is None:
            return state
        kept: Future[Any] = self._store.pull(spec.key, version, settled=settled, as_kept=True)
        return joined([state, kept], lambda both: {**both[0], MASTER: both[1]})

    def _state_names(
        self, spec: KeyDescription, given: Mapping[str, Any], where: str, *, required: bool
    ) -> tuple[str, ...]:
        """The names of the rule's arrays of a key; none where none were given. Raises StoreRefusedError for others."""
        wanted = self._registry.state_of(spec) if given or required else ()
        if given.keys() != set(wanted):
            detail = f"{', '.join(given) or 'nothing'}; the rule keeps {', '.join(wanted) or 'nothing'}"
            raise StoreRefusedError(f"{where}: state: {detail}, and all of it is needed")
        return wanted

    def _outs(self, call: str, keys: _Keys, out: Any) -> Outs:
        """The arrays that each key's value goes to: one, or several, as devices have them."""
        given = keys.given[0] if keys.single else keys.given
        _, _, specs, (outs,) = self._registry.listed(call, given, out)
        groups = [one if isinstance(one, list | tuple) and one else [one] for one in outs]
        forms = [_form(spec) for spec in specs]
        return checked_outs(groups, forms, lambda number: self._registry.where(call, keys.given[number]))

    def _wholes(
        self, call: str, keys: Sequence[object], specs: Sequence[KeyDescription], values: Sequence[Any], what: str
    ) -> list[Any]:
        found: list[Any] = []
        for one, spec, value in zip(keys, specs, values, strict=True):
            dtype, shape = _form(spec)
            # A fast check first: a step has hundreds of keys, and its caller waits.
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


def _as_given(specs: Sequence[KeyDescription], values: Sequence[Array]) -> list[Array]:
    """Values in the types that users have."""
    with np.errstate(over="ignore"):
        return [value.astype(_dtype(spec), copy=False) for spec, value in zip(specs, values, strict=True)]


def _nothing(_: object) -> None:
    pass


# --- A slot's calls on rows of tables: ids and rows checked, counted, brought to the host, and handed to a `Store` ----


class RowCalls(ValueCalls):
    """And those on rows of tables. `key` is always one table or a list. Ids on a GPU are looked at on the host: that
    they do not fit is told by the future, and there the step does not count."""

    def push_rows(
        self, key: UserKey | Keys, ids: Any, rows: Any, *, step: int | None = None, priority: int = 0
    ) -> Future[None]:
        """`push` of rows of a table. `ids` are integers of any shape, `rows` has the shape (...ids, ...row).

        Rows of the same id are added up, and negative ids are padding. A table is pushed once a step; `ids` may be
        empty."""
        call = "push_rows"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True, pushes=True)
        return self._steps.push(call, names, step, arrays, partial(self._send, sent, priority=priority))

    def set_rows(self, key: UserKey | Keys, ids: Any, rows: Any, *, version: int) -> Future[None]:
        """`set` of rows of a table."""
        call = "set_rows"
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True)
        return self._steps.set(call, names, version, arrays, partial(self._send, sent, kind=PayloadKind.VALUE))

    def restore_rows(self, key: UserKey | Keys, ids: Any, rows: Any, state: Any = None, *, step: int) -> Future[None]:
        """`restore` of rows of a table: values from `pull_rows`, and state from `pull_state_rows` or None.

        Several calls may restore rows of one table, at the same step. Call it before `restore` of keys that are no
        tables, and wait for it: the other slots wait for those."""
        call = "restore_rows"
        check_number(step, f"{self._registry.call(call)}: step", may_lack=False)
        sent, names, arrays, _ = self._tables(call, key, ids, rows, sends=True)
        _, _, _, (states,) = self._registry.listed(call, key, state, rows=True)
        of_state: list[tuple[int, int]] = []
        for number, (one, named) in enumerate(zip(sent, states, strict=True)):
            given = named or {}
            for array, name in enumerate(self._state_names(one.spec, given, one.where, required=False), 1):
                dtype = np.dtype(one.spec.dtype)
                arrays.append(checked(given[name], dtype, one.shape, f"{one.where}: state {name!r}"))
                of_state.append((number, array))

        def give(steps: list[int], hosts: list[Array]) -> Future[None]:
            """Values first: there is state of rows that are there."""
            begun = [self._send(sent, steps, hosts, kind=PayloadKind.RESTORED)]
            for (number, array), values in zip(of_state, hosts[2 * len(sent) :], strict=True):
                one, kind = sent[number], PayloadKind.RESTORED_STATE
                own = one.checked_ids(hosts[2 * number])
                begun.append(self._store.push_table(one.table, array, own, one.kept(values), kind=kind))
            return joined(begun, _nothing)

        return self._steps.set(call, names, step, arrays, give)

    def pull_rows(
        self,
        key: UserKey | Keys,
        ids: Any,
        *,
        version: int | None = None,
        settled: bool = False,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`pull` of rows of a table, with the shape (...ids, ...row). Ids may repeat; a negative id gives zeros."""
        call = "pull_rows"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        wanted, names, arrays, single = self._tables(call, key, ids, out=out, pulls=True)
        pull = partial(self._pull_rows, wanted, settled=settled, priority=priority, single=single)
        return self._deliver(call, wanted, self._steps.pull(call, names, version, arrays, pull), single=single)

    def pull_state_rows(
        self, key: UserKey | Keys, ids: Any, *, version: int | None = None, settled: bool = False
    ) -> Future[Any]:
        """`pull_state` of rows of a table, shaped as by `pull_rows`."""
        call = "pull_state_rows"
        wanted, names, arrays, single = self._tables(call, key, ids, pulls=True)
        pull = partial(self._pull_rows, wanted, settled=settled, state=True, single=single)
        return self._steps.pull(call, names, version, arrays, pull)

    def pushpull_rows(
        self,
        key: UserKey | Keys,
        ids: Any,
        rows: Any,
        pull_ids: Any = None,
        *,
        step: int | None = None,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`push_rows`, then `pull_rows` of the version that includes it, in one message.

        The result are the new rows of `ids`, or of `pull_ids`, such as those of the next batch."""
        call = "pushpull_rows"
        if priority:
            priority = checked_priority(priority, self._registry.call(call))
        is_same = pull_ids is None
        sent, names, arrays, single = self._tables(
            call, key, ids, rows, out if is_same else None, sends=True, pushes=True, pulls=is_same
        )
        wanted, others = sent, list[Any]()
        if not is_same:
            wanted, _, others, _ = self._tables(call, key, pull_ids, out=out, pulls=True)

        def send(steps: list[int], hosts: list[Array]) -> Future[Any]:
            begun = []
            for number, (one, pulled, at) in enumerate(zip(sent, wanted, steps, strict=True)):
                own = one.checked_ids(hosts[2 * number])
                ids = None if is_same else pulled.checked_ids(hosts[2 * len(sent) + number])
                kept, shape = one.kept(hosts[2 * number + 1]), pulled.shape
                begun.append(
                    self._store.pushpull_table(one.table, at, own, kept, wanted=ids, shape=shape, priority=priority)
                )
            return begun[0] if single else joined(begun, list)

        found = self._steps.push(call, names, step, arrays + others, send, pulls=True)
        if found is None:  # A push has failed, or is not on the host yet: one after the other.
            pushed = self._steps.push(call, names, step, arrays, partial(self._send, sent, priority=priority))
            pull = partial(self._pull_rows, wanted, priority=priority, single=single)
            version = None if step is None else step + 1
            pulled = self._steps.pull(call, names, version, others or arrays[::2], pull)
            found = joined([pulled, pushed], itemgetter(0))
        return self._deliver(call, wanted, found, single=single)

    def _tables(
        self,
        call: str,
        key: object,
        ids: Any,
        rows: Any = None,
        out: Any = None,
        *,
        sends: bool = False,
        pushes: bool = False,
        pulls: bool = False,
    ) -> tuple[list[_Table], list[str], list[Any], bool]:
        """The tables of a call and their names; the arrays that have to be on the host, which are by turns the ids and
        the rows of each where it `sends`, else the ids; whether one key was given."""
        single, keys, specs, (all_ids, all_rows, outs) = self._registry.listed(
            call, key, ids, rows, out, rows=True, pushes=pushes
        )
        tables: list[_Table] = []
        arrays: list[Any] = []
        for one, spec, some, values, target in zip(keys, specs, all_ids, all_rows, outs, strict=True):
            where = f"slot {self._registry.slot}: {call} of key {one!r}"
            table = _Table(self._store.table(spec.key), where, some, target)
            tables.append(table)
            arrays.append(table.ids)
            if sends:
                arrays.append(table.checked_rows(values))
            if pulls and math.prod(table.shape[: len(table.shape) - len(spec.shape) + 1]) > MAX_PULLED_ROWS:
                rows = math.prod(form_of(table.ids)[1])
                raise StoreRefusedError(f"{where}: {rows} rows; a call may ask for {MAX_PULLED_ROWS}")
        return tables, [spec.key for spec in specs], arrays, single

    def _send(
        self,
        sent: list[_Table],
        steps: list[int],
        hosts: list[Array],
        *,
        kind: PayloadKind = PayloadKind.GRADIENT,
        priority: int = 0,
    ) -> Future[None]:
        begun = []
        for number, (one, step) in enumerate(zip(sent, steps, strict=True)):
            own, kept = one.checked_ids(hosts[2 * number]), one.kept(hosts[2 * number + 1])
            begun.append(self._store.push_table(one.table, step, own, kept, kind=kind, priority=priority))
        return begun[0] if len(begun) == 1 else joined(begun, _nothing)

    def _pull_rows(
        self,
        wanted: list[_Table],
        versions: list[int],
        hosts: list[Array],
        *,
        single: bool,
        settled: bool = False,
        state: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """Rows, or the rule's `state` of them."""
        pulled = [
            self._store.pull_table(
                one.table, at, one.checked_ids(ids), settled=settled, state=state, shape=one.shape, priority=priority
            )
            for one, at, ids in zip(wanted, versions, hosts, strict=True)
        ]
        return pulled[0] if single else joined(pulled, list)

    def _deliver(self, call: str, wanted: list[_Table], found: Future[Any], *, single: bool) -> Future[Any]:
        """Rows in the types that users have, and in the arrays that they have given for them."""
        if not any(one.out is not None or one.spec.half for one in wanted):
            return found
        specs = [one.spec for one in wanted]
        given = joined([found], lambda values: _as_given(specs, values if single else values[0]))
        names = [spec.key for spec in specs]
        outs = [[] if one.out is None else [one.out] for one in wanted]
        return self._traffic.deliver(self._registry.call(call), names, given, outs, single=single)


class _Table:
    """A table of a call. Its `ids` are checked at once, those of a GPU once they are on the host: `shape` is that of
    their rows. `out` is an array for these, as it was given and as it is written."""

    def __init__(self, table: TableKey, where: str, ids: Any, out: Any) -> None:
        spec = table.key
        self.table, self.spec, self.where = table, spec, where
        if type(ids) is not np.ndarray or ids.dtype != np.int64 or not ids.size:
            ids = checked_ids(ids, where)
        self.ids = ids
        self._checked = None if is_on_device(ids) else self._check(ids)
        self.shape = (*form_of(ids)[1], *spec.shape[1:])
        self.out = None if out is None else (out, checked_out(out, _dtype(spec), self.shape, where))

    def checked_ids(self, ids: Array) -> Ids:
        """The ids, once they are on the host. Raises StoreRefusedError for an id that the table cannot have."""
        return self._checked or self._check(ids)

    def checked_rows(self, rows: Any) -> Any:
        """Rows that are sent. Raises StoreRefusedError."""
        is_plain = type(rows) is np.ndarray and self.spec.half is None and rows.flags.c_contiguous
        if is_plain and rows.dtype == self.table.layout.dtype and rows.shape == self.shape:
            return rows
        return checked(rows, _dtype(self.spec), self.shape, f"{self.where}: rows")

    def kept(self, rows: Array) -> Array:
        """Rows as the shards keep the table."""
        return rows.astype(self.table.layout.dtype, copy=False)

    def _check(self, ids: Array) -> Ids:
        flat = ids
        if ids.ndim != 1 or ids.dtype != np.int64 or not ids.flags.c_contiguous:
            flat = flat_ids(ids, self.where, any_64_bits=self.spec.growth is not None)
        return flat, check_ids(flat, self.spec, self.where)
