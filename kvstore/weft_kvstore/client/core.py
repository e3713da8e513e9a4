"""All that a client decides: operations, messages and time in; messages and ended operations out. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.connection import HandshakeFailure, LinkState
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.link import ClientLink, SentPiece
from weft_kvstore.client.operation import AskOperation, Link, Operation
from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import StoreError, StoreLostError, StorePassedError, StoreRefusedError, StoreTimeoutError
from weft_kvstore.futures import Deadlines
from weft_kvstore.same_host.layout import Bytes, GivenArrays, LinkMemory, OwnPlaces
from weft_kvstore.settings import STALL_S, LinkSettings
from weft_kvstore.sharding import Routing, routing_of
from weft_kvstore.step_outcome import StepOutcome
from weft_kvstore.wire.codec import ProtocolError, decode_reply, value_runs
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
    PushRefused,
    Refused,
    Released,
    Reply,
    Values,
    Welcome,
    place_of,
)

_ERRORS: Final = {
    FailureCode.LOST: StoreLostError,
    FailureCode.REFUSED: StoreRefusedError,
    FailureCode.PASSED: StorePassedError,
}


# --- Who speaks for a slot to its shards ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sender:
    """One client. `incarnation` counts those that its slot has had, one after the other; `process` are 16 bytes that
    are drawn once per client."""

    slot: int
    incarnation: int
    process: bytes

    def hello(self, description: StoreDescription) -> Hello:
        """What each of its connections begins with, but for the connection's own number."""
        return Hello(
            job=description.job,
            term=description.term,
            slot=self.slot,
            incarnation=self.incarnation,
            process=self.process,
            session=0,
            description=digest(description),
        )


# --- Says that a client's calls wait for long, for whom, and when that is over ----------------------------------------


TOLD_AFTER_S: Final = 5.0
"""A call that waits longer is told of. Steps are shorter, but for the first, which is compiled."""

ANSWER_S: Final = 0.5
"""So long shards have to say what it waits for."""

QUIET_S: Final = 60.0
"""Between two calls that are told of: where every step takes long, a line for each would drown the others."""

_log = logging.getLogger("weft.store")


class LongWaits:
    """Looks at the call that has been open longest, one at a time. It is known by its number, so that what has ended is
    not kept alive. `at` is when `look` has something to do at the latest; it may be called at any time."""

    def __init__(self) -> None:
        self.at = float("inf")
        self._number: int | None = None
        self._name = ""
        self._begun = 0.0
        self._quiet_until = float("-inf")

    def is_new(self, number: int, begun: float, now: float) -> bool:
        """Whether a call, which is the one open longest, is to be told of soon: its shards are to be asked why."""
        if self._number is not None or now - begun < TOLD_AFTER_S or now < self._quiet_until:
            return False
        self._number, self._begun, self.at = number, begun, now + ANSWER_S
        return True

    def look(self, still_open: Container[int], told: Callable[[int], tuple[str, str]], now: float) -> None:
        """Says of the call what there is to say; `told` has its name, and what it waits for."""
        number = self._number
        if number is None:
            return
        if number not in still_open:
            if self._name:
                _log.warning("%s is over, after %.0f s", self._name, now - self._begun)
            self._number, self._name, self.at = None, "", float("inf")
        elif now >= self.at:
            self._name, why = told(number)
            _log.warning("%s has waited %.0f s: %s", self._name, now - self._begun, why)
            self._quiet_until, self.at = now + QUIET_S, float("inf")


# --- A slot's calls of one key take effect in their order: requests come behind the values that were set before -------
# A request is a message of control, which overtakes data. A pull would miss the value; a word that there is nothing
# would end the step for which the value was meant, and then it would come too late.


@dataclass(slots=True, eq=False)
class _Behind:
    """A request and the links that it is for; of its keys, by place, the numbers of the calls that it comes behind."""

    operation: Operation
    links: Sequence[Link]
    missing: dict[int, set[int]]


class SetsUnderWay:
    """`of_key` has, by the key's place, the numbers of the calls that set it and have not ended; `_before` what comes
    behind each of those calls. Both are empty where none is under way."""

    __slots__ = ("_before", "of_key")

    def __init__(self) -> None:
        self.of_key: dict[int, set[int]] = {}
        self._before: dict[int, list[_Behind]] = {}

    def begin(self, operation: Operation, links: Sequence[Link]) -> None:
        """Begins it: what of it comes behind values that were set, once those calls have ended, however they do."""
        missing = {place: set(before) for place in operation.asks_of if (before := self.of_key.get(place))}
        for place in operation.sets:
            self.of_key.setdefault(place, set()).add(operation.number)
        if missing:
            behind = _Behind(operation, links, missing)
            for number in set().union(*missing.values()):
                self._before.setdefault(number, []).append(behind)
            for link in links:
                operation.because[link.shard] = "it comes behind a value that was set and has not arrived"
        if not missing or operation.hold(missing.keys()):
            for link in links:
                operation.begin(link)

    def ended(self, operation: Operation) -> None:
        """A call has ended: nothing comes behind it any more."""
        for place in operation.sets:
            left = self.of_key.get(place, set())
            left.discard(operation.number)
            if not left:
                self.of_key.pop(place, None)
        for behind in self._before.pop(operation.number, ()):
            if not behind.operation.ended:
                _go_on(behind, operation)

    def close(self) -> None:
        """Nothing goes on any more."""
        self.of_key.clear()
        self._before.clear()


