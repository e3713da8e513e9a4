"""The store as a library: push gradients, pull parameters, from a plain Python program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, overload

from weft_graph.rules.built_in import rule_name
from weft_kvstore.arrays import Array
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.describing import read_description
from weft_kvstore.description.form import UserKey
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption.curve_keys import CurveKeys
from weft_kvstore.encryption.key_files import read_curve_keys
from weft_kvstore.errors import StoreError
from weft_kvstore.library.arrays import OwnBuffers
from weft_kvstore.library.calls import SlotCalls
from weft_kvstore.library.steps import await_shards
from weft_kvstore.local.local_store import LocalStore
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.memory import TablePlace
from weft_kvstore.settings import LinkSettings
from weft_kvstore.statistics import ClientStatistics
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.store import BufferStore, BulkStore

Keys: TypeAlias = list[str] | list[int] | list[UserKey] | tuple[UserKey, ...]
Described: TypeAlias = StoreDescription | str | os.PathLike[str]
"""A description, or the path of the file that has it."""

DEFAULTS = LinkSettings()


class KVStore:
    """One slot of a store. Made by `connect`, over shards that are processes, or by `local`, within this process.

    Calls return at once. What is wrong with their arguments they raise, as StoreRefusedError; all else ends their
    future, which has a deadline. Each call takes one key, or a list of keys and lists of as many values; its future
    ends when all of them are done. Arrays are NumPy's or anything that shares memory by DLPack or by the CUDA array
    interface. What is handed over is copied only if it has to be, and must not be written until the future ends.

    Steps are counted for each key: a push is the next step of its key, and a pull waits for the steps that this slot
    has pushed; in sync mode by all slots, in async mode by this one. `step=` and `version=` say it otherwise: version v
    has seen steps 0 to v - 1. A push that is refused keeps its step: until it is pushed again with that `step=`, pulls
    that need it fail, and `end_step` and pushes of its key without a number raise.

    Of one key, calls take effect in the order in which they are made. May be used from several threads, not from a
    forked process: connect there. A callback of a future runs on a thread of the store's own: it may begin calls, but
    must not wait for any, or nothing of a local store ever ends, and no other callback runs.
    """

    def __init__(self, store: BulkStore, description: StoreDescription, slot: int, *, step: int = 0) -> None:
        """Over any store that is slot `slot` of this description; `step` is the first to be counted."""
        self.description = description
        self.slot = slot
        self._store = store
        self._process = OwnProcess()
        self._slot_calls = SlotCalls(store, description, slot, step)
        self._buffers: BufferStore = store if isinstance(store, BufferStore) else OwnBuffers(description)

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

        Waits at most `wait_s` until every shard answers; not at all for 0. `timeout_s` is the deadline of every future:
        60 if left out. A process that takes over from one that died says a higher `incarnation`, and the `step` at
        which it goes on. `endpoints` stand in for the description's. `curve_keys`: this process's own, or the file that
        has them, where the description has the shards': a shard may let in some alone. Raises OSError,
        DescriptionError, ValueError for a slot or keys that are none, and StoreError, which names the shard.
        """
        described = _read(description)
        link = _settings(settings, timeout_s)
        keys = (
            curve_keys if curve_keys is None or isinstance(curve_keys, CurveKeys) else read_curve_keys(Path(curve_keys))
        )
        client = StoreClient(
            described, slot, incarnation=incarnation, settings=link, endpoints=endpoints, curve_keys=keys
        )
        try:
            await_shards(client, described, slot, wait_s)
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
        store = LocalStore(described, settings=_settings(settings, timeout_s), tables=tables)
        return cls(store, described, 0, step=step)

    def at_slot(self, slot: int, *, step: int = 0) -> KVStore:
        """Another slot of a local store, which counts its own steps, from `step` on. Closing it closes nothing. Raises
        ValueError."""
        self._process.check()
        if not isinstance(self._store, LocalStore):
            raise StoreError(f"this store is connected as slot {self.slot}; slot {slot} takes a `connect` of its own")
        return KVStore(self._store.at_slot(slot), self.description, slot, step=step)

    @property
    def keys(self) -> tuple[UserKey, ...]:
        """All keys, in the description's order."""
        return self._calls.registry.keys

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
        has changed by `set_hyper`; of the next step of this slot where it is left out."""
        return self._calls.registry.hyper(key, self.steps(key) if step is None else step)

    def set_hyper(self, name: str, value: float, *, step: int | None = None, key: UserKey | None = None) -> Future[int]:
        """Gives a number of the rule this value from a step on, for all keys or for one: for all slots, on all shards,
        instead of the number or the schedule that it had. The result is the step.

        No slot may have begun the step, or it is refused and nothing changes; with None it is the first that nobody has
        begun. The value has to be finite in the type of every key that it is for. One slot is to call it: of several
        that do at once, one goes on and the others are told to try again.
        """
        return self._calls.set_hyper(name, value, step, key)

    def steps(self, key: UserKey) -> int:
        """Steps of the key that this slot has begun: the version that its pulls ask for."""
        return self._calls.steps(key)

    def init(self, key: UserKey | Keys, value: Any = None, *, by: int | None = 0) -> Future[None]:
        """Gives keys their first value, where their initializer is "given"; of a table, all rows.

        Every slot may call it, as the same program does in each: the value of slot `by` is sent, and the others need
        none. With None it is this slot's, and no other may call. Pulls, and the first update, wait for the value.
        A first value is given once: in async mode another one changes nothing, and neither does the call where the
        process takes over at a later `step`; in sync mode it is refused once a step was applied.
        """
        return self._calls.values.init(key, value, by)

    def push(self, key: UserKey | Keys, gradient: Any, *, step: int | None = None, priority: int = 0) -> Future[None]:
        """Adds this slot's gradient to the key's next step, or to step `step`. A step that is pushed again counts once.
        What is pushed with a higher `priority` is sent first; equal ones go by the keys' described priorities.

        The future ends when the shards have it, which may be before it is applied.
        """
        return self._calls.values.push("push", key, gradient, step, priority)

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
        """The key's value once all that this slot has pushed is in it, or at `version`: a new array of the caller's, or
        `out`, which may be a GPU's, or a parameter of PyTorch. In async mode, `settled` waits for that version of every
        slot. Values for a higher `priority` are sent first.

        It fails where the push failed that it would wait for.
        """
        return self._calls.values.pull("pull", key, out, version, settled=settled, priority=priority)

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
        """Pushes, and pulls the version that has seen it. The gradient stays as it is, unless it is `out` too."""
        return self._calls.values.pushpull(key, gradient, out, step, priority)

    def gradient_buffer(self, key: UserKey) -> Array:
        """An array for a key's gradients, always the same one. On a host with its shards, what is pushed in it is not
        copied: it must not be written before the push's future ends, and that is once every slot has pushed the step
        and the shard has read it. So slots of one thread all push before any of the futures is waited for, and slots
        that are later than `timeout_s` fail the push, which holds all the same."""
        return self._buffers.gradient_buffer(self._calls.registry.buffered(key, "gradient_buffer"))

    def value_buffer(self, key: UserKey) -> Array:
        """An array for a key's value, always the same one, to be `out` of a pull: the shard writes there itself."""
        return self._buffers.value_buffer(self._calls.registry.buffered(key, "value_buffer"))

    def push_rows(
        self, key: UserKey | Keys, ids: Any, rows: Any, *, step: int | None = None, priority: int = 0
    ) -> Future[None]:
        """`push` of some rows of a table: `ids` whole numbers of any shape, `rows` (...ids, ...row). Rows of one id are
        summed, negative ids are padding; a table is pushed once a step, and no ids at all is a push too."""
        return self._calls.rows.push(key, ids, rows, step, priority)

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
        """`pull` of some rows of a table: (...ids, ...row), for ids in any order, repeated or none at all; a negative
        id gives a row of zeros."""
        return self._calls.rows.pull(key, ids, out, version, settled=settled, priority=priority)

    def read_consistent(self, key: Keys) -> Future[tuple[int, list[Array]]]:
        """The values that the keys had at one version, and which: the newest that can be had while others push. In sync
        mode alone."""
        return self._calls.values.read_consistent(key)

    def pull_state(self, key: UserKey | Keys, *, version: int | None = None, settled: bool = False) -> Future[Any]:
        """What the rule keeps beside the key (momentum, for one), by the rule's names; each of the key's shape."""
        return self._calls.values.pull_state(key, version, settled=settled)

    def pull_state_rows(
        self, key: UserKey | Keys, ids: Any, *, version: int | None = None, settled: bool = False
    ) -> Future[Any]:
        """`pull_state` of some rows of a table; each as `pull_rows` gives the rows."""
        return self._calls.rows.pull_state(key, ids, version, settled=settled)

    def restore(self, key: UserKey | Keys, value: Any, state: Any = None, *, step: int) -> Future[None]:
        """Makes keys what they were after `step` steps, from a program's own checkpoint: the values that `pull` gave,
        and of each key the rule's state as `pull_state` gave it, or None, and the rule begins anew. Training goes on
        from there with the same bits.

        For shards that were started anew, before anybody pushes. One slot calls it, as `init`; every slot connects with
        this `step` and pulls before it pushes. Not for tables, nor where steps are committed.
        """
        return self._calls.values.restore(key, value, state, step)

    def set(self, key: UserKey | Keys, value: Any, *, version: int) -> Future[None]:
        """Makes this the key's value at a version, which must not have passed: `Store.set`. At once in async mode."""
        return self._calls.values.set(key, value, version)

    def set_rows(self, key: UserKey | Keys, ids: Any, rows: Any, *, version: int) -> Future[None]:
        """`set` of some rows of a table."""
        return self._calls.rows.set(key, ids, rows, version)

    def end_step(self, step: int | None = None) -> Future[StepOutcome | None]:
        """Tells the shards that this slot has pushed all of the step: of keys that it did not push, it has nothing, and
        nobody waits for it. All steps up to `step` end, or up to the last that was begun.

        Needed only where a slot skips keys, and where steps are committed (`commit`): then each step has to be ended,
        and the result is what all slots agreed on: the gradient's norm, and whether it was finite.
        """
        return self._calls.end_step(step)

    def barrier(self) -> Future[None]:
        """Ends when every slot has called it as often. Where steps are committed, it is `end_step`."""
        return self._calls.barrier()

    def statistics(self) -> ClientStatistics:
        """Bytes, frames, rows and queues of this moment, of all links and of each."""
        self._process.check()
        return self._store.statistics()

    def close(self) -> None:
        """Fails what is open, and releases sockets and threads. Idempotent. In a forked child it touches nothing."""
        if self._process.is_here:
            self._slot_calls.close()

    def __enter__(self) -> KVStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _calls(self) -> SlotCalls:
        """Raises StoreError where no call can be made: locks may be held for ever in a child."""
        if os.getpid() != self._process.number:
            self._process.check()
        return self._slot_calls


def _read(description: Described) -> StoreDescription:
    return description if isinstance(description, StoreDescription) else read_description(description)


def _settings(settings: LinkSettings, timeout_s: float | None) -> LinkSettings:
    return settings if timeout_s is None else replace(settings, request_timeout_s=timeout_s)
