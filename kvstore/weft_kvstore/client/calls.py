"""The calls of a store, the same for every store: checked, made an operation, handed to a thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Any, Final, Self

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.agreement import BarrierOperation, HyperOperation
from weft_kvstore.client.operation import CALLS, Ids, KeyOperation, Operation, RowOperation
from weft_kvstore.client.plan import Keys, KeySet
from weft_kvstore.description.check import check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import StoreFuture, driver_of, error_of, joined, on_end
from weft_kvstore.process import OwnProcess
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.same_host.arrays import ClientMemory
from weft_kvstore.sharding import MOST_ROWS_A_CALL
from weft_kvstore.store import ClientStatistics, Pulled, StepOutcome, joined_pulls
from weft_kvstore.wire.messages import MAX_ENTRIES, PayloadKind, Reading


class Store:
    """One slot's way to the parameters. Every call returns at once; its future ends by a value or a StoreError, that of
    the first key that fails. Callbacks of futures run on a thread of their own, one after the other.

    A call takes one key, or many, which costs little more. No key may be there twice, and none of several may be a
    table: of that a call names the rows by their `ids`, (n) int64. A call raises StoreRefusedError where keys or arrays
    do not fit the description, and StoreError in a child of the process that made the store. Who calls often looks keys
    up once, makes a `KeyOperation` or `RowOperation` and `submit`s it. Nothing of that is checked:
    arrays, a list of one for each key, are C-contiguous and have the keys' dtypes and shapes; ids are `Ids`.

    Versions: in sync, version v of a key has seen the steps before v of every slot. In async a pull of version v waits
    only for this slot's own first v steps, and with `settled` for those of every contributing slot.

    `priority` of a call, within `MAX_CALL_PRIORITY`: what a higher one sends goes first, in both directions. Described
    priorities order what is left equal."""

    submit: Callable[[Operation], StoreFuture[Any]]
    """Begins an operation, on the caller's thread, and returns its future: it does not wait, and ends the future where
    nothing can be begun any more."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        """Raises DescriptionError, ValueError for a slot that there is not."""
        check_description(description)
        if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or not 0 <= slot < description.slots:
            slots = description.slots
            raise ValueError(f"slot: a whole number from 0 to {slots - 1}, not {slot!r}: it is described with {slots}")
        self._description = description
        self._slot = slot
        self._keys = Keys(description, slot, by_name=True)
        self._memory = ClientMemory(description.keys)
        self._process = OwnProcess()
        self.failed: dict[str, dict[int, StoreError]] = {}
        """By key: the steps of this slot whose push has failed, and was not made again; see `ClientCore.failed`."""

    def gradient_buffer(self, key: str) -> Array:
        """An array for the key's gradients, always the same one, zeros at first: nothing of it is copied on the way to
        a shard of this host. It is pushed like any other; what is written there is read when it is pushed: it must not
        be written before the push's future ends. What a push that has failed adds is uncertain once it is written.
        Raises StoreRefusedError for a key that is none, or a table."""
        self._process.check()  # In a child it is the parent's memory, and so may its locks be.
        return self._memory.gradient(self._keys.key_set(key, "gradient_buffer").key_indices[0])

    def value_buffer(self, key: str) -> Array:
        """An array for the key's value, always the same one, to be `out` of a pull. It has that value when the pull's
        future ends, and nothing certain while a pull into it is under way or after one has failed. Raises as
        `gradient_buffer`."""
        self._process.check()
        return self._memory.value(self._keys.key_set(key, "value_buffer").key_indices[0])

    def key_set(self, keys: str | Sequence[str]) -> KeySet:
        """These keys, looked up once. Raises StoreRefusedError."""
        return self._keys.key_set(keys, "pushpull")

    # --- Values of keys, and rows of tables

    def push(
        self,
        keys: str | Sequence[str],
        step: int,
        gradients: Any,
        ids: Any = None,
        *,
        kind: PayloadKind = PayloadKind.GRADIENT,
        array: int = 0,
        priority: int = 0,
    ) -> Future[None]:
        """Adds this slot's gradient of `step` (from 0); of several keys a gradient each, in their order. Arrays are
        kept, not copied, until the future ends, which is when every slice was acknowledged; they must not be written
        before.

        Of a table the gradient has a row for each id (n, ...row shape). Rows of one id are summed in their order; those
        of negative ids are padding and are dropped. A slot pushes to a table once a step; no ids at all is a push too.

        Of another `kind` it sends values instead: see `set`. What is RESTORED is what a key was at version `step`: its
        value, and the key is at that version then, or state `array` of its rule, from 1; only of keys that nobody has
        pushed."""
        self._process.check()
        call, number = CALLS[kind]
        if ids is None:
            found = self._keys.key_set(keys, call, pushes=kind is PayloadKind.GRADIENT)
            gradients = self._fitting(found, gradients, f"{call} of {found}, {number} {step}")
        else:
            found, ids = self._rows_of(f"{call}_rows", keys, ids, gradients)
        operation = (KeyOperation if ids is None else RowOperation)(
            found, payload_kind=kind, step=step, arrays=gradients, ids=ids, array=array, priority=priority
        )
        return self.submit(operation)

    def set(self, keys: str | Sequence[str], version: int, values: Any, ids: Array | None = None) -> Future[None]:
        """Makes this the key's value at that version; the rule's state stays. Arrays are kept as by `push`.

        Version 0 is for keys whose initializer is `Given`: they have no value before it is set. A later version's value
        is replaced once the step before it is applied, so the version must not have passed, nor be far ahead. In async
        the value holds at once, behind what was pushed before. To set the same again does no harm. Several calls may
        set rows of one version; of rows of one id the last one counts."""
        return self.push(keys, version, values, ids, kind=PayloadKind.VALUE)

    def pushpull(
        self, keys: KeySet, step: int, gradients: list[Array], *, out: list[Array] | None = None
    ) -> StoreFuture[Any]:
        """Gradients of `step`, and the values that have seen them, in one message, which ends with these. It takes at
        most `MAX_ENTRIES` keys, of which it checks nothing."""
        kind = PayloadKind.GRADIENT
        return self.submit(
            KeyOperation(keys, payload_kind=kind, step=step, arrays=gradients, version=step + 1, out=out)
        )

    def pull(
        self,
        keys: str | Sequence[str],
        version: int,
        ids: Any = None,
        *,
        settled: bool = False,
        exact: bool = False,
        state: bool = False,
        out: Any = None,
        with_versions: bool = False,
        as_kept: bool = False,
        priority: int = 0,
    ) -> Future[Any]:
        """The key's value once `version` updates have been applied (0: the first value), of several keys a list. New
        arrays, owned by the caller, or `out`: an array or one for each key, C-contiguous and of the key's dtype and
        shape; it is the store's until the future has ended, and what is in it after a failure is not said. Values may
        be newer only where the store cannot hold them back: in sync never before this slot has pushed. With `state` of
        a single key the rule's arrays instead, by the rule's names, each of the key's shape.

        Of a table these are rows (n, ...row shape), for ids in any order, with repetitions or none at all; a negative
        id gives a row of zeros. `ids` is read before the call returns.

        `exact`: none is newer; it fails where a key has passed the version. In mode sync alone. `with_versions`: the
        result is a `Pulled`. `as_kept`: the values as the shard has them, however they travel else."""
        self._process.check()
        if ids is not None:
            found, ids = self._rows_of("pull_rows", keys, ids)
        else:
            found = self._keys.key_set(keys, "pull_state" if state else "pull")
            if out is not None:
                out = self._fitting(found, out, f"pull of {found}, version {version}", writable=True)
        if len(found.names) > MAX_ENTRIES:  # More than one message may name.
            parts = []
            for begin in range(0, len(found.names), MAX_ENTRIES):
                some = slice(begin, begin + MAX_ENTRIES)
                part = self.pull(
                    found.names[some],
                    version,
                    settled=settled,
                    exact=exact,
                    out=None if out is None else out[some],
                    with_versions=with_versions,
                    as_kept=as_kept,
                    priority=priority,
                )
                parts.append(part)
            return joined(parts, joined_pulls if with_versions else lambda values: [*chain.from_iterable(values)])
        operation = (KeyOperation if ids is None else RowOperation)(
            found,
            version=version,
            reading=Reading.EXACT if exact else Reading.SETTLED if settled else Reading.OWN,
            wanted=None if ids is None else (ids[0].copy(), ids[1]),
            out=out,
            names=self._keys.state_of(found.keys[0]) if state else None,
            with_versions=with_versions,
            as_kept=as_kept,
            priority=priority,
        )
        return self.submit(operation)

    def _fitting(self, keys: KeySet, given: Any, what: str, *, writable: bool = False) -> list[Array]:
        """The arrays of a call by name. Raises StoreRefusedError."""
        arrays = keys.fitting(given, writable=writable)
        if arrays is None:
            kind = "C-contiguous NumPy array" + (" that can be written" if writable else "")
            raise StoreRefusedError(
                f"slot {self._slot}: {what}: a {kind} of its dtype and shape is needed for each key"
            )
        return arrays

    def _rows_of(self, call: str, key: Any, ids: Array, rows: Array | None = None) -> tuple[KeySet, Ids]:
        """The table and the ids of a call by name. Raises StoreRefusedError."""
        table = self._keys.table(key, call)
        (spec,), (dtype,), (shape,) = table.keys, table.dtypes, table.shapes
        where = f"slot {self._slot}: {call} of key {key!r}"
        if rows is None:
            if len(ids) > MOST_ROWS_A_CALL:
                raise StoreRefusedError(f"{where}: {len(ids)} rows; a call may have {MOST_ROWS_A_CALL}")
        elif (rows.dtype, rows.shape) != (dtype, wanted := (len(ids), *shape[1:])):
            found = f"{rows.dtype}{list(rows.shape)}, for {len(ids)} ids {dtype}{list(wanted)}"
            raise StoreRefusedError(f"{where}: the rows are {found}")
        return table, (ids, check_ids(ids, spec, where))

    # --- What all shards are told

    def set_hyper(self, numbers: Mapping[str, float], *, step: int, key: str | None = None) -> Future[int]:
        """Give the rule's hyper-parameters these numbers from `step` on, for the whole job or for one key: such as a
        `HyperScope` lets pass, and a step of which the slot has pushed nothing. The future ends with the step, once all
        shards know.

        They take the place of numbers and schedules, and are multiplied by a key's multipliers. What was changed for a
        key stands before what was changed for all, and of slots' changes at one step that of the highest slot holds.
        After a StoreTimeoutError or a StoreLostError they may hold or not, but on all shards alike.
        """
        self._process.check()
        key_index = None if key is None else self._keys.key_indices[key]
        return self.submit(HyperOperation(step, numbers, key, key_index))

    def barrier(self, step: int, nothing: Sequence[str]) -> Future[StepOutcome | None]:
        """Tells every shard that this slot has sent all of `step` and has nothing for the keys named. Where the job's
        steps are committed, it waits for every slot's barrier, and says what all agree on."""
        self._process.check()
        key_indices = [self._keys.index_of(name, "barrier") for name in nothing]
        commits = self._description.commit is not None
        return self.submit(BarrierOperation(step, key_indices, commits=commits))

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; they may move while they are read."""
        raise NotImplementedError

    def close(self) -> None:
        """Fails what is open and releases sockets and threads. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- Reads several keys at one version while others push --------------------------------------------------------------
