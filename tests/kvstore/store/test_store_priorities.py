"""Urgent slices overtake others, both ways, within the credit; and small credits never lock a store up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest

from store_cluster import WAIT_S, clients_of, gradients_of, key_of, served, store_of
from store_proxies import TcpProxy, Way
from store_raw import column
from weft_kvstore.client.store_client import StoreClient
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import decode_reply, decode_request
from weft_kvstore.wire.messages import Done, Pull, Push, Values

TEN_MBIT_PER_S = 10e6 / 8
SLICE_BYTES = 4096
CREDIT_BYTES = 4 * SLICE_BYTES
FRAME_BYTES = 2 * SLICE_BYTES
BULK, URGENT = 0, 1
"""Places of the two keys in the description."""

BULK_SLICES, URGENT_SLICES = 64, 3


def settings_of(*, priorities: bool) -> LinkSettings:
    return LinkSettings(credit_bytes=CREDIT_BYTES, frame_bytes=FRAME_BYTES, priorities=priorities)


class By(Enum):
    """What makes a key urgent. Where its calls do, the description says the opposite."""

    DESCRIPTION = "description"
    CALL = "call"
    NOTHING = "nothing"


@dataclass
class Link:
    """A client whose only shard is behind a slow proxy."""

    client: StoreClient
    proxy: TcpProxy
    description: StoreDescription
    by: By

    @property
    def urgency(self) -> int:
        """The priority of calls of the urgent key."""
        return 1 if self.by is By.CALL else 0

    def pushed(self, key: int) -> list[int]:
        """Bytes of the key's gradient in each message that has arrived at the shard, in order; 0 where it has none."""
        return [self._bytes_of(decode_request(parts)[0], key) for parts in self.proxy.up.arrived]

    def pulled(self, key: int) -> list[int]:
        """Bytes of the key's value in each message that has arrived at the client, in order; 0 where it has none."""
        return [self._bytes_of(decode_reply(parts)[0], key) for parts in self.proxy.down.arrived]

    def _bytes_of(self, message: object, key: int) -> int:
        """What the runs of a Push or a Values carry of a key: in their bucket lies first what is described as more
        urgent."""
        if not isinstance(message, Push | Values):
            return 0
        runs = zip(column(message, "first"), column(message, "nbytes"), strict=True)
        bulk = (lambda first: first < BULK_SLICES) if self.by is By.CALL else (lambda first: first >= URGENT_SLICES)
        return sum(nbytes for first, nbytes in runs if (BULK if bulk(first) else URGENT) == key)


@contextmanager
def slow_link(by: By) -> Iterator[Link]:
    """One slot and one shard, 10 Mbit/s each way. Key `bulk` has 64 slices, `urgent` 3."""
    floats = SLICE_BYTES // 4
    keys = [
        key_of("bulk", (BULK_SLICES * floats,), 1, priority=1 if by is By.CALL else 9),
        key_of("urgent", (URGENT_SLICES * floats,), 1, priority=9 if by is By.CALL else 1),
    ]
    settings = settings_of(priorities=by is not By.NOTHING)
    description = store_of(keys, slots=1, shards=1, slice_bytes=SLICE_BYTES)
    with (
        served(description, settings) as (there, servers),
        TcpProxy(servers[0].endpoint, bytes_per_s=TEN_MBIT_PER_S) as proxy,
        clients_of(there, settings, [proxy.endpoint]) as clients,
    ):
        yield Link(clients[0], proxy, there, by)


def overtaken(way: Way, carried: Callable[[int], list[int]], *, since: int) -> int:
    """Bulk bytes that arrived after message `since` and before the first urgent slice, once all have arrived."""
    everything = [BULK_SLICES * SLICE_BYTES, URGENT_SLICES * SLICE_BYTES]
    way.wait_until(lambda: [sum(carried(key)) for key in (BULK, URGENT)] == everything, "the last slice")
    bulk, urgent = carried(BULK), carried(URGENT)
    first = next(place for place, nbytes in enumerate(urgent) if nbytes)
    assert first >= since
    return sum(bulk[since:first])


