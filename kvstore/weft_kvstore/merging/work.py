"""Work on a shard that may take long, cut into pieces; and who computes a piece. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

# --- Work on a shard that may take long, cut into pieces: between two of them the socket is looked at -----------------


PIECE_ELEMENTS: Final = 1 << 20
"""Elements that a piece computes, of first values or of an update by a rule of a few nodes: some 10 ms."""

BUCKET_PIECES: Final = 2
"""Such pieces that a plain bucket's update takes at once: it crosses memory once, and is what a shard does most."""

PIECE_NODES: Final = 16
"""Nodes of a user's rule that may meet as many elements; with more of them a piece has fewer."""

PIECE_CALLS: Final = 128
"""Slices that such a rule updates in a piece, however small: each is a call of its own, and all of them some 20 ms."""

PIECE_BYTES: Final = 1 << 23
"""What a piece counts for, at most."""

ENDED_A_STEP: Final = 256
"""Tasks that may end in one step: more than are asked for in one round of the socket."""


class Work:
    """Tasks that are carried out one after the other: what is begun is ended before the next one begins. A task stops
    after each piece.

    Invariant: `queued` while it is in a work queue, and then `todo` has something. `turn` is its place there.
    """

    __slots__ = ("priority", "queued", "todo", "turn")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.queued = False
        self.turn = 0
        self.todo: deque[Iterator[None]] = deque()

    @property
    def piece_bytes(self) -> int:
        """About how many bytes a piece works on."""
        return PIECE_BYTES

    def step(self) -> None:
        """The next piece. Tasks that end before their next one, as those do that were given up, take no turn each: who
        asks and gives up again must not fill the memory. Raises what a task raises; it is over then."""
        for _ in range(ENDED_A_STEP):
            if not self.todo:
                return
            task = self.todo[0]
            try:
                next(task)
            except BaseException as error:
                if self.todo and self.todo[0] is task:  # A job that has failed has forgotten its work.
                    self.todo.popleft()
                if not isinstance(error, StopIteration):
                    raise
            else:
                return


# --- Who computes the pieces of an update -----------------------------------------------------------------------------


Task = Callable[[], None]


class Computing(Protocol):
    """Carries out tasks that do not depend on each other, as many as `lanes` at the same time."""

    lanes: int

    def run(self, tasks: Sequence[Task]) -> None:
        """Carries out all of them, in any order, and returns when all have ended. Raises what the first one raised."""


class InTurn:
    """One task after the other."""

    lanes = 1

    def run(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            task()
