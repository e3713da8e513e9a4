"""One slot's store: what is submitted to it is sent to the shards, and their answers end it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Final, Self

import numpy as np

from weft_kvstore.arrays import Array
from weft_kvstore.client.core import ClientCore
from weft_kvstore.client.link import LinkState, SlotTakenError
from weft_kvstore.client.operation import LocalOperation, Operation
from weft_kvstore.client.poller import Poller
from weft_kvstore.client.sockets import ClientSockets
from weft_kvstore.compression import reassigned, residual_array, slot_of
from weft_kvstore.description.check import NO_SHARDS, CurveKeyError, DescriptionError, check_description
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption import CurveKeys, new_curve_keys
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.process import OwnProcess
from weft_kvstore.same_host.client_arrays import ClientMemory
from weft_kvstore.settings import LinkSettings, check_endpoint
from weft_kvstore.shard.snapshot import Captured, MissedError
from weft_kvstore.sharding import routing_of
from weft_kvstore.snapshot_files import Snapshot, SnapshotReader, captured_array
from weft_kvstore.store import ClientStatistics, LinkStatistics, loss_scale_of

_SUMMED: Final = [one.name for one in fields(LinkStatistics) if one.name in ClientStatistics.__dataclass_fields__]


class Store:
    """One slot's way to the parameters: it carries out operations. Their future ends by a value or a StoreError, that
    of the first key that fails. Callbacks of futures run on a thread of their own, one after the other.

    Of operations nothing is checked: see `PushPull` for what their arrays and ids are to be. Who makes them looks keys
    up by `Keys`, once for all calls that name them."""

    submit: Callable[[Operation], StoreFuture[Any]]
    """Begins an operation, on the caller's thread, and returns its future: it does not wait, and ends the future where
    nothing can be begun any more. Raises StoreError in a child of the process that made the store."""
    memory: ClientMemory
    """Arrays of its own for gradients and values."""

    def __init__(self, description: StoreDescription, slot: int) -> None:
        """The description is a legal one. Raises ValueError for a slot that there is not."""
        if isinstance(slot, bool) or not isinstance(slot, int | np.integer) or not 0 <= slot < description.slots:
            slots = description.slots
            raise ValueError(f"slot: a whole number from 0 to {slots - 1}, not {slot!r}: it is described with {slots}")
        self._description = description
        self._slot = slot
        self._process = OwnProcess()
        self.failed: dict[str, dict[int, StoreError]] = {}
        """By key: the steps of this slot whose push has failed, and was not made again; see `ClientCore.failed`."""

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


class StoreClient(Store):
    """Implements `Store`, over ZeroMQ or another transport. `endpoints` stands in for the description's, in the same
    order. `curve_keys` are its own, for encrypted links; where the description has the shards' and it has none, it
    makes some.

    Raises DescriptionError for a description that cannot be a store, ValueError for a slot that it lacks, another
    number of `endpoints` than shards or one that cannot be a shard's, and CurveKeyError for `curve_keys` that are no
    pair, or where the description has none for the shards.
    """

    def __init__(
        self,
        description: StoreDescription,
        slot: int,
        *,
        incarnation: int = 1,
        settings: LinkSettings = LinkSettings(),  # noqa: B008  # frozen, so it can be shared
        endpoints: Sequence[str] | None = None,
        curve_keys: CurveKeys | None = None,
    ) -> None:
        keys = _keys_for(description, curve_keys)
        check_description(description)
        if not description.shards:
            raise DescriptionError(NO_SHARDS)
        super().__init__(description, slot)
        self._slots = {key.key: key.slots for key in description.keys}
        if isinstance(endpoints, str) or not all(isinstance(one, str) for one in endpoints or ()):
            raise ValueError(f"endpoints: a list of strings, one for each shard, not {endpoints!r}")
        self._endpoints = tuple(description.shards if endpoints is None else endpoints)
        if len(self._endpoints) != len(description.shards):
            raise ValueError(f"{len(self._endpoints)} endpoints for {len(description.shards)} shards")
        for endpoint in self._endpoints:
            check_endpoint(endpoint, least_port=1)
        routing = routing_of(description)
        self.memory = ClientMemory(description.keys, routing if settings.same_host else None)
        self._core = ClientCore(
            description,
            routing,
            slot,
            incarnation,
            os.urandom(16),
            settings=settings,
            endpoints=self._endpoints,
            now=time.monotonic(),
            memory=self.memory.arena,
        )
        self.failed = self._core.failed
        self._sockets = ClientSockets(self._core, self.memory, self._endpoints, keys)
        self._poller = Poller(self._sockets, f"weft-store-slot-{slot}")
        self.submit = self._poller.submit

    def close(self) -> None:
        if self._process.is_here:  # Else the sockets and the thread are the parent's.
            self._poller.close()

    def end_reason(self) -> str | None:
        """Why it does nothing any more, once that is so: it was closed, or its thread has failed."""
        return self._poller.end_reason()

    def capture(self, step: int, captured: Callable[[Captured | MissedError], None]) -> None:
        """Calls `captured` with copies of this slot's residuals after the steps before `step`, once these are encoded;
        it has to be quick. May be called on any thread, and while pushes are under way."""
        array = residual_array(self._slot)

        def encoded(found: dict[str, Array] | int) -> None:
            if isinstance(found, int):
                captured(MissedError(f"slot {self._slot} has encoded gradients of step {found - 1} already"))
                return
            arrays = [captured_array(array, key, 0, one) for key, one in found.items()]
            captured(Captured(lambda: arrays))

        name, encoders = f"capture of residuals at step {step}", self._core.encoders
        self.submit(LocalOperation(name, lambda: encoders.capture(step, encoded)))

    def resume(self, snapshot: Snapshot, timeout_s: float) -> None:
        """Takes over the residuals of a snapshot, whatever slots there were: before anything is pushed. Raises
        SnapshotError."""
        residuals: dict[str, Array] = {}
        encoders = self._core.encoders
        with SnapshotReader(snapshot) as reader:
            for key, own in encoders.residuals.items():
                former = [slot for slot in map(slot_of, reader.arrays(key)) if slot is not None]
                for one, slot in reassigned(former, self._slots[key]):
                    if slot == self._slot:
                        read = reader.read(residual_array(one), key, 0, own.size, own.dtype)
                        residuals[key] = residuals[key] + read if key in residuals else read
        scale = loss_scale_of(snapshot)
        restored = LocalOperation("restore of residuals", lambda: encoders.restore(residuals, scale))
        self.submit(restored).result(timeout_s)

    def statistics(self) -> ClientStatistics:
        """Counts of this moment; they may move while they are read."""
        links = tuple(self._link_statistics(shard) for shard in range(len(self._endpoints)))
        return ClientStatistics(
            operations=len(self._core.open) + len(self._sockets.submitted),
            links=links,
            rows_pushed=self._core.rows_pushed,
            rows_pulled=self._core.rows_pulled,
            **{name: sum(getattr(link, name) for link in links) for name in _SUMMED},
        )

    def _link_statistics(self, shard: int) -> LinkStatistics:
        link = self._core.links[shard]
        return LinkStatistics(
            **link.counts,
            queued_slices=link.outbox.queued_slices,
            queued_bytes=link.outbox.queued_bytes,
            in_flight_bytes=link.outbox.in_flight_bytes,
            credit_bytes=link.outbox.bounds.credit_bytes,
            rate_bytes_per_s=link.outbox.bounds.bytes_per_s,
            connections=link.session,
            welcomed=link.state is LinkState.OPEN,
            trouble=None if link.trouble is None else str(link.trouble),
            refused=link.state is LinkState.REFUSED,
            taken=isinstance(link.trouble, SlotTakenError),
            same_host=link.outbox.shared,
        )


def _keys_for(description: StoreDescription, slot_keys: CurveKeys | None) -> list[tuple[CurveKeys, str]]:
    """The client's keys and the shard's public one, for each shard where links are encrypted. Raises CurveKeyError."""
    if not description.curve_keys:
        if slot_keys is not None:
            raise CurveKeyError("curve_keys: the description has none for the shards, so links are not encrypted")
        return []
    own = slot_keys or new_curve_keys()
    return [(own, shard) for shard in description.curve_keys]
