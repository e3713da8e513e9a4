"""A connection that has said Hello, as its shard sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from weft_kvstore.codec import Buffer, encode
from weft_kvstore.messages import Acknowledge, Done, Hello, Values
from weft_kvstore.outbox import Outbox, OutSlice
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.settings import LinkSettings
from weft_kvstore.unit_state import Answer, AnyUnit, Lendable

MAX_OPEN_PULLS: Final = 1 << 16
"""Pulls that one connection may have open: two kinds for each of 32,768 keys."""

MAX_OPEN_MEASURES: Final = 64
"""The same for steps that it asks of: a worker has two under way."""

MAX_IDS_BYTES: Final = 1 << 28
"""Ids of rows that one connection's open pulls may hold: eight of the largest that a client makes."""


class AnswerEntry(NamedTuple):
    """What a run of values says beside slice numbers: see `messages.Values`."""

    request: int
    array: int
    version: int


class Peer:
    """One client's connection. `pulls` are those not answered, `ids_bytes` what their ids take, `acknowledge` the
    frames not yet acknowledged, `measures` the requests for what steps amount to, with the step."""

    def __init__(self, identity: bytes, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.identity = identity
        self.job = (hello.job, hello.term)
        self.slot = hello.slot
        self.hello = hello
        self.heard = now
        self.outbox: Outbox[AnswerEntry, Lendable | None] = Outbox(settings)
        self.pulls: dict[int, PullWait] = {}
        self.ids_bytes = 0
        self.acknowledge: list[int] = []
        self.done: list[int] = []
        self.measures: dict[int, int] = {}

    def answer(self, wait: PullWait, one: AnyUnit) -> Iterator[None]:
        """Hands an answer over to the outbox, and stops after each piece; its bytes are kept as they are until they
        are acknowledged."""
        version = max(one.steps.seen(wait.slot, settled=wait.settled), wait.version)
        for part in one.answers(wait):
            if part is not None:
                self._put(wait, part, version, one.spec.priority)
                continue
            yield
            if wait.dropped:
                return
        wait.open.discard(one.index)
        if not wait.open:
            self._forget(wait)

    def asks(self, wait: PullWait) -> None:
        """A pull that is not answered yet."""
        self.pulls[wait.request] = wait

    def receipts(self) -> Iterator[list[Buffer]]:
        """Says what was taken in since the last time."""
        if self.done:
            yield encode(Done(self.done))
            self.done = []
        if self.acknowledge:
            yield encode(Acknowledge(self.acknowledge))
            self.acknowledge = []

    def frames(self, now: float) -> Iterator[list[Buffer]]:
        """As many frames of values as credit allows."""
        while (frame := self.outbox.fill(now)) is not None:
            runs = frame.runs()
            message = Values(
                frame=frame.number,
                request=[run.entry.request for run in runs],
                array=[run.entry.array for run in runs],
                version=[run.entry.version for run in runs],
                first=[run.first for run in runs],
                count=[run.count for run in runs],
                nbytes=[run.nbytes for run in runs],
            )
            yield encode(message, frame.payload())

    def _put(self, wait: PullWait, part: Answer, version: int, priority: int) -> None:
        if part.held is not None:
            part.held.lent += 1
        entry = AnswerEntry(wait.request, part.array, version)
        owner = part.held
        self.outbox.put(OutSlice(entry, part.part, part.base, part.start, part.stop, priority=priority, owner=owner))

    def _forget(self, wait: PullWait) -> None:
        if self.pulls.pop(wait.request, None) is not None:
            self.ids_bytes -= wait.ids_bytes

    def arrived(self, frame: int, now: float) -> None:
        """The client has acknowledged a frame. Raises ProtocolError for one that is not under way."""
        _give_back(self.outbox.acknowledge(frame, now))

    def cancel(self, request: int) -> None:
        """The client waits for this pull no longer: what of it has not left will not."""
        self.measures.pop(request, None)
        wait = self.pulls.get(request)
        if wait is not None:
            wait.drop()
            self._forget(wait)
        _give_back(self.outbox.withdraw(lambda one: one.entry.request == request))

    def close(self) -> None:
        """The connection is gone: nothing waits for it any more."""
        for wait in self.pulls.values():
            wait.drop()
        self.pulls.clear()
        _give_back(self.outbox.clear())


def _give_back(slices: Iterable[OutSlice[AnswerEntry, Lendable | None]]) -> None:
    for one in slices:
        if one.owner is not None:
            one.owner.lent -= 1
