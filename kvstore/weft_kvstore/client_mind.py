"""All that a client decides: operations, messages and time in; messages and ended operations out. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from weft_kvstore.check import digest
from weft_kvstore.client_link import ClientLink, LinkState
from weft_kvstore.codec import Buffer, ProtocolError, decode_reply
from weft_kvstore.deadlines import Deadlines
from weft_kvstore.description import StoreDescription
from weft_kvstore.messages import (
    Acknowledge,
    Because,
    Cancel,
    Done,
    Failed,
    FailureCode,
    Hello,
    Pong,
    PushRefused,
    Refused,
    Reply,
    Values,
    Welcome,
)
from weft_kvstore.operation import BarrierOperation, Operation, PullOperation, SendOperation
from weft_kvstore.outbox import OutSlice
from weft_kvstore.routing import Routing, routing_of
from weft_kvstore.row_operation import PullRowsOperation, PushRowsOperation
from weft_kvstore.settings import LinkSettings
from weft_kvstore.store import StoreError, StoreLostError, StoreRefusedError, StoreTimeoutError

ASK_BEFORE_S: Final = 0.5
"""A shard is asked what a request waits for so long before its deadline, or a quarter of the time allowed."""

Outcome: TypeAlias = tuple[Operation, Any, StoreError | None]
"""An operation that has ended: its result, or its error."""


class ClientMind:
    """One slot's operations on all shards. `outcomes` collects what has ended, each operation once."""

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
    ) -> None:
        self.routing: Routing = routing_of(description)
        self.outcomes: list[Outcome] = []
        self._description = description
        self._settings = settings
        self._slot = slot
        hello = Hello(description.job, description.term, slot, incarnation, process, 0, digest(description))
        self.links = [ClientLink(shard, endpoint, hello, settings, now) for shard, endpoint in enumerate(endpoints)]
        self._open: dict[int, Operation] = {}
        self._number = 0
        self._to_ask = Deadlines()
        self._to_end = Deadlines()
        self.rows_pushed = 0
        self.rows_pulled = 0
        self._ask_before_s = min(ASK_BEFORE_S, settings.request_timeout_s / 4)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, operation: Operation, now: float) -> None:
        """Begins an operation; it ends at its deadline at the latest."""
        self._number += 1
        operation.number = self._number
        try:
            shards = self._parts(operation)
        except MemoryError as error:
            self._end(operation, None, StoreError(f"slot {self._slot}: {operation}: no memory: {error}"))
            return
        operation.pending = dict(shards)
        self._count_rows(operation)
        if not shards:
            self._end(operation, operation.result(), None)
            return
        for shard in shards:
            link = self.links[shard]
            if link.refused is not None or link.lost is not None:
                self._end(operation, None, self._lost_error(link, operation))
                return
        self._open[operation.number] = operation
        due = now + self._settings.request_timeout_s
        self._to_ask.add(due - self._ask_before_s, operation.number)
        self._to_end.add(due, operation.number)
        if isinstance(operation, SendOperation):
            for shard, slices in operation.slices.items():
                for one in slices:
                    self.links[shard].outbox.put(one)
        else:
            for shard in shards:
                self.links[shard].ask(operation)

    def receive(self, shard: int, parts: Sequence[Buffer], now: float) -> None:
        """One message of a shard. A shard that talks nonsense is left for good."""
        link = self.links[shard]
        if link.refused is not None:
            return
        try:
            message, payload = decode_reply(parts)
            link.heard(now)
            self._handle(link, message, payload, now)
        except ProtocolError as error:
            link.refused = f"{link.name} sent what is no message: {error}"
        if link.refused is not None:
            self._fail_all(link)

    def disconnected(self, shard: int, now: float) -> None:
        self.links[shard].disconnected(now)

    def cannot_connect(self, shard: int, reason: str) -> None:
        """The endpoint is none that can be connected to, now or ever."""
        link = self.links[shard]
        link.refused = f"{link.name}: {reason}"
        link.at_fault = True
        self._fail_all(link)

    def tick(self, now: float) -> None:
        """Deadlines, pings, silence."""
        for link in self.links:
            if link.tick(now) is not None:
                self._fail_all(link)
        asked = self._to_ask.due(now, self._open)
        if asked:
            for link in self.links:
                link.ask_why(asked)
        for number in self._to_end.due(now, self._open):
            operation = self._open[number]
            self._end(operation, None, StoreTimeoutError(self._overdue(operation)))

    def next_tick(self) -> float:
        """When `tick` has something to do again."""
        return min(self._to_ask.next(), self._to_end.next(), *(link.next_tick() for link in self.links))

    def flush(self, now: float) -> None:
        for link in self.links:
            link.flush(now)

    def close(self, reason: str) -> None:
        """Fails what is open, for that reason, and says good-bye."""
        for operation in list(self._open.values()):
            self._end(operation, None, StoreError(f"slot {self._slot}: {operation}: {reason}"))
        for link in self.links:
            link.close()

    def _parts(self, operation: Operation) -> dict[int, int]:
        """How many parts of an operation each shard has. Raises MemoryError."""
        if isinstance(operation, SendOperation):
            operation.cut(self.routing, self._description.keys[operation.place].priority)
            return {shard: len(slices) for shard, slices in operation.slices.items()}
        if isinstance(operation, PullOperation):
            return operation.asked(self.routing)
        if isinstance(operation, BarrierOperation):
            return {link.shard: operation.parts for link in self.links}
        raise TypeError(f"{operation} is no operation that a store knows")

    def _count_rows(self, operation: Operation) -> None:
        if isinstance(operation, PushRowsOperation):
            self.rows_pushed += len(operation.given.ids)
        elif isinstance(operation, PullRowsOperation):
            self.rows_pulled += operation.distinct

    def _handle(self, link: ClientLink, message: Reply, payload: memoryview, now: float) -> None:
        match message:
            case Values():
                self._values(link, message, payload)
            case Acknowledge():
                for frame in message.frame:
                    self._acknowledged(link, link.outbox.acknowledge(frame, now))
            case Done():
                for request in message.request:
                    self._settle(link, request, 1)
            case Failed():
                self._failed(link, message)
            case PushRefused():
                self._push_refused(link, message)
            case Because():
                operation = link.requests.get(message.request)
                if operation is not None:
                    operation.because[link.shard] = message.reason
            case Welcome():
                link.welcome(message, now)
            case Refused():
                link.turned_away(message, now)
            case Pong():
                pass  # It was heard.

    def _values(self, link: ClientLink, values: Values, payload: memoryview) -> None:
        begin = 0
        for run, (request, nbytes) in enumerate(zip(values.request, values.nbytes, strict=True)):
            part = payload[begin : begin + nbytes]
            begin += nbytes
            operation = link.requests.get(request)
            if isinstance(operation, PullOperation):  # Else it was given up meanwhile.
                if values.version[run] < operation.version:
                    raise ProtocolError(f"Values.version: {values.version[run]}, {operation} was asked for")
                fresh = operation.write(link.shard, values.array[run], values.first[run], values.count[run], part)
                self._settle(link, request, fresh)
        link.arrived(values.frame, payload.nbytes)

    def _settle(self, link: ClientLink, request: int, count: int) -> None:
        operation = link.requests.get(request)
        if operation is None:
            return
        ended = operation.settle(link.shard, count)
        if link.shard not in operation.pending:
            link.forget(operation)
        if ended:
            self._end(operation, operation.result(), None)

    def _acknowledged(self, link: ClientLink, slices: Sequence[OutSlice]) -> None:
        for one in slices:
            operation = one.owner
            if isinstance(operation, SendOperation) and not operation.ended and operation.settle(link.shard):
                self._end(operation, None, None)

    def _failed(self, link: ClientLink, message: Failed) -> None:
        operation = link.requests.get(message.request)
        if operation is not None:
            error = StoreLostError if message.code is FailureCode.LOST else StoreRefusedError
            self._end(operation, None, error(f"slot {self._slot}: {operation}: {link.name}: {message.reason}"))

    def _push_refused(self, link: ClientLink, message: PushRefused) -> None:
        frame = link.outbox.in_flight(message.frame)
        runs = frame.runs() if frame is not None else []
        if frame is None or message.run >= len(runs):
            raise ProtocolError(f"PushRefused.run: run {message.run} of frame {message.frame} is not under way")
        begin = sum(run.count for run in runs[: message.run])
        operation = frame.slices[begin].owner
        if isinstance(operation, SendOperation):
            self._end(operation, None, StoreRefusedError(f"{operation}: {link.name}: {message.reason}"))

    def _fail_all(self, link: ClientLink) -> None:
        for operation in [one for one in self._open.values() if link.shard in one.pending]:
            self._end(operation, None, self._lost_error(link, operation))

    def _lost_error(self, link: ClientLink, operation: Operation) -> StoreError:
        text = f"slot {self._slot}: {operation}: {link.refused or link.lost}"
        return StoreRefusedError(text) if link.at_fault else StoreLostError(text)

    def _overdue(self, operation: Operation) -> str:
        waits = [
            f"{self.links[shard].name}: {operation.because.get(shard, self._silence(self.links[shard]))}"
            for shard in sorted(operation.pending)
        ]
        return f"slot {self._slot}: {operation} took over {self._settings.request_timeout_s:g} s; {'; '.join(waits)}"

    @staticmethod
    def _silence(link: ClientLink) -> str:
        return "no answer" if link.state is LinkState.OPEN else f"the connection is {link.state.value}"

    def _end(self, operation: Operation, result: Any, error: StoreError | None) -> None:
        if operation.ended:
            return
        operation.ended = True
        self._open.pop(operation.number, None)
        if error is not None:
            self._give_up(operation)
        operation.let_go()
        self.outcomes.append((operation, result, error))

    def _give_up(self, operation: Operation) -> None:
        if isinstance(operation, SendOperation):
            for shard, slices in operation.slices.items():
                self.links[shard].withdraw(slices)
            return
        for shard in operation.pending:
            link = self.links[shard]
            link.forget(operation)
            if isinstance(operation, PullRowsOperation):
                link.withdraw(operation.sent(shard))
            if isinstance(operation, PullOperation):
                link.say(Cancel([operation.number]))
