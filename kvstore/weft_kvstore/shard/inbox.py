"""Messages that wait to be handed over, where several jobs share a shard: each job's go at its own turns. Pure.

What a message costs is known before it is read: its bytes, and its header's many times over, for each run in it is
handled by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.merging.work import Work

LETTER_BYTES: Final = 1 << 15
"""What any message counts for, beside its bytes."""

HEADER_FACTOR: Final = 1 << 10
"""What a byte of a header counts for: a run takes some fifteen, and as long as 16 KiB take to be merged."""

AT_ONCE_BYTES: Final = 1 << 18
"""What is handed over in one piece, at least one message: some 100 us."""

MOST_LETTERS: Final = 1 << 14
MOST_LETTER_BYTES: Final = 1 << 28
"""What may wait of one job. Clients stay far below by their credit."""

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
    """One job's messages, handed over in the order in which they came. They are its `todo`."""

    __slots__ = ("_deliver", "nbytes")

    hands_over = True

    def __init__(self, deliver: Callable[[Letter], None]) -> None:
        super().__init__(URGENT)
        self.todo: Any
        self.nbytes = 0
        self._deliver = deliver

    @property
    def piece_bytes(self) -> int:
        cost = 0
        for letter in self.todo:
            cost += letter.cost
            if cost >= AT_ONCE_BYTES:
                break
        return cost

    def step(self) -> None:
        cost = 0
        while self.todo and cost < AT_ONCE_BYTES:
            letter = self.todo.popleft()
            self.nbytes -= letter.nbytes
            cost += letter.cost
            self._deliver(letter)


class Inbox(Generic[J]):
    """Messages by job. `_where` has, of each connection with some that wait, their job, how many and what they cost: so
    they stay in order when it becomes known whose it is."""

    def __init__(self, deliver: Callable[[Letter], None]) -> None:
        self._deliver = deliver
        self._letters: dict[J, Letters] = {}
        self._where: dict[bytes, tuple[J, int, int]] = {}

    def __len__(self) -> int:
        return sum(len(one.todo) for one in list(self._letters.values()))

    def lane_of(self, identity: bytes) -> J | None:
        """The job among whose messages some of a connection's wait."""
        found = self._where.get(identity)
        return None if found is None else found[0]

    def has(self, job: J) -> bool:
        """Whether messages of a job wait."""
        letters = self._letters.get(job)
        return letters is not None and bool(letters.todo)

    def put(self, job: J, letter: Letter) -> Letters:
        """Takes a message in; what is to be carried out for it."""
        letters = self._letters.get(job)
        if letters is None:
            letters = self._letters[job] = Letters(self._hand_over)
        letters.todo.append(letter)
        letters.nbytes += letter.nbytes
        _, count, nbytes = self._where.get(letter.identity, (job, 0, 0))
        self._where[letter.identity] = job, count + 1, nbytes + letter.cost
        return letters

    def overflows(self, job: J) -> bytes | None:
        """The connection that has most to say, where more waits of a job than may."""
        letters = self._letters[job]
        if len(letters.todo) <= MOST_LETTERS and letters.nbytes <= MOST_LETTER_BYTES:
            return None
        return max((cost, identity) for identity, (lane, _, cost) in self._where.items() if lane == job)[1]

    def forget(self, identity: bytes) -> None:
        """What a connection has said and was not heard is dropped."""
        found = self._where.pop(identity, None)
        letters = None if found is None else self._letters.get(found[0])
        if letters is None:
            return
        kept = [one for one in letters.todo if one.identity != identity]
        letters.todo.clear()
        letters.todo.extend(kept)
        letters.nbytes = sum(one.nbytes for one in kept)

    def drop(self, job: J) -> None:
        """Forgets a job's messages."""
        self._letters.pop(job, None)
        for identity in [one for one, (lane, _, _) in self._where.items() if lane == job]:
            del self._where[identity]

    def _hand_over(self, letter: Letter) -> None:
        found = self._where.get(letter.identity)
        if found is not None:
            job, count, cost = found
            if count > 1:
                self._where[letter.identity] = job, count - 1, cost - letter.cost
            else:
                del self._where[letter.identity]
        self._deliver(letter)