def push_bulk_then_urgent(by: By) -> int:
    """Bulk bytes that arrive at the shard after the urgent gradient is handed over and before its first slice.

    The link is held while that happens, with as much under way as the client will send, so that the place between
    handing over and arrival is exact: a pull that enters the link after the push shows that the push is in the queue.
    """
    with slow_link(by) as link:
        gradients = gradients_of(link.description, 0, 0)
        futures = [link.client.push("bulk", 0, gradients["bulk"])]
        link.proxy.up.wait_until(lambda: sum(link.pushed(BULK)) >= 4 * SLICE_BYTES, "the first bulk slices")
        link.proxy.hold(link.proxy.up)
        futures.append(link.client.push("urgent", 0, gradients["urgent"], priority=link.urgency))
        pull = link.client.pull("urgent", 1)
        link.proxy.up.wait_until(lambda: any(_asks(parts) for parts in link.proxy.up.entered), "the pull")
        since = len(link.proxy.up.arrived)
        link.proxy.release(link.proxy.up)
        for future in futures:
            future.result(WAIT_S)
        pull.result(WAIT_S)
        return overtaken(link.proxy.up, link.pushed, since=since)


def pull_bulk_then_urgent(by: By) -> int:
    """Bulk bytes that arrive at the client after the shard has the pull of the urgent value and before its first slice.

    As above; a barrier's answer that enters the link shows that the shard has taken in the pull before it.
    """
    with slow_link(by) as link:
        futures = [link.client.pull("bulk", 0)]
        link.proxy.down.wait_until(lambda: sum(link.pulled(BULK)) >= 4 * SLICE_BYTES, "the first bulk slices")
        link.proxy.hold(link.proxy.down)
        futures.append(link.client.pull("urgent", 0, priority=link.urgency))
        barrier = link.client.barrier(0, ["bulk", "urgent"])
        link.proxy.down.wait_until(
            lambda: any(isinstance(decode_reply(parts)[0], Done) for parts in link.proxy.down.entered), "the barrier"
        )
        since = len(link.proxy.down.arrived)
        link.proxy.release(link.proxy.down)
        barrier.result(WAIT_S)
        for future in futures:
            future.result(WAIT_S)
        return overtaken(link.proxy.down, link.pulled, since=since)


def _asks(parts: list[bytes]) -> bool:
    """Whether a pull is in a message: by itself, or in the push that it follows."""
    message = decode_request(parts)[0]
    return isinstance(message, Pull) or (isinstance(message, Push) and message.pull is not None)


@pytest.mark.parametrize("way", [push_bulk_then_urgent, pull_bulk_then_urgent])
def test_at_most_the_credit_and_one_slice_arrive_before_an_urgent_slice(way: Callable[[By], int]) -> None:
    """Whether the description or the call says that it is urgent. The same bound is broken with priorities off, so it
    is the mechanism that keeps it."""
    bound = CREDIT_BYTES + SLICE_BYTES
    assert way(By.DESCRIPTION) <= bound
    assert way(By.CALL) <= bound
    assert way(By.NOTHING) > 2 * bound


@pytest.mark.parametrize("priorities", [True, False])
def test_161_keys_with_a_credit_of_two_slices_never_lock_up(priorities: bool) -> None:
    """As many keys as ResNet-50 has parameters; every push and pull of a step is open at once, over four links.

    Each client has one IO thread. Pulls of a step are issued before its pushes, so they wait on the shards meanwhile.
    """
    slots, steps = 2, 2
    sizes = np.random.Generator(np.random.Philox(key=161)).integers(1, 2500, 161)
    keys = [key_of(f"k{place}", (int(size),), slots, priority=161 - place) for place, size in enumerate(sizes)]
    settings = LinkSettings(credit_bytes=2048, frame_bytes=1024, priorities=priorities)
    description = store_of(keys, slots=slots, shards=2, hyper={"lr": 1.0})
    with served(description, settings) as (there, _), clients_of(there, settings) as clients:
        first = clients[0]
        expected = {key.key: first.pull(key.key, 0).result(WAIT_S).copy() for key in keys}
        for step in range(steps):
            pulls = [(key.key, client.pull(key.key, step + 1)) for client in clients for key in keys]
            gradients = [gradients_of(description, slot, step) for slot in range(slots)]
            pushes = [
                client.push(key.key, step, gradients[slot][key.key])
                for key in reversed(keys)
                for slot, client in enumerate(clients)
            ]
            pushes += [client.barrier(step, []) for client in clients]
            for push in pushes:
                push.result(WAIT_S)
            for key in keys:
                expected[key.key] -= gradients[0][key.key] + gradients[1][key.key]
            for name, pull in pulls:
                assert pull.result(WAIT_S).tobytes() == expected[name].tobytes()
