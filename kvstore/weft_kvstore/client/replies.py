"""What shards say to a client, and which of its operations each message is about. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, Protocol

from weft_kvstore.client.link import ClientLink, SentPiece
from weft_kvstore.client.operation import AskOperation, Operation
from weft_kvstore.errors import StoreError, StoreLostError, StorePassedError, StoreRefusedError
from weft_kvstore.wire.codec import ProtocolError
from weft_kvstore.wire.messages import (
    NOBODY,
    Acknowledge,
    Because,
    Done,
    Failed,
    FailureCode,
    HyperAnswer,
    HyperDecide,
    HyperDecided,
    HyperDoubt,
    HyperSettle,
    Measured,
    Pong,
    PushRefused,
    Refused,
    Released,
    Reply,
    Values,
    Welcome,
)
from weft_kvstore.wire.runs import value_runs

_ERRORS: Final = {
    FailureCode.LOST: StoreLostError,
    FailureCode.REFUSED: StoreRefusedError,
    FailureCode.PASSED: StorePassedError,
}


class Ending(Protocol):
    """Who ends operations."""

    def told(self, operation: Operation) -> str:
        """Whose call it is, as every error begins."""

    def end(self, operation: Operation, result: Any, error: StoreError | None) -> None:
        """Ends an operation, unless it has ended."""


class Replies:
    """Links of one client, by shard. What is said of an operation that has ended meanwhile is passed over."""

    def __init__(self, ending: Ending, links: Sequence[ClientLink]) -> None:
        self._ending = ending
        self._links = links

    def take(self, link: ClientLink, message: Reply, payload: memoryview, now: float) -> bool:
        """One message of a shard. Whether it has changed the connection's life, so that time may ask for something.
        Raises ProtocolError."""
        match message:
            case Values():
                if message.acknowledge:
                    self._arrived(link, message.acknowledge, now)
                if link.arena.had_memory and link.arena.is_lost(message):
                    link.connection.disconnected(now)
                    return True
                self._values(link, message, payload)
            case Acknowledge():
                self._arrived(link, message.frame, now)
            case Released():
                for frame in message.frame:
                    self._delivered(link, link.released(frame, now))
            case HyperAnswer() | HyperDecided() | HyperDoubt():
                self._hyper(link, message)
            case PushRefused():
                self._push_refused(link, message)
            case Welcome() | Refused():
                link.greeted(message, now)
                return True
            case Pong():
                pass  # It was heard.
            case _:
                self._answered(link, message)
        return False

    def _answered(self, link: ClientLink, message: Done | Measured | Failed | Because) -> None:
        """Something is said of a request."""
        match message:
            case Done():
                self._done(link, message)
            case Measured():
                self._measured(link, message)
            case Failed():
                self._failed(link, message)
            case Because():
                link.explain(message)

    def _values(self, link: ClientLink, values: Values, payload: memoryview) -> None:
        if values.at is not None or values.place:
            payload = link.arena.payload_of(values, payload)
        for request, came in value_runs(values, payload):
            operation = link.requests.get(request)
            if operation is not None:  # Else it was given up meanwhile.
                fresh = operation.write(link.shard, came)
                self._settled(link, operation, ended=operation.settle(link.shard, fresh))
        link.arrived(values)

    def _done(self, link: ClientLink, done: Done) -> None:
        for number in done.request:
            request = link.requests.get(number)
            if request is not None:
                self._settled(link, request, ended=request.done(link.shard))

    def _measured(self, link: ClientLink, message: Measured) -> None:
        request = link.requests.get(message.request)
        if request is not None:
            self._settled(link, request, ended=request.measured(link.shard, message))

    def _hyper(self, link: ClientLink, message: HyperAnswer | HyperDecided | HyperDoubt) -> None:
        if isinstance(message, HyperDoubt):
            self._links[0].say(HyperDecide(NOBODY, message.proposal, 0))
            return
        if isinstance(message, HyperDecided) and message.request == NOBODY:
            for other in self._links[1:]:  # One of them was in doubt.
                other.say(HyperSettle(NOBODY, message.proposal, message.version))
            return
        request = link.requests.get(message.request)
        if request is None:
            return
        try:
            ended = request.agreed(link.shard, message)
        except StoreRefusedError as error:
            self._ending.end(request, None, StoreRefusedError(f"{self._ending.told(request)}: {link.name}: {error}"))
        else:
            self._settled(link, request, ended=ended)

    def _settled(self, link: ClientLink, request: AskOperation, *, ended: bool) -> None:
        """Parts of a request have come from a shard."""
        if link.shard not in request.pending:
            link.requests.pop(request.number, None)
        if ended:
            self._ending.end(request, request.result(), None)

    def _arrived(self, link: ClientLink, frames: Sequence[int], now: float) -> None:
        for frame in frames:
            pieces: Sequence[SentPiece] = link.outbox.acknowledge(frame, now)
            if link.arena.in_use:
                pieces = link.arena.arrived(frame, pieces)
            self._delivered(link, pieces)

    def _delivered(self, link: ClientLink, pieces: Sequence[SentPiece]) -> None:
        for one in pieces:
            operation = one.run.owner
            if operation.delivered(link.shard, one.count):
                self._ending.end(operation, None, None)

    def _failed(self, link: ClientLink, message: Failed) -> None:
        operation = link.requests.get(message.request)
        if operation is not None:
            error = _ERRORS[message.code]
            self._ending.end(operation, None, error(f"{self._ending.told(operation)}: {link.name}: {message.reason}"))

    def _push_refused(self, link: ClientLink, message: PushRefused) -> None:
        frame = link.outbox.in_flight(message.frame)
        runs = frame.runs() if frame is not None else []
        if frame is None or message.run >= len(runs):
            raise ProtocolError(f"PushRefused.run: run {message.run} of frame {message.frame} is not under way")
        # Pieces that continue one another are one run, and a run is of one operation.
        last = list(accumulate(run.count for run in runs))[message.run]
        upto = list(accumulate(piece.count for piece in frame.pieces))
        operation = frame.pieces[bisect_left(upto, last)].run.owner
        self._ending.end(
            operation, None, StoreRefusedError(f"{self._ending.told(operation)}: {link.name}: {message.reason}")
        )