# It waits for nothing: it goes on where one of its pulls ends.


TRIES: Final = 8
"""Pulls at one version. The first is at the newest that was seen. Where keys have passed it somebody trains, and each
further one asks for a version further ahead, until the keys reach it later than the pull does."""


def consistent_read(source: Store, keys: Sequence[str], versioned: Sequence[int]) -> Future[tuple[int, list[Array]]]:
    """Ends with values that the keys had at one version, and which: the newest that can be had. In mode sync alone.
    Fails with StorePassedError where keys have passed every version that was tried. `versioned` are the numbers of the
    keys that have versions: somebody contributes to them."""
    newest = source.pull(keys, 0, with_versions=True)
    future: StoreFuture[tuple[int, list[Array]]] = StoreFuture()
    future.driver = driver_of(newest)

    def pulled_newest(tries: int, overdue: StoreTimeoutError | None, ended: Future[Pulled]) -> None:
        error = error_of(ended)
        if error is not None:
            future.set_exception(error)
            return
        pulled = ended.result()
        lowest = min(pulled.lowest[[*versioned]].tolist(), default=0)
        highest = max(pulled.highest[[*versioned]].tolist(), default=0)
        if lowest >= highest:  # All of one version; or there is nothing that has versions.
            future.set_result((highest, pulled.values))
        elif overdue is not None:
            future.set_exception(overdue)
        else:
            target = highest + tries
            on_end(source.pull(keys, target, exact=True), partial(pulled_exact, target, tries + 1))

    def pulled_exact(target: int, tries: int, ended: Future[list[Array]]) -> None:
        error = error_of(ended)
        if error is None:
            future.set_result((target, ended.result()))
        elif isinstance(error, StoreTimeoutError):
            # Perhaps nobody pushes any more: then all are at one version by now.
            on_end(source.pull(keys, 0, with_versions=True), partial(pulled_newest, tries, error))
        elif isinstance(error, StorePassedError) and tries < TRIES:
            on_end(source.pull(keys, 0, with_versions=True), partial(pulled_newest, tries, None))
        else:
            future.set_exception(error)

    on_end(newest, partial(pulled_newest, 0, None))
    return future
