"""A connection that has said Hello, as its shard sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from weft_kvstore.account import Account
from weft_kvstore.answer import Answer
from weft_kvstore.codec import Buffer, encode
from weft_kvstore.lending import Loan
from weft_kvstore.lot_part import PlainLot
from weft_kvstore.messages import Acknowledge, Done, Hello, Values
from weft_kvstore.out_run import OutRun
from weft_kvstore.outbox import Outbox
from weft_kvstore.pull_wait import PullWait
from weft_kvstore.settings import LinkSettings
from weft_kvstore.unit_state import AnyUnit

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
    lot: int
    version: int
    compressed: int


class Peer:
    """One client's connection. `pulls` are those not answered, `ids_bytes` what their ids take, `acknowledge` the
    frames not yet acknowledged, `measures` the requests for what steps amount to, with the step."""

    def __init__(self, identity: bytes, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.identity = identity
        self.job = (hello.job, hello.term)
        self.slot = hello.slot
        self.hello = hello
        self.heard = now
        self.outbox: Outbox[AnswerEntry, Loan] = Outbox(settings)
        self.pulls: dict[int, PullWait] = {}
        self.ids_bytes = 0
        self.acknowledge: list[int] = []
        self.done: list[int] = []
        self.measures: dict[int, int] = {}
        self.account = Account()

    def answer(self, wait: PullWait, one: AnyUnit) -> Iterator[None]:
        """Hands an answer over to the outbox, and stops after each piece; its bytes are kept as they are until they
        are acknowledged."""
        for part in one.answers(wait):
            if part is not None:
                self._put(wait, part)
                continue
            yield
            if wait.dropped:
                return
        wait.open_units.discard(one.spec.lot)
        self._look(wait)

    def answer_range(self, wait: PullWait, lot: PlainLot, first: int, stop: int) -> None:
        """The same for slices of a lot, which are ready."""
        for part in lot.pulls.answers(wait, first, stop):
            self._put(wait, part)
        wait.answered(lot.state.spec.number, first, stop)
        self._look(wait)

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
                lot=[run.entry.lot for run in runs],
                version=[run.entry.version for run in runs],
                first=[run.first for run in runs],
                count=[run.count for run in runs],
                nbytes=[run.nbytes for run in runs],
                compressed=[run.entry.compressed for run in runs],
            )
            yield encode(message, frame.payload())

    def _put(self, wait: PullWait, part: Answer) -> None:
        if part.held is None:
            self.account.taken_over(part.source.base)
        entry = AnswerEntry(wait.request, part.array, part.lot, part.version, int(part.compressed))
        self.outbox.put(
            OutRun(
                entry,
                part.first,
                part.bounds,
                part.source,
                priority=part.priority,
                owner=Loan(part.held, part.part, part.parts),
                priorities=part.priorities,
            )
        )

    def _look(self, wait: PullWait) -> None:
        if wait.is_answered:
            self._forget(wait)

    def _forget(self, wait: PullWait) -> None:
        if self.pulls.pop(wait.request, None) is not None:
            self.ids_bytes -= wait.ids_bytes

    def arrived(self, frame: int, now: float) -> None:
        """The client has acknowledged a frame. Raises ProtocolError for one that is not under way."""
        for piece in self.outbox.acknowledge(frame, now):
            piece.run.owner.give_back(piece.first, piece.count)

    def cancel(self, request: int) -> None:
        """The client waits for this pull no longer: what of it has not left will not."""
        self.measures.pop(request, None)
        wait = self.pulls.get(request)
        if wait is not None:
            wait.drop()
            self._forget(wait)
        for run in self.outbox.withdraw(lambda one: one.entry.request == request):
            run.owner.give_back(run.sent, run.waiting)

    def close(self) -> None:
        """The connection is gone: nothing waits for it any more."""
        for wait in self.pulls.values():
            wait.drop()
        self.pulls.clear()
        for run in self.outbox.clear():
            run.owner.give_back(0, run.count)
