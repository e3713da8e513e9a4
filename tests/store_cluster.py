"""Descriptions of small stores, and shards that serve them in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from same_host_children import wait_until
from weft_graph.program import Update
from weft_kvstore.bucket.bucket import Bucket
from weft_kvstore.bucket.steps import BucketSteps, PullWait
from weft_kvstore.bucket.values import PendingSegments
from weft_kvstore.client.agreement import BarrierOperation, HyperOperation
from weft_kvstore.client.operation import Ids, KeyOperation, RowOperation
from weft_kvstore.client.plan import KeyList, Keys
from weft_kvstore.client.store_client import Store, StoreClient
from weft_kvstore.description.records import InitializerDescription, KeyDescription, Merge, Mode, StoreDescription
from weft_kvstore.futures import StoreFuture
from weft_kvstore.local import LocalSlot, LocalStore
from weft_kvstore.rows.rows import check_ids
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings
from weft_kvstore.sharding import BucketPartition
from weft_kvstore.store import StepOutcome
from weft_kvstore.wire.messages import PayloadKind, Reading

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

WAIT_S = 60.0
"""Deadline of every future in these tests: far above what any takes, below the test's own."""


def key_of(name: str, shape: Sequence[int], slots: int, *, priority: int = 0) -> KeyDescription:
    """A float32 key that every slot contributes to, with first values drawn from (-1, 1)."""
    draw = InitializerDescription("RandomUniform", {"low": -1.0, "high": 1.0})
    return KeyDescription(name, "float32", tuple(shape), draw, Update.RULE, priority, tuple(range(slots)))


def table_of(name: str, shape: Sequence[int], slots: int, *, priority: int = 0) -> KeyDescription:
    """The same, reached by rows."""
    return msgspec.structs.replace(key_of(name, shape, slots, priority=priority), rows=True)


class ByName(Store):
    """Calls by the names of keys, which become operations with all that there is to say in one. Arrays have to fit."""

    @cached_property
    def named(self) -> Keys:
        return Keys(self._description, self._slot, by_name=True)

    def key_list(self, keys: str | Sequence[str]) -> KeyList:
        return self.named.key_list(keys, "call")

    def rows_of(self, key: str, ids: np.ndarray) -> tuple[KeyList, Ids]:
        table = self.named.key_list(key, "call", rows=True)
        return table, (ids, check_ids(ids, table.keys[0], key))

    def own_gradient(self, key: str) -> Array:
        return self.memory.gradient(self.named.index_of(key, "gradient_buffer"))

    def own_value(self, key: str) -> Array:
        return self.memory.value(self.named.index_of(key, "value_buffer"))

    def push(
        self,
        keys: str | Sequence[str],
        step: int,
        gradients: Any,
        ids: np.ndarray | None = None,
        *,
        kind: PayloadKind = PayloadKind.GRADIENT,
        **told: int,
    ) -> StoreFuture[None]:
        if ids is not None:
            table, given = self.rows_of(str(keys), ids)
            return self.submit(RowOperation(table, payload_kind=kind, step=step, arrays=gradients, ids=given, **told))
        found = self.key_list(keys)
        arrays = found.fitting(gradients)
        assert arrays is not None
        return self.submit(KeyOperation(found, payload_kind=kind, step=step, arrays=arrays, **told))

    def set(
        self, keys: str | Sequence[str], version: int, values: Any, ids: np.ndarray | None = None
    ) -> StoreFuture[None]:
        return self.push(keys, version, values, ids, kind=PayloadKind.VALUE)

    def pull(
        self,
        keys: str | Sequence[str],
        version: int,
        ids: np.ndarray | None = None,
        *,
        settled: bool = False,
        exact: bool = False,
        state: bool = False,
        out: Any = None,
        **told: Any,
    ) -> StoreFuture[Any]:
        told |= {"version": version, "reading": Reading.EXACT if exact else Reading(settled)}
        found, wanted = (self.key_list(keys), None) if ids is None else self.rows_of(str(keys), ids)
        if state:
            told["names"] = self.named.state_of(found.keys[0])
        if wanted is not None:
            return self.submit(RowOperation(found, wanted=wanted, **told))
        out = out if out is None else found.fitting(out, writable=True)
        return self.submit(KeyOperation(found, out=out, **told))

    def pushpull(
        self, keys: KeyList, step: int, gradients: Sequence[Array], *, out: list[Array] | None = None
    ) -> StoreFuture[Any]:
        told: Any = {"payload_kind": PayloadKind.GRADIENT, "step": step, "version": step + 1}
        return self.submit(KeyOperation(keys, arrays=gradients, out=out, **told))

    def set_hyper(self, numbers: Mapping[str, float], *, step: int, key: str | None = None) -> StoreFuture[int]:
        return self.submit(HyperOperation(step, numbers, key, None if key is None else self.named.key_indices[key]))

    def barrier(self, step: int, nothing: Sequence[str]) -> StoreFuture[StepOutcome | None]:
        indices = [self.named.index_of(name, "barrier") for name in nothing]
        return self.submit(BarrierOperation(step, indices, commits=self._description.commit is not None))


class NamedClient(ByName, StoreClient):
    """A client, by names."""


class NamedSlot(ByName, LocalSlot):
    """A slot of a local store, by names."""


class NamedStore(ByName, LocalStore):
    """A local store, by names."""

    def at_slot(self, slot: int) -> NamedSlot:
        return NamedSlot(self, self._description, slot)


