"""A shard written as plainly as it can be: buckets as NumPy arrays, gradients of one slot added to them, no rule.

It speaks the wire's bytes, checks every number it is told against the description, and cuts its answers at random.
"""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Future
from typing import Any

import numpy as np

from weft_kvstore.client.calls import StoreCalls
from weft_kvstore.client.core import ClientCore
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.settings import LinkSettings
from weft_kvstore.sharding import BucketPart, routing_of
from weft_kvstore.wire.codec import decode_request, encode
from weft_kvstore.wire.messages import (
    Acknowledge,
    Cancel,
    Failed,
    FailureCode,
    Hello,
    Message,
    PayloadKind,
    Ping,
    Pong,
    Pull,
    Push,
    Reading,
    Values,
    Welcome,
)

Parts = list[bytes]


class HeldBucket:
    """What the shard has of a bucket: its values as bytes, and each slice's version."""

    def __init__(self, part: BucketPart, dtype: np.dtype[Any]) -> None:
        self.part = part
        self.dtype = dtype
        self.values = np.zeros(int(part.bounds[-1]), np.uint8)
        self.versions = np.zeros(len(part), np.int64)

    def bytes_of(self, first: int, count: int) -> np.ndarray:
        assert 0 <= first < first + count <= len(self.part)
        return self.values[self.part.bounds[first] : self.part.bounds[first + count]]


class BucketShard:
    """Shard `number` of a description with one slot."""

    def __init__(self, description: StoreDescription, number: int, choose: random.Random) -> None:
        routing = routing_of(description)
        self.buckets = {
            bucket.number: HeldBucket(bucket.parts[number], np.dtype(description.keys[bucket.keys[0]].dtype))
            for bucket in routing.buckets
            if number in bucket.parts
        }
        self.choose = choose
        self.out: deque[Parts] = deque()
        self.waiting: list[tuple[int, int, int, int, int, int]] = []
        self.frames = 0
        self.most_runs = 0
        self.session = 0
        self.deaf = False
        """Whether what is pushed goes unheard."""
        self.taken: set[tuple[int, int, int]] = set()
        """(bucket, slice, step) of gradients that were added."""

    def receive(self, parts: Parts) -> None:
        message, payload, _ = decode_request(parts)
        if isinstance(message, Hello):
            if message.session == self.session:
                return  # It was said again.
            self.session = message.session
            self.waiting = []
            self.say(Welcome(message.session, bytes(16), 5000))
        elif isinstance(message, Ping):
            self.say(Pong())
        elif isinstance(message, Push) and not self.deaf:
            self.most_runs = max(self.most_runs, len(message.runs))
            self.push(message, np.frombuffer(payload, np.uint8))
            self.say(Acknowledge([message.frame]))
        elif isinstance(message, Pull):
            for request, version, _, reading, _, runs in message.asks:
                self.waiting += [(request, bucket, version, reading, first, count) for bucket, first, count, _ in runs]
        elif isinstance(message, Cancel):
            self.waiting = [one for one in self.waiting if one[0] not in message.request]
        self.answer()

    def push(self, message: Push, payload: np.ndarray) -> None:
        begin = 0
        for payload_kind, _, bucket, step, _, first, count, nbytes in message.runs:
            held, given = self.buckets[bucket], payload[begin : begin + nbytes]
            begin += nbytes
            mine = held.bytes_of(first, count)
            assert mine.nbytes == nbytes
            if payload_kind == PayloadKind.VALUE:
                mine[:] = given
                continue
            for number in range(first, first + count):
                if (bucket, number, step) in self.taken:
                    continue
                self.taken.add((bucket, number, step))
                assert held.versions[number] == step
                held.versions[number] += 1
                own = held.bytes_of(number, 1)
                at = int(held.part.bounds[number] - held.part.bounds[first])
                summed = own.view(held.dtype) + given[at : at + own.nbytes].copy().view(held.dtype)
                own[:] = summed.view(np.uint8)

    def answer(self) -> None:
        """Answers what can be, some slices at a time, as frames of several runs."""
        self.choose.shuffle(self.waiting)
        runs: list[tuple[int, int, int, int, int, np.ndarray]] = []
        left = []
        for request, bucket, version, reading, first, count in self.waiting:
            here = self.buckets[bucket].versions[first : first + count]
            if reading == Reading.EXACT and here.max() > version:
                self.say(Failed(request, FailureCode.PASSED, f"bucket {bucket} has passed version {version}"))
            elif here.min() < version:
                left.append((request, bucket, version, reading, first, count))
            else:
                runs += self.cut(request, bucket, first, count)
        self.waiting = left
        while runs:
            some = self.choose.randint(1, len(runs))
            self.frames += 1
            rows = [
                (request, 0, bucket, version, False, first, count, part.nbytes)
                for request, bucket, version, first, count, part in runs[:some]
            ]
            self.say(Values(self.frames, rows), np.concatenate([run[-1] for run in runs[:some]]).tobytes())
            runs = runs[some:]

    def cut(
        self, request: int, bucket: int, first: int, count: int
    ) -> list[tuple[int, int, int, int, int, np.ndarray]]:
        """Runs of slices of one version, as many as chance has it."""
        held, found = self.buckets[bucket], []
        stop = first + count
        while first < stop:
            version = int(held.versions[first])
            same = 1
            while first + same < stop and held.versions[first + same] == version:
                same += 1
            some = self.choose.randint(1, same)
            found.append((request, bucket, version, first, some, held.bytes_of(first, some).copy()))
            first += some
        return found

    def say(self, message: Message, payload: bytes | None = None) -> None:
        self.out.append([bytes(part) for part in encode(message, payload)])


