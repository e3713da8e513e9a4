"""Messages that wait to be handled: at once, or where jobs share a shard each job's at its turn. Pure."""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from weft_kvstore.arrays import Buffer
from weft_kvstore.merging.work import Work
from weft_kvstore.shard.links import Links
from weft_kvstore.shard.merger import Merger
from weft_kvstore.shard.peer import STRANGERS, Namespace
from weft_kvstore.wire.codec import ProtocolError

# --- Messages that wait to be handed over, where several jobs share a shard: each job's go at its own turns -----------
# What a message costs is known before it is read: its bytes, and its header's many times over, for each run in it is
# handled by itself. Within a job, connections have their turns by these costs (start-time fair queueing, Goyal, Vin and
# Cheng 1996): what one says too much of waits behind what the others say, and one connection's messages stay in order.


LETTER_BYTES: Final = 1 << 15
"""What any message counts for, beside its bytes."""

HEADER_FACTOR: Final = 1 << 10
"""What a byte of a header counts for: a run takes some fifteen, and as long as 16 KiB take to be merged."""

AT_ONCE_BYTES: Final = 1 << 18
"""What is handed over in one piece, at least one message: some 100 us."""

MOST_LETTERS: Final = 1 << 14
MOST_LETTER_BYTES: Final = 1 << 28
"""What may wait of one job. Clients stay far below by their credit."""

MOST_ENDS: Final = 4 * MOST_LETTERS
"""Connections of a job of which it is known where they are, though nothing of them waits."""

URGENT: Final = -(1 << 62)

J = TypeVar("J", bound=Hashable)


class Letter(NamedTuple):
    """A message from a connection, and when it came."""

    identity: bytes
    parts: Sequence[Buffer]
    now: float
    nbytes: int
    cost: int


def letter_of(identity: bytes, parts: Sequence[Buffer], now: float) -> Letter:
    """The message with what it costs."""
    nbytes = sum(len(part) for part in parts)
    header = len(parts[0]) if parts else 0
    return Letter(identity, parts, now, nbytes, LETTER_BYTES + HEADER_FACTOR * header + nbytes)


class Letters(Work):
    """One job's messages. They are its `todo`: what is handed over next is last.

    A message's place is where the messages before it of its connection end, or where the job is at, which is the place
    of what was handed over last; it ends its cost further on. While any wait, `_ends` knows where each connection's
    last one ends, handed over or not: else whoever says one thing at a time would always be first.
    """

    __slots__ = ("_at", "_came", "_deliver", "_ends", "nbytes")

    hands_over = True

    def __init__(self, deliver: Callable[[Letter], None]) -> None:
        super().__init__(URGENT)
        self.todo: Any = []
        self.nbytes = 0
        self._deliver = deliver
        self._at = 0
        self._came = 0
        self._ends: dict[bytes, int] = {}

    @property
    def piece_bytes(self) -> int:
        cost = 0
        for _, _, letter in reversed(self.todo):
            cost += letter.cost
            if cost >= AT_ONCE_BYTES:
                break
        return cost

    def put(self, letter: Letter) -> None:
        """Takes a message in."""
        if not self.todo:
            self._ends.clear()
        place = max(self._ends.pop(letter.identity, 0), self._at)
        if len(self._ends) >= MOST_ENDS:
            self._forget_ends()
        self._ends[letter.identity] = place + letter.cost
        self._came += 1
        insort(self.todo, (-place, -self._came, letter))
        self.nbytes += letter.nbytes

    def forget(self, identity: bytes) -> None:
        """Drops a connection's messages."""
        self.todo[:] = [one for one in self.todo if one[2].identity != identity]
        self.nbytes = sum(letter.nbytes for _, _, letter in self.todo)

    def step(self) -> None:
        cost = 0
        while self.todo and cost < AT_ONCE_BYTES:
            place, _, letter = self.todo.pop()
            self._at = -place
            self.nbytes -= letter.nbytes
            cost += letter.cost
            self._deliver(letter)

    def _forget_ends(self) -> None:
        """Keeps those of connections with messages that wait, which stay in order by them."""
        wait = {letter.identity for _, _, letter in self.todo}
        self._ends = {identity: end for identity, end in self._ends.items() if identity in wait}


class _Waiting:
    """Of a connection some of whose messages wait: their job, how many, and what they cost."""

    __slots__ = ("cost", "count", "job")

    def __init__(self, job: Any) -> None:
        self.job = job
        self.count = self.cost = 0


