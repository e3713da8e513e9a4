"""What of a link's frames is under way in the client's arena: laid there, arrived, and read no more. Pure.

The shard reads what lies in the arena where it lies, so that it has arrived at one time and may be written at another.
What a connection that broke had brought there may be read still, until the shard says so on the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.client.link_messages import SentFrame, SentPiece, push_message
from weft_kvstore.same_host.link_memory import LinkMemory
from weft_kvstore.wire.codec import ProtocolError, encode, payload_bytes
from weft_kvstore.wire.messages import Values
from weft_kvstore.wire.out_frame import parts_of

UNREAD: Final = "the shard has it where it lies, and reads it once the other slots have pushed the step"


class ArenaFrames:
    """`memory` is the arena, while the shard has it. `in_use`: a frame was laid there, by this connection or before.

    Invariants: `_laid` has the frames of this connection that the shard may read, each with the piece of the stage that
    it has, if any; `_unread` has those of them that have arrived, each with its pieces in the caller's own arrays.
    `_left` are pieces of the stage that earlier connections have. `_read_before`: arrays of the caller may be read
    still through an earlier connection; `_late` has arrived since.
    """

    __slots__ = (
        "_had_memory",
        "_laid",
        "_late",
        "_left",
        "_memory",
        "_read_before",
        "_shard",
        "_unread",
        "bytes_received",
        "bytes_sent",
        "in_use",
    )

    def __init__(self, shard: int) -> None:
        self.in_use = False
        self.bytes_sent = 0
        self.bytes_received = 0
        self._shard = shard
        self._memory: LinkMemory | None = None
        self._had_memory = False
        self._laid: dict[int, tuple[LinkMemory, int] | None] = {}
        self._unread: dict[int, list[SentPiece]] = {}
        self._left: list[tuple[LinkMemory, int]] = []
        self._read_before = False
        self._late: list[SentPiece] = []

    @property
    def memory(self) -> LinkMemory | None:
        return self._memory

    @memory.setter
    def memory(self, memory: LinkMemory | None) -> None:
        self._memory = memory
        self._had_memory = self._had_memory or memory is not None

    def is_lost(self, values: Values) -> bool:
        """Whether a frame lies in an arena that the shard had and has no more: the connection is about to end."""
        return self._had_memory and self._memory is None and (values.at is not None or bool(values.place))

    def payload_of(self, values: Values, payload: memoryview) -> memoryview:
        """Where the payload of a frame of values is. Raises ProtocolError."""
        memory = self._memory
        if memory is None and (values.at is not None or values.place):
            raise ProtocolError(f"Values.at: {values.at}, the shard has no arena")
        if values.at is None or memory is None:
            return payload
        return memory.payload(values.at, payload_bytes(values))

    def push(self, memory: LinkMemory, frame: SentFrame, acknowledge: list[int]) -> list[Buffer]:
        """A frame as a message whose bytes are in the arena, as far as there is room for them."""
        placed = any(one.run.entry.place for one in frame.pieces)
        pieces = _not_in_place(frame.pieces) if placed else frame.pieces
        nbytes = sum([one.stop - one.start for one in pieces])
        parts = parts_of(pieces)
        at = memory.lay(parts, nbytes)
        message = push_message(frame, acknowledge, at, placed=placed)
        if at is None and not placed:
            return encode(message, parts[0] if len(parts) == 1 else b"".join(parts))
        self.in_use = True
        self._laid[frame.number] = None if at is None else (memory, at)
        self.bytes_sent += frame.nbytes if at is not None else frame.nbytes - nbytes
        return encode(message, None if at is not None or not parts else b"".join(parts))

    def arrived(self, frame: int, pieces: Sequence[SentPiece]) -> Sequence[SentPiece]:
        """A frame has arrived: which of its pieces have nothing more to wait for.

        What lies in the caller's own arrays waits until it was read; what was copied, and is the store's, does not.
        """
        if frame in self._laid:
            unread = self._unread[frame] = _in_place(pieces)
            for one in unread:
                one.run.owner.because[self._shard] = UNREAD
        elif self._read_before:
            self._late += _in_place(pieces)
        else:
            return pieces
        return _not_in_place(pieces)

    def released(self, frame: int) -> Sequence[SentPiece] | None:
        """What a frame has here is read no more: its pieces that waited for that; None where it had not arrived.
        Raises ProtocolError for a frame that has nothing here."""
        if frame not in self._laid:
            raise ProtocolError(f"Released.frame: {frame} is not in the arena")
        staged = self._laid.pop(frame)
        if staged is not None:
            staged[0].give(staged[1])
        return self._unread.pop(frame, None)

    def released_before(self) -> Sequence[SentPiece]:
        """What earlier connections have here is read no more: the pieces that waited for that."""
        left, self._left = self._left, []
        for memory, offset in left:
            memory.give(offset)
        late, self._late, self._read_before = self._late, [], False
        return late

    def begin_anew(self) -> list[SentPiece]:
        """A new connection begins: what it has to bring again though it had arrived."""
        self._memory, self._had_memory = None, False
        # What earlier connections brought there may be read still, and is not written before the shard says so.
        self._left += [staged for staged in self._laid.values() if staged is not None]
        self._read_before = self._read_before or bool(self._laid)
        again = [*chain(*self._unread.values()), *self._late]
        for one in again:
            one.run.owner.because.pop(self._shard, None)
        self._laid, self._unread, self._late = {}, {}, []
        return again


def _in_place(pieces: Sequence[SentPiece]) -> list[SentPiece]:
    return [one for one in pieces if one.run.entry.place]


def _not_in_place(pieces: Sequence[SentPiece]) -> list[SentPiece]:
    return [one for one in pieces if not one.run.entry.place]