class BucketCluster:
    """One client and its shards; what is said arrives in order, or not at all where a connection breaks."""

    def __init__(self, description: StoreDescription, seed: int, settings: LinkSettings | None = None) -> None:
        self.choose = random.Random(seed)
        self.now = 0.0
        self.shards = [BucketShard(description, number, self.choose) for number in range(len(description.shards))]
        self.up: list[deque[Parts]] = [deque() for _ in self.shards]
        self.core = ClientCore(
            description,
            0,
            1,
            bytes(16),
            settings=settings or LinkSettings(),
            endpoints=description.shards,
            now=self.now,
        )
        self.store = StoreCalls(description, 0)
        self.store.hand_to(lambda operation: self.core.begin(operation, self.now))

    def step(self) -> bool:
        """Delivers one message; False if there is none."""
        self.pump()
        ways = [("up", number) for number, queue in enumerate(self.up) if queue]
        ways += [("down", number) for number, shard in enumerate(self.shards) if shard.out]
        if not ways:
            return False
        way, number = self.choose.choice(ways)
        if way == "up":
            self.shards[number].receive(self.up[number].popleft())
        else:
            self.core.receive(number, self.shards[number].out.popleft(), self.now)
        return True

    def cut(self, number: int) -> None:
        """Breaks the connection to a shard."""
        self.up[number].clear()
        self.shards[number].out.clear()
        self.core.disconnected(number, self.now)

    def finish(self, future: Future[Any], *, cuts: float = 0.0) -> Any:
        """What a future ends with; before each message a connection breaks with that probability."""
        for _ in range(200):
            while self.step():
                if self.choose.random() < cuts:
                    self.cut(self.choose.randrange(len(self.shards)))
            if future.done():
                return future.result(0)
            self.now += 0.25
        raise AssertionError("the store stands still")

    def pump(self) -> None:
        self.core.tick(self.now)
        for link in self.core.links:
            link.flush(self.now)
            if link.reopen:
                link.reopen = False
                self.up[link.shard].clear()
                self.shards[link.shard].out.clear()
            outgoing, link.outgoing = link.outgoing, []
            self.up[link.shard] += [[bytes(part) for part in parts] for parts in outgoing]
        self.core.end_futures()