def _go_on(behind: _Behind, before: Operation) -> None:
    free = []
    for place in before.sets:
        left = behind.missing.get(place)
        if left is not None:
            left.discard(before.number)
            if not left:
                free.append(place)
                del behind.missing[place]
    if not behind.missing:
        behind.operation.because.clear()
    if free:
        behind.operation.go_on(free, behind.links, whole=not behind.missing)


# --- All that a client decides: operations, messages and time in; messages and ended operations out -------------------


ASK_BEFORE_S: Final = 0.5
"""A shard is asked what a request waits for so long before its deadline, or a quarter of the time allowed."""

Outcome: TypeAlias = tuple[Operation, Any, StoreError | None]
"""An operation that has ended: its result, or its error."""


class ClientCore:
    """One slot's operations on all shards. `outcomes` collects what has ended, each operation once. `tick_at` is when
    `tick` has something to do again; before that it does nothing.

    Invariants: `open` has what has begun and not ended, by number; until it is closed all of that has a deadline in
    `_to_end`, and before it in `_to_ask`. What is in `outcomes` is in `open` no more, and no link will make it again.
    """

    def __init__(
        self,
        description: StoreDescription,
        sender: Sender,
        *,
        settings: LinkSettings,
        endpoints: Sequence[str],
        now: float,
        memory: GivenArrays | None = None,
    ) -> None:
        self.routing: Routing = routing_of(description)
        self.encoders = GradientEncoders(description, self.routing, sender.slot)
        self._encodes = any(bucket.pushed is not None for bucket in self.routing.buckets)
        """Whether any gradients travel encoded."""
        self.outcomes: list[Outcome] = []
        self.hurries = False
        """Whether receipts are to leave before a caller goes on: see `_values`."""
        self.memory = memory
        self._settings = settings
        self._slot = sender.slot
        hello = sender.hello(description)
        self.links = [ClientLink(shard, endpoint, hello, settings, now) for shard, endpoint in enumerate(endpoints)]
        self.open: dict[int, Operation] = {}
        self._sets = SetsUnderWay()
        self._number = 0
        self._to_ask = Deadlines()
        self._to_end = Deadlines()
        self._long_waits = LongWaits()
        self.tick_at = now
        self.rows_pushed = 0
        self.rows_pulled = 0
        self._ask_before_s = min(ASK_BEFORE_S, settings.request_timeout_s / 4)

    def told(self, operation: Operation) -> str:
        """Whose call it is, as every error begins."""
        return f"slot {self._slot}: {operation}"

    def begin(self, operation: Operation, now: float) -> None:
        """Begins an operation; it ends at its deadline at the latest. What goes wrong before it is open ends it, and no
        other: nobody else knows of it, so nobody else could end it."""
        number = self._number = operation.number = self._number + 1
        operation.pending, operation.because = {}, {}
        try:
            if self.memory is not None:
                operation.look(self.memory)
            if self._encodes:
                operation.use(self.encoders)
            shards = operation.pending = operation.prepare(self.routing)
        except Exception as error:  # noqa: BLE001  # an operation's outermost frame
            self.end(operation, None, self._unprepared(operation, error))
            return
        self.rows_pushed += operation.rows_pushed
        self.rows_pulled += operation.rows_pulled
        if not shards:
            self.end(operation, operation.result(), None)
            return
        for shard in shards:
            connection = self.links[shard].connection
            if connection.refused is not None or connection.lost is not None:
                self.end(operation, None, self._lost_error(self.links[shard], operation))
                return
        self.open[number] = operation
        due = now + self._settings.request_timeout_s
        self.tick_at = min(self.tick_at, due - self._ask_before_s)
        self._to_ask.waiting.append((due - self._ask_before_s, number))
        self._to_end.waiting.append((due, number))
        if operation.sets or self._sets.of_key:
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
            message, payload, number = decode_reply(parts)
            if connection.state is LinkState.OPEN:
                connection.heard = now
            if number == link.received + 1:
                link.received = number
            elif number:  # 0 is not counted.
                if number > link.received:  # One before it is lost; the next connection brings that.
                    self.disconnected(shard, now)
                return
            if self._values(link, message, payload, now) if type(message) is Values else self._take(link, message, now):
                self.tick_at = now
        except ProtocolError as error:
            connection.refuse(f"{link.name} sent what is no message: {error}")
        if connection.refused is not None:
            self._fail_all(link)

    def _take(self, link: ClientLink, message: Reply, now: float) -> bool:
        """One message of a shard that brings no values. Whether it has changed the connection's life, so that time may
        ask for something. Raises ProtocolError. What is said of an operation that has ended meanwhile is passed
        over."""
        match message:
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
            case Done():
                for number in message.request:
                    request = link.requests.get(number)
                    if request is not None:
                        self._settled(link, request, ended=request.done(link.shard))
            case Measured() | Failed() | Because():
                request = link.requests.get(message.request)
                if request is not None:
                    self._answered(link, request, message)
        return False

    def _answered(self, link: ClientLink, request: AskOperation, message: Measured | Failed | Because) -> None:
        """Something is said of a request."""
        if isinstance(message, Measured):
            self._settled(link, request, ended=request.measured(link.shard, message))
        elif isinstance(message, Failed):
            error = _ERRORS[message.code]
            self.end(request, None, error(f"{self.told(request)}: {link.name}: {message.reason}"))
        else:
            request.because[link.shard] = message.reason

    def _values(self, link: ClientLink, values: Values, payload: memoryview, now: float) -> bool:
        """A frame of values; else as `_take`. Where a pull came in several frames they may be small because the shard
        holds the link for slow. It hears of the last one at once: what lies here until the next call would seem to have
        been under way, and the frames would stay small."""
        if values.acknowledge:
            self._arrived(link, values.acknowledge, now)
        shard, arena = link.shard, link.arena
        if values.at is not None or values.lent or any(map(place_of, values.runs)):
            if arena.is_lost:
                link.connection.disconnected(now)
                return True
            runs = arena.runs_of(values, payload)
        else:
            runs = value_runs(values, payload)
        operation = None
        for request, came in runs:
            operation = link.requests.get(request)
            if operation is not None:  # Else it was given up meanwhile.
                ended = operation.settle(shard, operation.write(shard, came))
                if shard not in operation.pending:
                    del link.requests[request]
                if ended:
                    self.hurries = self.hurries or operation.came_in_parts
                    self.end(operation, operation.result(), None)
        if operation is not None and shard in operation.pending:
            operation.came_in_parts = True
        link.arrived(values)
        return False

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
            self.end(request, None, StoreRefusedError(f"{self.told(request)}: {link.name}: {error}"))
        else:
            self._settled(link, request, ended=ended)

    def _settled(self, link: ClientLink, request: AskOperation, *, ended: bool) -> None:
        """Parts of a request have come from a shard."""
        if link.shard not in request.pending:
            link.requests.pop(request.number, None)
        if ended:
            self.end(request, request.result(), None)

    def _arrived(self, link: ClientLink, frames: Sequence[int], now: float) -> None:
        for frame in frames:
            pieces: Sequence[SentPiece] = link.outbox.acknowledge(frame, now)
            self._delivered(link, link.arena.arrived(frame, pieces) if link.arena.in_use else pieces)

    def _delivered(self, link: ClientLink, pieces: Sequence[SentPiece]) -> None:
        for one in pieces:
            if not one.run.cancelled and one.run.owner.delivered(link.shard, one.count):
                self.end(one.run.owner, None, None)

    def _push_refused(self, link: ClientLink, message: PushRefused) -> None:
        """A run was refused. One of several calls is sent again, call by call: most of them are right."""
        frame = link.outbox.in_flight(message.frame)
        if frame is None or message.run >= len(frame.runs()):
            raise ProtocolError(f"PushRefused.run: run {message.run} of frame {message.frame} is not under way")
        some = frame.pieces_of(message.run)
        operation, *others = {piece.run.owner: None for piece in frame.pieces[some]}
        if not others:
            self.end(operation, None, StoreRefusedError(f"{self.told(operation)}: {link.name}: {message.reason}"))
            return
        for run in link.outbox.repeat(message.frame, some):
            run.entry = run.entry._replace(request=run.owner.number)
            run.owner.resent(link.shard, run)

    def shares(self, shard: int, *, taken: bool, lent: Bytes | None = None) -> None:
        """The shard has mapped this client's arena, and lends its own values, or has it no more."""
        memory = None
        if taken and self.memory is not None:
            memory = LinkMemory(self.memory, shard, lent, OwnPlaces(self.routing, shard) if lent is not None else None)
        self.links[shard].share(memory)

    def cannot_share(self, shard: int, now: float) -> None:
        """The shard may have mapped this client's arena, and what it then says is there cannot be read: the connection
        is lost, and the next one is to do without."""
        self.links[shard].arena.had_memory = True
        self.disconnected(shard, now)

    def disconnected(self, shard: int, now: float) -> None:
        self.tick_at = now
        self.links[shard].connection.disconnected(now)

    def shut_out(self, shard: int, how: HandshakeFailure, now: float, *, key: str | None) -> None:
        """The connection has ended in its handshake. `key`: this client's public one, where the link is encrypted."""
        self.tick_at = now
        link = self.links[shard]
        link.connection.shut_out(how, now, key=key)
        if link.connection.refused is not None:
            self._fail_all(link)

    def cannot_connect(self, shard: int, reason: str) -> None:
        """The endpoint is none that can be connected to, now or ever."""
        link = self.links[shard]
        link.connection.refuse(f"{link.name}: {reason}", at_fault=True)
        self._fail_all(link)

    def tick(self, now: float) -> None:
        """Deadlines, pings, silence. A tick that is late was due while this process stood still."""
        late_s = now - self.tick_at
        if late_s < 0:
            return
        if late_s > STALL_S:
            self._after_stall(late_s)
        for link in self.links:
            if link.tick(now):
                self._fail_all(link)
        asked = self._to_ask.due(now, self.open)
        if asked:
            for link in self.links:
                link.ask_why(asked)
        for number in self._to_end.due(now, self.open):
            operation = self.open[number]
            self.end(operation, None, StoreTimeoutError(self._overdue(operation)))
        self._tell_long_waits(now)
        self.tick_at = min(
            self._to_ask.next(),
            self._to_end.next(),
            self._long_waits.at,
            *[link.connection.next_tick() for link in self.links],
        )

    def _after_stall(self, stall_s: float) -> None:
        for link in self.links:
            link.connection.after_stall(stall_s)
        for deadlines in (self._to_ask, self._to_end):
            deadlines.after_stall(stall_s)

    def close(self, reason: str) -> None:
        """Fails what is open, for that reason, and says good-bye."""
        self._sets.close()
        for operation in list(self.open.values()):
            self.end(operation, None, StoreError(f"{self.told(operation)}: {reason}"))
        for link in self.links:
            link.close()

    def end(self, operation: Operation, result: Any, error: StoreError | None) -> None:
        """Ends an operation, unless it has ended."""
        if operation.ended:
            return
        operation.ended = True
        self.open.pop(operation.number, None)
        if error is not None:
            for shard in operation.pending:
                operation.give_up(self.links[shard])
        operation.let_go()
        if isinstance(result, StepOutcome):
            self.encoders.told(result)
        if error is None and operation.ends_step is not None:
            self.encoders.passed(operation.ends_step)
        self.outcomes.append((operation, result, error))
        if self._sets.of_key:
            self._sets.ended(operation)

    def _unprepared(self, operation: Operation, error: Exception) -> StoreError:
        """What becomes of an operation that could not be made."""
        if isinstance(error, StoreRefusedError):
            return error
        if isinstance(error, MemoryError):
            return StoreError(f"{self.told(operation)}: no memory: {error}")
        _log.error("slot %d: %s failed", self._slot, operation, exc_info=error)
        failed = StoreError(f"{self.told(operation)}: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed

    def _fail_all(self, link: ClientLink) -> None:
        for operation in [one for one in self.open.values() if link.shard in one.pending]:
            self.end(operation, None, self._lost_error(link, operation))

    def _lost_error(self, link: ClientLink, operation: Operation) -> StoreError:
        text = f"{self.told(operation)}: {link.connection.trouble}"
        return StoreRefusedError(text) if link.connection.at_fault else StoreLostError(text)

    def _tell_long_waits(self, now: float) -> None:
        """Looked at with each ping, so that no call pays for it."""
        self._long_waits.look(self.open, self._told_wait, now)
        oldest = next(iter(self.open), None)
        begun = self._to_end.next() - self._settings.request_timeout_s
        if oldest is not None and self._long_waits.is_new(oldest, begun, now):
            for link in self.links:
                link.ask_why([oldest])

    def _told_wait(self, number: int) -> tuple[str, str]:
        operation = self.open[number]
        return self.told(operation), self._waits(operation)

    def _overdue(self, operation: Operation) -> str:
        return f"{self.told(operation)} took over {self._settings.request_timeout_s:g} s; {self._waits(operation)}"

    def _waits(self, operation: Operation) -> str:
        """What it waits for on each shard, as far as that is known."""
        waits = [
            f"{self.links[shard].name}: {operation.because.get(shard, self._silence(self.links[shard]))}"
            for shard in sorted(operation.pending)
        ]
        return "; ".join(waits)

    @staticmethod
    def _silence(link: ClientLink) -> str:
        state = link.connection.state
        return "no answer" if state is LinkState.OPEN else f"the connection is {state.value}"
