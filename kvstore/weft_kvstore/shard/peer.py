"""A connection that has said Hello, as its shard sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.lot.part import PlainLot
from weft_kvstore.merging.answer import Answer
from weft_kvstore.merging.pull_wait import PullWait
from weft_kvstore.same_host.peer_memory import PeerMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.shard.account import Account
from weft_kvstore.statistics.shared_bytes import SharedBytes
from weft_kvstore.units.unit_state import AnyUnit
from weft_kvstore.wire.codec import ProtocolError, encode
from weft_kvstore.wire.lending import Loan
from weft_kvstore.wire.messages import MAX_RUNS, Acknowledge, Done, Hello, Released, Values
from weft_kvstore.wire.out_frame import OutFrame
from weft_kvstore.wire.out_run import OutRun
from weft_kvstore.wire.outbox import Outbox

MAX_OPEN_PULLS: Final = 1 << 16
"""Pulls, each counted as often as it has runs, that one connection may have open: two kinds for each of 32,768 keys.
With each step that applies the runs of all that wait are looked at."""

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
    place: bool = False
    """Whether they may be written to the places of their keys."""


class Peer:
    """One client's connection. `pulls` are those not answered, `open_entries` the runs that they ask for, `ids_bytes`
    what their ids take, `acknowledge` the frames not yet acknowledged, `measures` the requests for what steps amount
    to, with the step.

    Of a client on this host, `memory` is its arena, while it has brought one for `ticket`; `holds` counts the frames
    that are read there, `released` are those that are not any more, which it is told once no `earlier` connection of
    its slot has any. What passes through it is added to `shared`, the job's count and the shard's.
    """

    def __init__(self, identity: bytes, hello: Hello, settings: LinkSettings, now: float) -> None:
        self.identity = identity
        self.job = (hello.job, hello.term)
        self.slot = hello.slot
        self.hello = hello
        self.heard = now
        self.outbox: Outbox[AnswerEntry, Loan] = Outbox(settings, loopback=hello.loopback)
        self.pulls: dict[int, PullWait] = {}
        self.open_entries = 0
        self.ids_bytes = 0
        self.acknowledge: list[int] = []
        self.ticket = b""
        self.memory: PeerMemory | None = None
        self.holds = 0
        self.released: list[int] = []
        self.earlier: list[Peer] = []
        self._copied: dict[int, tuple[PeerMemory, int | None]] = {}
        self.done: list[int] = []
        self.measures: dict[int, int] = {}
        self.account = Account()
        self.shared: tuple[SharedBytes, ...] = ()
        self._answers: dict[int, dict[int, OutRun[AnswerEntry, Loan]]] = {}
        """The runs of each request that wait in the outbox, by their number there."""

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
        place = wait.place and not wait.state
        for part in lot.pulls.answers(wait, first, stop):
            self._put(wait, part, place=place)
        wait.answered(lot.state.spec.number, first, stop)
        self._look(wait)

    def asks(self, wait: PullWait) -> None:
        """A pull that is not answered yet."""
        self.pulls[wait.request] = wait

    def asks_for(self, wait: PullWait) -> None:
        """One run more of it. Raises ProtocolError for one too many."""
        if self.open_entries >= MAX_OPEN_PULLS:
            raise ProtocolError(f"Pull.request: {wait.request}: {MAX_OPEN_PULLS} runs are asked for already")
        wait.entries += 1
        self.open_entries += 1

    def receipts(self) -> Iterator[list[Buffer]]:
        """Says what was taken in since the last time; that frames have arrived is said by a frame, or last of all."""
        if self.done:
            yield encode(Done(self.done))
            self.done = []
        released = [] if self.earlier else self.released
        if released:
            self.released = []
            self.acknowledge = [frame for frame in self.acknowledge if frame not in released]
        if released:
            yield encode(Released(released))

    def late_receipts(self) -> Iterator[list[Buffer]]:
        """Says of the frames that have arrived what no frame of values has said meanwhile."""
        while self.acknowledge:
            yield encode(Acknowledge(self._receipts()))

    def _receipts(self) -> list[int]:
        found, self.acknowledge = self.acknowledge[:MAX_RUNS], self.acknowledge[MAX_RUNS:]
        return found

    def frames(self, now: float) -> Iterator[list[Buffer]]:
        """As many frames of values as credit allows."""
        while (parts := self.next_frame(now)) is not None:
            yield parts

    def next_frame(self, now: float) -> list[Buffer] | None:
        """The next frame of values, if there are some and credit allows one."""
        frame = self.outbox.fill(now)
        if frame is None:
            return None
        for piece in frame.pieces:
            if not piece.run.waiting:
                self._has_left(piece.run)
        if self.memory is None:
            return encode(_values(frame, self._receipts(), None, placed=False), frame.payload())
        return self._shared(frame, self.memory)

    def _shared(self, frame: OutFrame[AnswerEntry, Loan], memory: PeerMemory) -> list[Buffer]:
        """A frame whose bytes are copied to where the client has them at once; so no array stays lent."""
        parts: list[Buffer] = []
        nbytes = 0
        for piece in frame.pieces:
            run, cut = piece.run, piece.run.source.cut(piece.start, piece.stop)
            if run.entry.place and memory.places:
                first = run.first + piece.first
                memory.put(run.entry.lot, first, first + piece.count, cut)
            else:
                parts += cut
                nbytes += piece.stop - piece.start
        at = memory.lay(parts, nbytes)
        payload = b"".join(parts) if at is None and parts else None
        through_memory = frame.nbytes if payload is None else frame.nbytes - nbytes
        for count in self.shared:
            count.sent += through_memory
        for piece in frame.pieces:
            piece.run.owner.give_back(piece.first, piece.count)
        self._copied[frame.number] = memory, at
        return encode(_values(frame, self._receipts(), at, placed=bool(memory.places)), payload)

    def _put(self, wait: PullWait, part: Answer, *, place: bool = False) -> None:
        if part.held is None:
            self.account.taken_over(part.source.base)
        entry = AnswerEntry(
            wait.request, part.array, part.lot, part.version, int(part.compressed), place and not part.compressed
        )
        run: OutRun[AnswerEntry, Loan] = OutRun(
            entry,
            part.first,
            part.bounds,
            part.source,
            priority=part.priority,
            owner=Loan(part.held, part.part, part.parts),
            priorities=part.priorities,
        )
        self.outbox.put(run)
        self._answers.setdefault(wait.request, {})[run.seq] = run

    def _has_left(self, run: OutRun[AnswerEntry, Loan]) -> None:
        """Nothing of a run waits any more. A frame may have several pieces of it."""
        runs = self._answers.get(run.entry.request, {})
        runs.pop(run.seq, None)
        if not runs:
            self._answers.pop(run.entry.request, None)

    def _look(self, wait: PullWait) -> None:
        if wait.is_answered:
            self._forget(wait)

    def _forget(self, wait: PullWait) -> None:
        if self.pulls.pop(wait.request, None) is not None:
            self.ids_bytes -= wait.ids_bytes
            self.open_entries -= wait.entries

    def arrived(self, frame: int, now: float) -> None:
        """The client has acknowledged a frame. Raises ProtocolError for one that is not under way."""
        pieces = self.outbox.acknowledge(frame, now)
        copied = self._copied.pop(frame, None)
        if copied is None:
            for piece in pieces:
                piece.run.owner.give_back(piece.first, piece.count)
        elif copied[1] is not None:
            copied[0].give(copied[1])

    def cancel(self, request: int) -> None:
        """The client waits for this pull no longer: what of it has not left will not."""
        self.measures.pop(request, None)
        wait = self.pulls.get(request)
        if wait is not None:
            wait.drop()
            self._forget(wait)
        for run in self._answers.pop(request, {}).values():
            self.outbox.cancel(run)
            run.owner.give_back(run.sent, run.waiting)

    def cancel_all(self, requests: Iterable[int]) -> None:
        """The client waits for none of these."""
        for request in requests:
            self.cancel(request)

    def close(self) -> None:
        """The connection is gone: nothing waits for it any more."""
        for wait in self.pulls.values():
            wait.drop()
        self.pulls.clear()
        self._answers.clear()
        for run in self.outbox.clear():
            run.owner.give_back(0, run.count)


def _values(frame: OutFrame[AnswerEntry, Loan], acknowledge: list[int], at: int | None, *, placed: bool) -> Values:
    entries, first, count, nbytes = zip(*frame.runs(), strict=True)
    request, array, lot, version, compressed, place = map(list, zip(*entries, strict=True))
    return Values(
        frame.number,
        request,
        array,
        lot,
        version,
        list(first),
        list(count),
        list(nbytes),
        compressed,
        at,
        [int(one) for one in place] if placed and any(place) else [],
        acknowledge,
    )