def pushpull_rows(
    store: ByName, step: int, rows: Array, ids: np.ndarray, pull_ids: np.ndarray | None = None
) -> StoreFuture[Any]:
    """Rows of table "t", and of the same or other ids those that have seen them, in one operation."""
    given = (ids, None)
    operation = RowOperation(
        store.named.key_list("t", "pushpull_rows", rows=True),
        payload_kind=PayloadKind.GRADIENT,
        step=step,
        arrays=rows,
        ids=given,
        version=step + 1,
        wanted=given if pull_ids is None else (pull_ids, None),
    )
    return store.submit(operation)


def given(key: KeyDescription) -> KeyDescription:
    """The key without a first value: one has to be set."""
    return msgspec.structs.replace(key, initializer=InitializerDescription("Given", {}))


def constant(key: KeyDescription, value: float) -> KeyDescription:
    """The key with one number as its first value."""
    return msgspec.structs.replace(key, initializer=InitializerDescription("ConstantOfShape", {"value": value}))


def store_of(
    keys: Sequence[KeyDescription],
    *,
    slots: int,
    shards: int,
    job: str = "job",
    rule: str | Mapping[str, Any] = "sgd",
    hyper: Mapping[str, float | Mapping[str, Any]] | None = None,
    slice_bytes: int = 1024,
    merge: Merge = Merge.SLOT,
    mode: Mode = Mode.SYNC,
) -> StoreDescription:
    """A store whose shards have no addresses yet."""
    return StoreDescription(
        job=job,
        term=1,
        seed=7,
        slots=slots,
        shards=("",) * shards,
        keys=tuple(keys),
        rule=rule,
        hyper={} if hyper is None else hyper,
        slice_bytes=slice_bytes,
        merge=merge,
        mode=mode,
    )


@contextmanager
def served(
    description: StoreDescription, settings: LinkSettings | None = None
) -> Iterator[tuple[StoreDescription, list[ShardServer]]]:
    """The description with the addresses of shards that serve it, and the shards."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ShardServer("tcp://127.0.0.1:0", settings=settings or LinkSettings()))
            for _ in description.shards
        ]
        description = msgspec.structs.replace(description, shards=tuple(server.endpoint for server in servers))
        for shard, server in enumerate(servers):
            server.open(description, shard)
        yield description, servers


@contextmanager
def clients_of(
    description: StoreDescription, settings: LinkSettings, endpoints: Sequence[str] | None = None
) -> Iterator[list[NamedClient]]:
    """A client for each slot."""
    with ExitStack() as stack:
        clients = []
        for slot in range(description.slots):
            client = NamedClient(description, slot, settings=settings, endpoints=endpoints)
            stack.callback(client.close)
            clients.append(client)
        yield clients


@contextmanager
def stores_of(
    kind: str, description: StoreDescription, settings: LinkSettings | None = None
) -> Iterator[Sequence[ByName]]:
    """A store for each slot: "network" over shards of this process, "shared" with memory that both have, or "local"."""
    settings = settings or LinkSettings()
    with ExitStack() as stack:
        if kind in {"network", "shared"}:
            description, _ = stack.enter_context(served(description))
            settings = replace(settings, same_host=kind == "shared")
            clients = stack.enter_context(clients_of(description, settings))
            if kind == "shared":
                wait_until_shared(clients)
            yield clients
        else:
            store = stack.enter_context(NamedStore(description, settings=settings))
            yield [store, *(store.at_slot(slot) for slot in range(1, description.slots))]


def wait_until_shared(clients: Sequence[StoreClient]) -> None:
    """Until every shard has mapped every client's memory."""
    wait_until(lambda: all(link.same_host for client in clients for link in client.statistics().links))


def gradients_of(description: StoreDescription, slot: int, step: int) -> dict[str, Array]:
    """Gradients whose elements differ by up to 12 orders of magnitude, so that float32 sums depend on their order."""
    generator = np.random.Generator(np.random.Philox(key=[slot, step]))
    found = {}
    for key in description.keys:
        scale = 10.0 ** generator.uniform(-6, 6, key.shape)
        found[key.key] = (generator.standard_normal(key.shape) * scale).astype(np.float32)
    return found


def slices_on(partition: BucketPartition) -> list[tuple[int, int]]:
    """Of each slice that a shard has of a bucket the key's index, and the slice's number in its key."""
    return [(one.key_index, one.number + at) for one in partition.ranges for at in range(one.stop - one.first)]


def advanced(state: Bucket, first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Goes on with these slices as far as it can: those that each piece of work changes."""
    todo = [(first, stop)]
    while (changed := state.advance(todo)) is not None:
        yield changed


def open_pulls(part: BucketSteps) -> list[PullWait]:
    """All that wait for a bucket or table, by version, and in the order in which they came."""
    return [wait for version in part.pulled_versions for _, _, wait in part._pulls[version].values()]


def watch_added(part: Any, added: Callable[[int, int, int, int], None]) -> None:
    """Has `added` called with (slot, step, first, stop) of each slot's gradients when they are added up in a bucket or
    table."""
    take = part._take

    def watched(indices: Any, step: int, first: int = 0, stop: int = 1) -> Any:
        for index in [indices] if isinstance(indices, int) else indices:
            pending = part._waiting.get((index, step), PendingSegments(part.bounds))
            for one in pending.within(first, stop):
                if one.elements is not None:
                    added(part.spec.slots[index], step, max(one.first, first), min(one.stop, stop))
        return take(indices, step, first, stop) if isinstance(part, Bucket) else take(indices, step)

    part._take = watched


def ended(steps: Any) -> Any:
    """What work gives in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