class Inbox(Generic[J]):
    """Messages by job. `_where` has each connection with some that wait: so they stay in order when it becomes known
    whose it is."""

    def __init__(self, deliver: Callable[[Letter], None]) -> None:
        self._deliver = deliver
        self._letters: dict[J, Letters] = {}
        self._where: dict[bytes, _Waiting] = {}

    def __len__(self) -> int:
        return sum(len(one.todo) for one in list(self._letters.values()))

    def lane_of(self, identity: bytes) -> J | None:
        """The job among whose messages some of a connection's wait."""
        found = self._where.get(identity)
        return None if found is None else found.job

    def has(self, job: J) -> bool:
        """Whether messages of a job wait."""
        letters = self._letters.get(job)
        return letters is not None and bool(letters.todo)

    def put(self, job: J, letter: Letter) -> Letters:
        """Takes a message in; what is to be carried out for it."""
        letters = self._letters.get(job)
        if letters is None:
            letters = self._letters[job] = Letters(self._hand_over)
        waiting = self._where.get(letter.identity)
        if waiting is None:
            waiting = self._where[letter.identity] = _Waiting(job)
        waiting.count += 1
        waiting.cost += letter.cost
        letters.put(letter)
        return letters

    def overflows(self, job: J) -> bytes | None:
        """The connection that has most to say, where more waits of a job than may."""
        letters = self._letters[job]
        if len(letters.todo) <= MOST_LETTERS and letters.nbytes <= MOST_LETTER_BYTES:
            return None
        return max((one.cost, identity) for identity, one in self._where.items() if one.job == job)[1]

    def forget(self, identity: bytes) -> None:
        """What a connection has said and was not heard is dropped."""
        found = self._where.pop(identity, None)
        letters = None if found is None else self._letters.get(found.job)
        if letters is not None:
            letters.forget(identity)

    def drop(self, job: J) -> None:
        """Forgets a job's messages."""
        self._letters.pop(job, None)
        for identity in [one for one, waiting in self._where.items() if waiting.job == job]:
            del self._where[identity]

    def _hand_over(self, letter: Letter) -> None:
        found = self._where.get(letter.identity)
        if found is not None:
            found.count -= 1
            found.cost -= letter.cost
            if not found.count:
                del self._where[letter.identity]
        self._deliver(letter)


# --- Who is listened to on a shard, and when: at once, or where jobs share it at its job's turn -----------------------


_log = logging.getLogger("weft.shard")


class Ingress:
    """`receive` gets a message when it is its turn. Connections that said more than anybody may are silenced: they are
    not listened to until they have been quiet for long enough."""

    def __init__(
        self, links: Links, work: Merger[Namespace], receive: Callable[[bytes, Sequence[Buffer], float], None]
    ) -> None:
        self._links = links
        self._work = work
        self._receive = receive
        self._inbox: Inbox[Namespace] = Inbox(self._deliver)
        self._silenced: dict[bytes, float] = {}
        """By identity, when it was last heard."""

    @property
    def waiting(self) -> int:
        """Messages that wait for their job's turn."""
        return len(self._inbox)

    @property
    def silenced(self) -> int:
        """Connections that are not listened to."""
        return len(self._silenced)

    def hear(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One message."""
        links = self._links
        nbytes, peer = sum(map(len, parts)), links.peers.get(identity)
        links.counts.bytes_received += nbytes
        if peer is not None:
            links.jobs[peer.job].bytes_received += nbytes
        lane = self._inbox.lane_of(identity) or (peer.job if peer is not None else links.lost_job(identity))
        if lane is None:
            lane = STRANGERS
        if links.active_jobs.hear(lane):
            links.share()
        if not links.active_jobs.is_shared and not self._inbox.has(lane):
            self._read(identity, parts, now)
            return
        if identity in self._silenced:
            self._silenced[identity] = now
            return
        if peer is not None:
            peer.heard = links.jobs[peer.job].heard[peer.slot] = now
        self._work.put(lane, self._inbox.put(lane, letter_of(identity, parts, now)))
        loud = self._inbox.overflows(lane)
        if loud is not None:
            self._inbox.forget(loud)
            links.refuse(loud, ProtocolError("this connection says more than anybody can listen to"))
            self._silenced[loud] = now

    def tick(self, now: float, silence_s: float) -> None:
        """Some time has passed."""
        self._links.active_jobs.tick()
        self._links.share()
        for identity in [one for one, heard in self._silenced.items() if now - heard > silence_s]:
            del self._silenced[identity]

    def drop(self, job: Namespace) -> None:
        """Forgets a job's messages."""
        self._inbox.drop(job)

    def _deliver(self, letter: Letter) -> None:
        self._read(letter.identity, letter.parts, letter.now)

    def _read(self, identity: bytes, parts: Sequence[Buffer], now: float) -> None:
        try:
            self._receive(identity, parts, now)
        except Exception:  # noqa: BLE001  # a message's outermost frame
            _log.exception("a message of %s failed; its connection is dropped", identity.hex())
            self._links.lose(identity)
