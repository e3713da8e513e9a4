"""The store as a library: push gradients, pull parameters, from a plain Python program."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeAlias, overload
from weakref import WeakSet

import msgspec
import numpy as np

from weft_graph.program import Update
from weft_graph.rules.built_in import rule_name
from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation, HyperOperation
from weft_kvstore.client.operation import KeyOperation, RowOperation
from weft_kvstore.client.plan import KeyList, Keys
from weft_kvstore.client.store_client import Store, StoreClient
from weft_kvstore.description.check import rule_of
from weft_kvstore.description.form import BARRIER_KEY, UserKey, read_description, user_key
from weft_kvstore.description.records import KeyDescription, Mode, StoreDescription, is_given
from weft_kvstore.encryption import CurveKeys, read_curve_keys
from weft_kvstore.errors import StoreError, StoreRefusedError
from weft_kvstore.futures import finished, joined, nothing
from weft_kvstore.hyper import HyperTimeline
from weft_kvstore.library.calls import (
    Call,
    KeyCall,
    SlotSteps,
    check_number,
    checked_priority,
    consistent_read,
    is_whole,
)
from weft_kvstore.library.row_calls import MASTER, RowCall
from weft_kvstore.library.user_arrays import (
    ArrayTraffic,
    as_kept,
    as_users_have,
    checked,
    user_dtype,
)
from weft_kvstore.library.waits import Barriers, await_shards
from weft_kvstore.local import LocalSlot, LocalStore
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.growing_array import TablePlace
from weft_kvstore.settings import LinkSettings
from weft_kvstore.store import ClientStatistics, StepOutcome
from weft_kvstore.wire.messages import PayloadKind, Reading

Described: TypeAlias = StoreDescription | str | os.PathLike[str]
"""A description, or the path of the file that has it."""

UserKeys: TypeAlias = list[str] | list[int] | list[UserKey] | tuple[UserKey, ...]

DEFAULTS = LinkSettings()

CHANGES_KEPT: Final = 1 << 15
"""Changes of hyper-parameters that are remembered at most. Where there were more, the later half of them is."""


class KVStore:
    """A worker's connection to a store, as one slot. Made by `connect` (shards are processes) or `local` (this
    process).

    Calls return a future at once. Wrong arguments raise StoreRefusedError; other errors end the future, which has a
    deadline. A call takes one key, or a list of keys with a list of values; its future ends when all are done. Arrays
    are NumPy's, or any that support DLPack or the CUDA array interface. Do not write to an array that was passed in
    until the future has ended. If a push or set fails, its array may still be read: push the step again, or close the
    store, before you write to it.

    Steps are counted for each key. A push is the key's next step. A pull waits for the steps that this slot has pushed:
    in sync mode from all slots, in async mode from this one. `step=` and `version=` override this; version v includes
    steps 0 to v - 1. A rejected push keeps its step: push again with that `step=`, or later pulls, pushes and
    `end_step` of the key fail.

    Calls for one key take effect in order. Threads may share a store; a forked process has to connect again. Callbacks
    of futures run on a thread of their own, one after the other, and may wait; one that is added to a future that has
    ended runs at once, on the caller's thread.
    """

    def __init__(self, store: Store, description: StoreDescription, slot: int, *, step: int = 0) -> None:
        """Over any store that is slot `slot` of this description; `step` is the first to be counted."""
        self.description = description
        self.slot = slot
        self._process = OwnProcess()
        self._by_slot: dict[int, KVStore] = {}
        """Of a local store, who has each slot, once `at_slot` was called."""
        self._store = store
        self._registry, self._traffic = Keys(description, slot), ArrayTraffic()
        self._hyper = HyperTimeline(description)
        self._steps = SlotSteps(store.failed, self._registry, self._traffic, step)
        own = [(index, key) for index, key in enumerate(description.keys) if key.key == BARRIER_KEY]
        self._barriers = Barriers(store, KeyList([own[0][1]], [own[0][0]], slot, single=True)) if own else None
        self._whole = partial(KeyCall, self._registry, store)
        self._rows = partial(RowCall, self._registry, store)
        _stores.add(self)

    @classmethod
    def connect(
        cls,
        description: Described,
        slot: int,
        *,
        wait_s: float = 60.0,
        timeout_s: float | None = None,
        step: int = 0,
        incarnation: int = 1,
        settings: LinkSettings = DEFAULTS,
        endpoints: Sequence[str] | None = None,
        curve_keys: CurveKeys | str | os.PathLike[str] | None = None,
    ) -> KVStore:
        """Slot `slot` of a store whose shards are processes: `python -m weft_kvstore --description FILE --shard N`.

        Waits up to `wait_s` seconds for every shard; 0 does not wait. `timeout_s` is the deadline of every future, 60
        by default. A process that replaces one that died gives a higher `incarnation`, and the `step` to continue at.
        `endpoints` replace those of the description. `curve_keys` are this process's keys, or their file, if links are
        encrypted. Raises OSError, DescriptionError, ValueError for a wrong slot or keys, StoreError with the shard.
        """
        described = _read(description)
        slot = int(slot) if isinstance(slot, np.integer) else slot
        step, incarnation = _whole("step", step), _whole("incarnation", incarnation, least=1)
        link, wait_s = _settings(settings, timeout_s), _seconds("wait_s", wait_s, least=0.0)
        keys = (
            curve_keys if curve_keys is None or isinstance(curve_keys, CurveKeys) else read_curve_keys(Path(curve_keys))
        )
        client = StoreClient(
            described, slot, incarnation=incarnation, settings=link, endpoints=endpoints, curve_keys=keys
        )
        try:
            here = described if endpoints is None else msgspec.structs.replace(described, shards=tuple(endpoints))
            await_shards(client, here, slot, wait_s)
            return cls(client, described, slot, step=step)
        except BaseException:
            client.close()
            raise

    @classmethod
    def local(
        cls,
        description: Described,
        *,
        timeout_s: float | None = None,
        step: int = 0,
        settings: LinkSettings = DEFAULTS,
        tables: TablePlace | None = None,
    ) -> KVStore:
        """Slot 0 of a store within this process: no shards, no sockets, the same bits. `at_slot` gives the others, for
        threads. `step`: the first to be counted, where the store is restored. `tables` says from what size on rows of
        tables lie in a file. Raises OSError and DescriptionError."""
        described = _read(description)
        step = _whole("step", step)
        store = LocalStore(described, settings=_settings(settings, timeout_s), tables=tables)
        return cls(store, described, 0, step=step)

    def at_slot(self, slot: int, *, step: int | None = None) -> KVStore:
        """Another slot of a local store, which counts its own steps. With `step` it counts anew from there, as a
        process that takes the slot over. Closing it closes nothing. Raises ValueError."""
        self._process.check()
        if not isinstance(self._store, LocalSlot):
            raise StoreError(f"this store is connected as slot {self.slot}; slot {slot} takes a `connect` of its own")
        slot = int(slot) if isinstance(slot, np.integer) else slot
        store, first = self._store.at_slot(slot), 0 if step is None else _whole("step", step)
        self._by_slot.setdefault(self.slot, self)
        same = self._by_slot.get(slot) if step is None else None
        made = KVStore(store, self.description, slot, step=first) if same is None else copy(same)
        made._store = store
        _stores.add(made)
        self._by_slot[slot], made._by_slot = made, self._by_slot
        return made

    @property
    def keys(self) -> tuple[UserKey, ...]:
        """All keys, in the description's order."""
        return self._registry.keys

    @property
    def slots(self) -> int:
        """How many slots the store has."""
        return self.description.slots

    @property
    def rule(self) -> str:
        """What the rule is called."""
        return rule_name(self.description.rule)

    def hyper(self, key: UserKey, *, step: int | None = None) -> Mapping[str, float]:
        """The rule's numbers for the key's update of a step, schedules and multipliers included, and what this object
        has changed by `set_hyper`, even if shards refused it; of the next step of this slot where it is left out."""
        where, found = self._registry.where("hyper", key), self._registry.find(key, "hyper")
        check_number(step, f"{where}: step")
        step = self._steps.of(found.key) if step is None else int(step)
        at = dict(self._hyper.of(found, rule_of(self.description, found)).at(step))
        # Looked at last: on another thread something may have been forgotten meanwhile.
        first = self._hyper.known_from(found.key)
        if step < first:
            raise StoreRefusedError(f"{where}, step {step}: what was changed before step {first} is forgotten")
        return at

    def set_hyper(self, name: str, value: float, *, step: int | None = None, key: UserKey | None = None) -> Future[int]:
        """Changes a hyper-parameter, such as `lr`, from a step on, for all keys or one. The result is the step.

        It replaces the number or schedule on all shards. `step` is by default this slot's next, the first of which it
        has pushed no key; an earlier one is rejected. Every slot may make the same change, as each worker's scheduler
        does, or one slot for all. Of different values for one step that of the highest slot holds.
        """
        where, call = self._registry.where, self._registry.call("set_hyper")
        index = None if key is None else self._registry.index_of(key, "set_hyper")
        found = None if index is None else self.description.keys[index]
        try:
            scope = self._hyper.scope(found, name)
            number = scope.checked(self.slot, value)
        except ValueError as error:
            raise StoreRefusedError(f"{call if key is None else where('set_hyper', key)}: {error}") from None
        check_number(step, f"{call}: step")

        def send(first: int) -> Future[int]:
            of = None if found is None else found.key
            self._hyper.set(first, self.slot, of or "", name, number)
            self._hyper.keep(CHANGES_KEPT)
            return self._store.submit(HyperOperation(first, {name: number}, of, index))

        return self._steps.change(scope.names, step, send)

    def steps(self, key: UserKey) -> int:
        """The number of steps of this key that this slot has begun, which is the version that its pulls ask for."""
        return self._steps.of(self._registry.find(key, "steps").key)

    # --- Calls on whole values. Each raises StoreRefusedError for arguments that do not fit; then nothing was begun.

    def init(self, key: UserKey | UserKeys, value: Any = None, *, by: int | None = 0) -> Future[None]:
        """Sets the initial value of keys whose initializer is "given"; of a table, all rows.

        All slots may call it, so that each can run the same program: the value of slot `by` is used. With `by=None`
        only this slot calls it. Pulls and the first update wait for the value. Later calls change nothing in async
        mode, or if the process connected at a later `step`; in sync mode they are rejected once a step was applied.
        """
        where, call = self._registry.where, "init"
        keys = self._registry.key_list(key, call, rows=None)
        values = self._registry.each(call, keys, value)
        for one, spec in zip(keys.user_keys, keys.keys, strict=True):
            if not is_given(spec):
                detail = 'the description gives its first value; with initializer = "given" a worker gives it'
                if spec.update is Update.GRADIENT:
                    detail = 'with update = "gradient" its value is the sum of the last step; update = "mean" keeps one'
                raise StoreRefusedError(f"{where(call, one)}: {detail}")
        if by is not None and (not is_whole(by) or not 0 <= by < self.slots):
            raise StoreRefusedError(f"{self._registry.call(call)}: by: slot {by!r} of {self.slots}")
        if by not in {None, self.slot} or self._steps.start:  # Who takes over finds what was given.
            return finished(None)
        for one, spec, first in zip(keys.user_keys, keys.keys, values, strict=True):
            if first is None or self._steps.of(spec.key):
                detail = "has to give a value"
                if first is not None:
                    instead = f"where it has no value yet, set({one!r}, value, version=0) gives it one"
                    detail = f"has begun its steps: {instead}"
                raise StoreRefusedError(f"{where(call, one)}: slot {self.slot} {detail}")
        arrays = [
            checked(first, user_dtype(spec), tuple(spec.shape), f"{where(call, one)}: value")
            for one, spec, first in zip(keys.user_keys, keys.keys, values, strict=True)
        ]

        def give(_: list[int], hosts: list[Array]) -> Future[None]:
            calls = [
                self._rows("set_rows", one, np.arange(len(first)), first)
                if spec.rows
                else self._whole("set", self._registry.key_list(one, call), first)
                for one, spec, first in zip(keys.user_keys, keys.keys, hosts, strict=True)
            ]
            return joined([each.begin([0], each.arrays) for each in calls], nothing)

        return self._steps.set(call, keys.names, 0, arrays, give)

    def push(
        self, key: UserKey | UserKeys, gradient: Any, *, step: int | None = None, priority: int = 0
    ) -> Future[None]:
        """Adds this slot's gradient to the key's next step, or to `step`. Pushing a step twice counts once.

        A higher `priority` is sent first; equal ones follow the keys' priorities in the description. The future ends
        when the shards have the gradient, which may be before they apply it.
        """
        keys = self._registry.key_list(key, "push", pushes=True)
        return self._call(self._whole("push", keys, gradient), step, priority)

    def push_rows(
        self, key: UserKey | UserKeys, ids: Any, rows: Any, *, step: int | None = None, priority: int = 0
    ) -> Future[None]:
        """`push` of rows of a table. `ids` are integers of any shape, `rows` has the shape (...ids, ...row).

        Rows of the same id are added up, and negative ids are padding. A table is pushed once a step; `ids` may be
        empty."""
        return self._call(self._rows("push_rows", key, ids, rows), step, priority)

    def _call(self, call: Call, number: int | None, priority: int = 0, *, settled: bool = False) -> Future[Any]:
        """Begins a call that pushes a step, or pulls a version, or both. What is pulled has the types that users have,
        and is in the arrays that they have given for it."""
        if type(priority) is not int or priority:
            priority = checked_priority(priority, self._registry.call(call.name))
        pushes, steps, keys = call.kind is not None, self._steps, call.keys
        if pushes and steps.start:
            steps.check_scale(call.name)
        check = steps.check if pushes or number is None else None
        reading = Reading.SETTLED if settled else Reading.OWN
        begin = partial(call.begin, check=check, reading=reading, priority=priority)
        begun = (steps.push if pushes else steps.pull)(call.name, keys.names, number, call.arrays, begin)
        if steps.start:
            begun = steps.or_not_restored(keys.names, begun)
        if call.outs is None:
            return begun
        found = joined([begun], lambda one: as_users_have(keys.keys, one if keys.single else one[0]))
        where = self._registry.call(call.name)
        return self._traffic.deliver(where, keys.names, found, call.outs, single=keys.single)

    @overload
    def pull(
        self, key: UserKey, *, version: int | None = ..., settled: bool = ..., out: Any = ..., priority: int = ...
    ) -> Future[Array]: ...
    @overload
    def pull(
        self, key: UserKeys, *, version: int | None = ..., settled: bool = ..., out: Any = ..., priority: int = ...
    ) -> Future[list[Array]]: ...
    def pull(
        self,
        key: UserKey | UserKeys,
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
        keys = self._registry.key_list(key, "pull")
        return self._call(self._whole("pull", keys, out=out), version, priority, settled=settled)

    def pull_rows(
        self,
        key: UserKey | UserKeys,
        ids: Any,
        *,
        version: int | None = None,
        settled: bool = False,
        out: Any = None,
        priority: int = 0,
    ) -> Future[Any]:
        """`pull` of rows of a table, with the shape (...ids, ...row). Ids may repeat; a negative id gives zeros."""
        return self._call(self._rows("pull_rows", key, ids, out=out), version, priority, settled=settled)

    @overload
    def pushpull(
        self, key: UserKey, gradient: Any, *, step: int | None = ..., out: Any = ..., priority: int = ...
    ) -> Future[Array]: ...
    @overload
    def pushpull(
        self, key: UserKeys, gradient: Any, *, step: int | None = ..., out: Any = ..., priority: int = ...
    ) -> Future[list[Array]]: ...
    def pushpull(
        self, key: UserKey | UserKeys, gradient: Any, *, step: int | None = None, out: Any = None, priority: int = 0
    ) -> Future[Any]:
        """`push`, then `pull` of the version that includes it, in one message. `out` may be the gradient itself."""
        keys = self._registry.key_list(key, "pushpull", pushes=True)
        return self._call(self._whole("pushpull", keys, gradient, out=out), step, priority)

    def pushpull_rows(
        self,
        key: UserKey | UserKeys,
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
        return self._call(self._rows("pushpull_rows", key, ids, rows, out, pull_ids), step, priority)

    def pull_state(self, key: UserKey | UserKeys, *, version: int | None = None, settled: bool = False) -> Future[Any]:
        """The optimizer's state of a key, such as momentum, by name; each of the key's shape."""
        keys = self._registry.key_list(key, "pull_state")
        return self._call(self._whole("pull_state", keys), version, settled=settled)

    def pull_state_rows(
        self, key: UserKey | UserKeys, ids: Any, *, version: int | None = None, settled: bool = False
    ) -> Future[Any]:
        """`pull_state` of rows of a table, shaped as by `pull_rows`."""
        return self._call(self._rows("pull_state_rows", key, ids), version, settled=settled)

    def set(self, key: UserKey | UserKeys, value: Any, *, version: int) -> Future[None]:
        """Sets the key's value at a version that has not passed; in async and stale mode behind what this slot
        has pushed before, whatever the version."""
        return self._set(self._whole("set", self._registry.key_list(key, "set"), value), version)

    def set_rows(self, key: UserKey | UserKeys, ids: Any, rows: Any, *, version: int) -> Future[None]:
        """`set` of rows of a table; of an id that is there twice the last row counts."""
        return self._set(self._rows("set_rows", key, ids, rows), version)

    def _set(self, call: Call, version: int) -> Future[None]:
        def begin(versions: list[int], hosts: list[Array]) -> Future[None]:
            if self.description.mode is not Mode.SYNC:  # There 0 would be a first value, which changes no later one.
                versions = [max(one, 1) for one in versions]
            return call.begin(versions, hosts)

        return self._steps.set(call.name, call.keys.names, version, call.arrays, begin)

    def restore(self, key: UserKey | UserKeys, value: Any, state: Any = None, *, step: int) -> Future[None]:
        """Restores keys from your own checkpoint after `step` steps: values from `pull`, and state from `pull_state` or
        None.

        Training continues with the same bits; without a state, the rule's begins anew. Call it from one slot, on new
        shards; every slot connects with this `step`, and calls `barrier` before it pushes. Tables have `restore_rows`.
        Not with `commit`.
        """
        call = "restore"
        keys = self._registry.key_list(key, call)
        values, states = (self._registry.each(call, keys, one) for one in (value, state))
        self._steps.check_start(call, step)
        if self.description.commit is not None:
            detail = "a store with commit cannot be restored: its steps begin at 0"
            raise StoreRefusedError(f"{self._registry.call(call)}: {detail}")
        arrays: list[Any] = []
        sent: list[tuple[KeyList, int]] = []
        for one, spec, first, named in zip(keys.user_keys, keys.keys, values, states, strict=True):
            where, shape = self._registry.where(call, one), tuple(spec.shape)
            state_arrays, master = self._state_arrays(spec, named, shape, where)
            if master is None:
                master = checked(first, user_dtype(spec), shape, f"{where}: value")
            arrays += [*state_arrays, master]
            own = self._registry.key_list(one, call)
            sent += [(own, number) for number in (*range(1, len(state_arrays) + 1), 0)]

        def give(_: list[int], hosts: list[Array]) -> Future[None]:
            """The rule's state first: with the value steps may begin, and what is of one key arrives in order."""
            kept, kind = as_kept([own.keys[0] for own, _ in sent], hosts), PayloadKind.RESTORED
            operations = [
                KeyOperation(own, payload_kind=kind, step=int(step), arrays=[host], array=number)
                for (own, number), host in zip(sent, kept, strict=True)
            ]
            return joined([*map(self._store.submit, operations)], nothing)

        return self._steps.set(call, keys.names, step, arrays, give)

    def restore_rows(
        self, key: UserKey | UserKeys, ids: Any, rows: Any, state: Any = None, *, step: int
    ) -> Future[None]:
        """`restore` of rows of a table: values from `pull_rows`, and state from `pull_state_rows` or None.

        Several calls may restore rows of one table, at the same step. Call it before `restore` of keys that are no
        tables, and wait for it: the other slots wait for those."""
        call = "restore_rows"
        self._steps.check_start(call, step)
        sent = self._rows(call, key, ids, rows)
        states = self._registry.each(call, sent.keys, state)
        arrays, of_state = sent.arrays, list[tuple[int, int]]()
        count = len(arrays)
        for at, (one, named) in enumerate(zip(sent.tables, states, strict=True)):
            found, master = self._state_arrays(one.spec, named, one.shape, one.where)
            if master is not None:
                arrays[2 * at + 1] = master
            arrays += found
            of_state += [(at, array) for array in range(1, len(found) + 1)]

        def give(versions: list[int], hosts: list[Array]) -> Future[None]:
            """Values first: there is state of rows that are there."""
            begun = [sent.begin(versions, hosts)]
            for (at, array), values in zip(of_state, hosts[count:], strict=True):
                one, kind = sent.tables[at], PayloadKind.RESTORED_STATE
                kept, rows = one.checked_ids(hosts[2 * at]), values.astype(one.dtype, copy=False)
                state = RowOperation(one.keys, payload_kind=kind, step=array, arrays=rows, ids=kept)
                begun.append(self._store.submit(state))
            return joined(begun, nothing)

        return self._steps.set(call, sent.keys.names, step, arrays, give)

    def _state_arrays(
        self, spec: KeyDescription, state: Any, shape: tuple[int, ...], where: str
    ) -> tuple[list[Any], Any]:
        """The rule's arrays of a key, in their order, none where there is None; and the `MASTER`, or None. Raises
        StoreRefusedError."""

        def array(name: str) -> Any:
            return checked(state[name], np.dtype(spec.dtype), shape, f"{where}: state {name!r}")

        has_master = spec.half is not None and isinstance(state, Mapping) and MASTER in state
        if state is None:
            return [], None
        if not isinstance(state, Mapping):
            raise StoreRefusedError(f"{where}: state: a dictionary of arrays by name, not a {type(state).__name__}")
        wanted, found = self._registry.state_of(spec), [name for name in state if not has_master or name != MASTER]
        if set(found) != set(wanted):
            kept, told = (", ".join(map(str, names)) or "nothing" for names in (wanted, found))
            raise StoreRefusedError(f"{where}: state: the rule keeps {kept}, not {told}")
        return [array(name) for name in wanted], array(MASTER) if has_master else None

    def read_consistent(self, key: UserKeys) -> Future[tuple[int, list[Array]]]:
        """(version, values): the values of several keys at one version, the newest available. Sync mode only."""
        call = "read_consistent"
        if (mode := self.description.mode) is not Mode.SYNC:
            detail = f"in mode {mode.value} each slot has versions of its own"
            raise StoreRefusedError(f"{self._registry.call(call)}: {detail}")
        keys = self._registry.key_list(key, call)
        pull = self._whole("pull", keys)
        read = self._traffic.bring(self._registry.call(call), keys.names, [], lambda _: consistent_read(pull))
        return joined([read], lambda found: (found[0][0], as_users_have(keys.keys, found[0][1])))

    # --- Buffers, steps, barriers

    def gradient_buffer(self, key: UserKey) -> Array:
        """An array for a key's gradients, the same one at each call. Shards on this host read it without a copy.

        Do not write to it before the push's future ends, which is when every slot has pushed the step and the shard has
        read it. If one thread has several slots, push from all of them before waiting."""
        return self._store.memory.gradient(self._buffered(key, "gradient_buffer"))

    def value_buffer(self, key: UserKey) -> Array:
        """An array for a key's value, the same one at each call, to pass as `out` of a pull."""
        return self._store.memory.value(self._buffered(key, "value_buffer"))

    def _buffered(self, key: UserKey, call: str) -> int:
        """The number of a key that may have an array of the store's own."""
        found = self._registry.find(key, call, rows=False)
        if found.half is not None:
            detail = f"its shard has float32, and what travels is {found.half}: push and pull arrays of your own"
            raise StoreRefusedError(f"{self._registry.where(call, key)}: {detail}")
        return self._registry.index_of(key, call)

    def end_step(self, step: int | None = None) -> Future[StepOutcome | None]:
        """Tells the shards that this slot has pushed all it has for the steps up to `step`, the last begun by default.

        Needed if a slot skips keys, and after each step with `commit`: then the result has the gradient's norm, and
        whether it was finite. Who connected at a step may end the one before it once more, for that result.
        """

        def end(ended: Sequence[tuple[int, list[str]]]) -> Future[StepOutcome | None]:
            commits, indices = self.description.commit is not None, self._registry.key_indices
            barriers = [
                BarrierOperation(one, [indices[user_key(name)] for name in nothing], commits=commits)
                for one, nothing in ended
            ]
            return joined([*map(self._store.submit, barriers)], lambda outcomes: outcomes[-1])

        return self._steps.end(step, end)

    def barrier(self) -> Future[None]:
        """Ends when every slot has called it. With `commit` it is `end_step`."""
        where = self._registry.call("barrier")
        if self.description.commit is not None:
            return joined([self.end_step()], nothing)
        if self._barriers is None:
            raise StoreRefusedError(f"{where}: the store was described with barrier = false")
        return self._barriers.meet()

    def statistics(self) -> ClientStatistics:
        """Counters of bytes, frames, rows and queues, in total and for each link."""
        self._process.check()
        return self._store.statistics()

    def close(self) -> None:
        """Fails open calls and releases sockets and threads. Idempotent."""
        if self._process.is_here and type(self._store) is not LocalSlot:
            for one in [self, *self._by_slot.values()]:
                one._traffic.close()
            self._store.close()

    def __enter__(self) -> KVStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# --- Stores in a forked child


_stores: WeakSet[KVStore] = WeakSet()


class _Elsewhere:
    """The calls of a store in a forked child, where none can be made: locks may be held for ever."""

    def __init__(self, process: OwnProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        """Raises StoreError."""
        self._process.check()
        raise AttributeError(name)


def _leave_behind() -> None:
    for store in _stores:
        elsewhere: Any = _Elsewhere(store._process)
        store._registry = store._steps = elsewhere


os.register_at_fork(after_in_child=_leave_behind)


def _read(description: Described) -> StoreDescription:
    return description if isinstance(description, StoreDescription) else read_description(description)


def _whole(name: str, number: Any, least: int = 0) -> int:
    """A number that counts, NumPy's too. Raises ValueError for another."""
    if not is_whole(number) or not least <= number < 1 << 63:
        raise ValueError(f"{name}: a whole number from {least} to 2^63 - 1, not {number!r}")
    return int(number)


def _seconds(name: str, number: Any, least: float) -> float:
    """Seconds. Raises ValueError for what are none."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not number >= least:
        raise ValueError(f"{name}: a number of seconds {'above' if least else 'from'} 0, not {number!r}")
    return number


def _settings(settings: LinkSettings, timeout_s: float | None) -> LinkSettings:
    if timeout_s is None:
        return settings
    return replace(settings, request_timeout_s=_seconds("timeout_s", timeout_s, least=sys.float_info.min))
