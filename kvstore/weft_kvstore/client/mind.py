"""All that a client decides: operations, messages and time in; messages and ended operations out. Pure."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final, TypeAlias

from weft_kvstore.arrays.buffers import Buffer
from weft_kvstore.client.connection import LinkState
from weft_kvstore.client.link import ClientLink
from weft_kvstore.client.link_messages import SentPiece
from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError, StoreLostError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.operations.gradient_encoders import GradientEncoders
from weft_kvstore.operations.operation import Operation, Request
from weft_kvstore.operations.sets_under_way import SetsUnderWay
from weft_kvstore.runtime.deadlines import Deadlines
from weft_kvstore.same_host.link_memory import GivenArrays, LinkMemory
from weft_kvstore.settings import LinkSettings
from weft_kvstore.sharding.routing import Routing, routing_of
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.wire.codec import ProtocolError, decode_reply
from weft_kvstore.wire.messages import (
    NOBODY,
    Acknowledge,
    Because,
    Done,
    Failed,
    FailureCode,
    Hello,
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
from weft_kvstore.wire.value_run import value_runs

ASK_BEFORE_S: Final = 0.5
"""A shard is asked what a request waits for so long before its deadline, or a quarter of the time allowed."""

_log = logging.getLogger("weft.store")

_ERRORS: Final = {
    FailureCode.LOST: StoreLostError,
    FailureCode.REFUSED: StoreRefusedError,
    FailureCode.PASSED: StorePassedError,
}

Outcome: TypeAlias = tuple[Operation, Any, StoreError | None]
"""An operation that has ended: its result, or its error."""


class ClientMind:
    """One slot's operations on all shards. `outcomes` collects what has ended, each operation once. `tick_at` is when
    `tick` has something to do again; before that it does nothing."""

    def __init__(
        self,
        description: StoreDescription,
        slot: int,
        *,
        incarnation: int,
        process: bytes,
        settings: LinkSettings,
        endpoints: Sequence[str],
        now: float,
        memory: GivenArrays | None = None,
    ) -> None:
        self.routing: Routing = routing_of(description)
        self._encoders = GradientEncoders(description, self.routing, slot)
        self.outcomes: list[Outcome] = []
        self.memory = memory
        self._settings = settings
        self._slot = slot
        hello = Hello(description.job, description.term, slot, incarnation, process, 0, digest(description))
        self.links = [ClientLink(shard, endpoint, hello, settings, now) for shard, endpoint in enumerate(endpoints)]
        self._open: dict[int, Operation] = {}
        self._sets = SetsUnderWay()
        self._number = 0
        self._to_ask = Deadlines()
        self._to_end = Deadlines()
        self.tick_at = now
        self.rows_pushed = 0
        self.rows_pulled = 0
        self._ask_before_s = min(ASK_BEFORE_S, settings.request_timeout_s / 4)

    def __len__(self) -> int:
        return len(self._open)

    def told(self, operation: Operation) -> str:
        """Whose call it is, as every error begins."""
        return f"slot {self._slot}: {operation}"

    def begin(self, operation: Operation, now: float) -> None:
        """Begins an operation; it ends at its deadline at the latest. What goes wrong before it is open ends it, and no
        other: nobody else knows of it, so nobody else could end it."""
        self._number += 1
        operation.number = self._number
        try:
            if self.memory is not None:
                operation.look(self.memory)
            operation.use(self._encoders)
            shards = operation.prepare(self.routing)
        except StoreRefusedError as error:
            self._end(operation, None, error)
            return
        except MemoryError as error:
            self._end(operation, None, StoreError(f"{self.told(operation)}: no memory: {error}"))
            return
        except Exception as error:  # noqa: BLE001  # an operation's outermost frame
            _log.exception("slot %d: %s failed", self._slot, operation)
            failed = StoreError(f"{self.told(operation)}: {type(error).__name__}: {error}")
            failed.__cause__ = error
            self._end(operation, None, failed)
            return
        operation.pending = shards
        self.rows_pushed += operation.rows_pushed
        self.rows_pulled += operation.rows_pulled
        if not shards:
            self._end(operation, operation.result(), None)
            return
        for shard in shards:
            link = self.links[shard]
            if link.connection.refused is not None or link.connection.lost is not None:
                self._end(operation, None, self._lost_error(link, operation))
                return
        self._open[operation.number] = operation
        due = now + self._settings.request_timeout_s
        self.tick_at = min(self.tick_at, due - self._ask_before_s)
        self._to_ask.add(due - self._ask_before_s, operation.number)
        self._to_end.add(due, operation.number)
        if self._sets or operation.sets:
            self._sets.begin(operation, [self.links[shard] for shard in shards])
            return
        for shard in shards:
            operation.begin(self.links[shard])

    def receive(self, shard: int, parts: Sequence[Buffer], now: float) -> None:
        """One message of a shard. A shard that talks nonsense is left for good."""
        link = self.links[shard]
        connection = link.connection
        if connection.refused is not None:
            return
        try:
            message, payload = decode_reply(parts)
            connection.heard(now)
            self._handle(link, message, payload, now)
        except ProtocolError as error:
            connection.refuse(f"{link.name} sent what is no message: {error}")
        if connection.refused is not None:
            self._fail_all(link)

    def shares(self, shard: int, *, taken: bool) -> None:
        """The shard has mapped this client's arena, or has it no more."""
        self.links[shard].share(LinkMemory(self.memory, shard) if taken and self.memory is not None else None)

    def disconnected(self, shard: int, now: float) -> None:
        self.tick_at = now
        self.links[shard].connection.disconnected(now)

    def cannot_connect(self, shard: int, reason: str) -> None:
        """The endpoint is none that can be connected to, now or ever."""
        link = self.links[shard]
        link.connection.refuse(f"{link.name}: {reason}", at_fault=True)
        self._fail_all(link)

    def tick(self, now: float) -> None:
        """Deadlines, pings, silence."""
        if now < self.tick_at:
            return
        for link in self.links:
            if link.tick(now):
                self._fail_all(link)
        asked = self._to_ask.due(now, self._open)
        if asked:
            for link in self.links:
                link.ask_why(asked)
        for number in self._to_end.due(now, self._open):
            operation = self._open[number]
            self._end(operation, None, StoreTimeoutError(self._overdue(operation)))
        self.tick_at = min(
            self._to_ask.next(), self._to_end.next(), *[link.connection.next_tick() for link in self.links]
        )

    def flush(self, now: float) -> None:
        for link in self.links:
            link.flush(now)

    def close(self, reason: str) -> None:
        """Fails what is open, for that reason, and says good-bye."""
        self._sets.close()
        for operation in list(self._open.values()):
            self._end(operation, None, StoreError(f"{self.told(operation)}: {reason}"))
        for link in self.links:
            link.close()

    def _handle(self, link: ClientLink, message: Reply, payload: memoryview, now: float) -> None:
        match message:
            case Values():
                self._arrived(link, message.acknowledge, now)
                if link.arena.is_lost(message):
                    self.disconnected(link.shard, now)
                else:
                    self._values(link, message, payload)
            case Acknowledge():
                self._arrived(link, message.frame, now)
            case Released():
                for frame in message.frame:
                    self._acknowledged(link, link.released(frame, now))
            case HyperAnswer() | HyperDecided() | HyperDoubt():
                self._hyper(link, message)
            case PushRefused():
                self._push_refused(link, message)
            case Welcome() | Refused():
                self.tick_at = now
                link.greeted(message, now)
            case Pong():
                pass  # It was heard.
            case _:
                self._answered(link, message)

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
        for request, came in value_runs(values, link.arena.payload_of(values, payload)):
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
            self.links[0].say(HyperDecide(NOBODY, message.proposal, 0))
            return
        if isinstance(message, HyperDecided) and message.request == NOBODY:
            for other in self.links[1:]:  # One of them was in doubt.
                other.say(HyperSettle(NOBODY, message.proposal, message.version))
            return
        request = link.requests.get(message.request)
        if request is None:
            return
        try:
            ended = request.agreed(link.shard, message)
        except StoreRefusedError as error:
            self._end(request, None, StoreRefusedError(f"{self.told(request)}: {link.name}: {error}"))
        else:
            self._settled(link, request, ended=ended)

    def _settled(self, link: ClientLink, request: Request, *, ended: bool) -> None:
        """Parts of a request have come from a shard."""
        if link.shard not in request.pending:
            link.forget(request)
        if ended:
            self._end(request, request.result(), None)

    def _arrived(self, link: ClientLink, frames: Sequence[int], now: float) -> None:
        for frame in frames:
            self._acknowledged(link, link.acknowledged(frame, now))

    def _acknowledged(self, link: ClientLink, pieces: Sequence[SentPiece]) -> None:
        for one in pieces:
            operation = one.run.owner
            if operation.delivered(link.shard, one.count):
                self._end(operation, None, None)

    def _failed(self, link: ClientLink, message: Failed) -> None:
        operation = link.requests.get(message.request)
        if operation is not None:
            error = _ERRORS[message.code]
            self._end(operation, None, error(f"{self.told(operation)}: {link.name}: {message.reason}"))

    def _push_refused(self, link: ClientLink, message: PushRefused) -> None:
        frame = link.outbox.in_flight(message.frame)
        runs = frame.runs() if frame is not None else []
        if frame is None or message.run >= len(runs):
            raise ProtocolError(f"PushRefused.run: run {message.run} of frame {message.frame} is not under way")
        # Pieces that continue one another are one run, and a run is of one operation.
        last = list(accumulate(run.count for run in runs))[message.run]
        upto = list(accumulate(piece.count for piece in frame.pieces))
        operation = frame.pieces[bisect_left(upto, last)].run.owner
        self._end(operation, None, StoreRefusedError(f"{operation}: {link.name}: {message.reason}"))

    def _fail_all(self, link: ClientLink) -> None:
        for operation in [one for one in self._open.values() if link.shard in one.pending]:
            self._end(operation, None, self._lost_error(link, operation))

    def _lost_error(self, link: ClientLink, operation: Operation) -> StoreError:
        text = f"{self.told(operation)}: {link.connection.refused or link.connection.lost}"
        return StoreRefusedError(text) if link.connection.at_fault else StoreLostError(text)

    def _overdue(self, operation: Operation) -> str:
        waits = [
            f"{self.links[shard].name}: {operation.because.get(shard, self._silence(self.links[shard]))}"
            for shard in sorted(operation.pending)
        ]
        return f"{self.told(operation)} took over {self._settings.request_timeout_s:g} s; {'; '.join(waits)}"

    @staticmethod
    def _silence(link: ClientLink) -> str:
        state = link.connection.state
        return "no answer" if state is LinkState.OPEN else f"the connection is {state.value}"

    def _end(self, operation: Operation, result: Any, error: StoreError | None) -> None:
        if operation.ended:
            return
        operation.ended = True
        self._open.pop(operation.number, None)
        if error is not None:
            for shard in operation.pending:
                operation.give_up(self.links[shard])
        operation.let_go()
        if isinstance(result, StepOutcome):
            self._encoders.told(result)
        self.outcomes.append((operation, result, error))
        if self._sets:
            self._sets.ended(operation)
