"""Urgent slices overtake others, both ways, within the credit; and small credits never lock a store up."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from store_cluster import gradients_of, key_of, store_of
from store_raw import column
from store_simulation import Simulation
from weft_kvstore.settings import LinkSettings
from weft_kvstore.wire.codec import decode_reply, decode_request
from weft_kvstore.wire.messages import Pull, Push, Values

SLICE_BYTES = 4096
CREDIT_BYTES = 4 * SLICE_BYTES
BULK_SLICES, URGENT_SLICES = 64, 3
CHOOSE = random.Random(5)


class Link:
    """A slot and a shard. `by` is what makes key `urgent` urgent: its description, its calls (the description says
    the opposite then), or nothing (priorities are off)."""

    def __init__(self, by: str) -> None:
        floats = SLICE_BYTES // 4
        keys = [
            key_of("bulk", (BULK_SLICES * floats,), 1, priority=1 if by == "call" else 9),
            key_of("urgent", (URGENT_SLICES * floats,), 1, priority=9 if by == "call" else 1),
        ]
        link = LinkSettings(credit_bytes=CREDIT_BYTES, frame_bytes=2 * SLICE_BYTES, priorities=by != "nothing")
        self.simulation = Simulation(store_of(keys, slots=1, shards=1, slice_bytes=SLICE_BYTES), link)
        self.simulation.settle(CHOOSE)
        self.store = self.simulation.stores[0]
        self.urgency = 1 if by == "call" else 0
        self.is_bulk_first = by == "call"
        """In their bucket lies first what is described as more urgent."""

    def until(self, arrived: Callable[[list[Any]], bool], way: str) -> int:
        """Goes on until what has come that way is enough; returns how many messages have come, both ways."""
        while not arrived(self.messages(way)):
            assert self.simulation.step(CHOOSE)
        return len(self.simulation.delivered)

    def messages(self, way: str, since: int = 0) -> list[Any]:
        decode: Any = decode_request if way == "up" else decode_reply
        return [decode(parts)[0] for one, parts in self.simulation.delivered[since:] if one == way]

    def overtaken(self, way: str, since: int, *futures: Future[Any]) -> int:
        """Bulk bytes that arrive after message `since` and before the first urgent slice."""
        self.simulation.finish(CHOOSE, *futures)
        found = 0
        for message in self.messages(way, since):
            bulk, urgent = carried([message], is_bulk_first=self.is_bulk_first)
            if urgent:
                return found
            found += bulk
        raise AssertionError("no urgent slice has come")


def carried(messages: list[Any], *, is_bulk_first: bool) -> tuple[int, int]:
    """Bytes of the bulk and of the urgent key in these messages."""
    found = [0, 0]
    for message in messages:
        for first, nbytes in (
            zip(column(message, "first"), column(message, "nbytes"), strict=True)
            if isinstance(message, Push | Values)
            else ()
        ):
            found[first >= BULK_SLICES if is_bulk_first else first < URGENT_SLICES] += nbytes
    return found[0], found[1]


def push_bulk_then_urgent(by: str) -> int:
    """Bulk bytes that arrive at the shard between the moment in which the urgent gradient is pushed, with as much under
    way as the client sends, and its first slice."""
    link = Link(by)
    push = link.store.push("bulk", 0, np.ones(BULK_SLICES * SLICE_BYTES // 4, np.float32))
    since = link.until(lambda sent: carried(sent, is_bulk_first=link.is_bulk_first)[0] >= CREDIT_BYTES, "up")
    gradient = np.ones(URGENT_SLICES * SLICE_BYTES // 4, np.float32)
    return link.overtaken("up", since, push, link.store.push("urgent", 0, gradient, priority=link.urgency))


def pull_bulk_then_urgent(by: str) -> int:
    """Bulk bytes that arrive at the client after the shard has the pull of the urgent value and before its first
    slice."""
    link = Link(by)
    bulk = link.store.pull("bulk", 0)
    link.until(lambda sent: carried(sent, is_bulk_first=link.is_bulk_first)[0] >= CREDIT_BYTES, "down")
    urgent = link.store.pull("urgent", 0, priority=link.urgency)
    since = link.until(lambda sent: sum(isinstance(one, Pull) for one in sent) == 2, "up")
    return link.overtaken("down", since, bulk, urgent)


@pytest.mark.parametrize("way", [push_bulk_then_urgent, pull_bulk_then_urgent])
def test_at_most_the_credit_and_one_slice_arrive_before_an_urgent_slice(way: Callable[[str], int]) -> None:
    """Whether the description or the call says that it is urgent. The same bound is broken with priorities off, so it
    is the mechanism that keeps it."""
    bound = CREDIT_BYTES + SLICE_BYTES
    assert way("description") <= bound
    assert way("call") <= bound
    assert way("nothing") > 2 * bound


@pytest.mark.parametrize("priorities", [True, False])
def test_161_keys_with_a_credit_of_two_slices_never_lock_up(priorities: bool) -> None:
    """As many keys as ResNet-50 has parameters; every push and pull of a step is open at once, over four links. Pulls
    of a step are issued before its pushes, so they wait on the shards meanwhile."""
    slots = 2
    sizes = np.random.Generator(np.random.Philox(key=161)).integers(1, 800, 161)
    keys = [key_of(f"k{place}", (int(size),), slots, priority=161 - place) for place, size in enumerate(sizes)]
    link = LinkSettings(credit_bytes=2048, frame_bytes=1024, priorities=priorities)
    description = store_of(keys, slots=slots, shards=2, hyper={"lr": 1.0})
    simulation, names = Simulation(description, link), [key.key for key in keys]
    stores = simulation.stores.values()
    begun = [store.pull(name, 0) for store in stores for name in names]
    simulation.finish(CHOOSE, *begun)
    expected = {name: pull.result(0).copy() for name, pull in zip(names, begun, strict=False)}
    pulls = [(name, store.pull(name, 1)) for store in stores for name in names]
    gradients = [gradients_of(description, slot, 0) for slot in range(slots)]
    pushes = [store.push(name, 0, gradients[slot][name]) for name in names for slot, store in enumerate(stores)]
    pushes += [store.barrier(0, []) for store in stores]
    simulation.finish(CHOOSE, *pushes, *(pull for _, pull in pulls))
    for name, pull in pulls:
        assert pull.result(0).tobytes() == (expected[name] - (gradients[0][name] + gradients[1][name])).tobytes()
