"""All that a client decides: operations, messages and time in; messages and ended operations out. Pure."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from weft_kvstore.arrays import Buffer
from weft_kvstore.client.encoders import GradientEncoders
from weft_kvstore.client.link import ClientLink, LinkState
from weft_kvstore.client.operation import Answer, Operation, RowOperation, SentSegment
from weft_kvstore.description.check import digest
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.errors import (
    PushedTwiceError,
    StoreClosedError,
    StoreError,
    StoreLostError,
    StorePassedError,
    StoreRefusedError,
    StoreTimeoutError,
)
from weft_kvstore.same_host.memory import SharedMemory
from weft_kvstore.settings import SETS_KEPT, STALL_S, LinkSettings
from weft_kvstore.sharding import Routing
from weft_kvstore.wire.codec import ProtocolError, buffers_at, decode_reply, value_segments
from weft_kvstore.wire.messages import (
    MAX_ENTRIES,
    Acknowledge,
    Because,
    Bye,
    Cancel,
    Done,
    Failed,
    FailureCode,
    Hello,
    Measured,
    PushRefused,
    Refused,
    Released,
    Reply,
    Values,
    Welcome,
    Why,
    nbytes_of,
)

_ERRORS: Final = {
    FailureCode.LOST: StoreLostError,
    FailureCode.REFUSED: StoreRefusedError,
    FailureCode.PASSED: StorePassedError,
}


ASK_BEFORE_S: Final = 0.5
"""Shards are asked what a call waits for this long before its deadline, or a quarter of the time that it is allowed."""

LOG_AFTER_S: Final = 5.0
"""A call that waits longer is logged. Steps are shorter, but for the first, which is compiled."""

ANSWERS_S: Final = 2.5
"""From this long before it is logged, shards are asked with each ping what it waits for."""

QUIET_S: Final = 60.0
"""Between two calls that are logged: where every step takes long, a line for each would drown the others."""

MOST_FAILED: Final = 64
"""Failed steps of a key that are remembered, the lowest: versions wait for these first."""

BEHIND: Final = "it comes behind values or ids of an earlier call, which have not arrived"

UNREAD: Final = "the shard has it where it lies, and reads it once the other slots have pushed the step"

_SILENT: Final = {
    LinkState.DOWN: "the connection is down",
    LinkState.HANDSHAKE: "the handshake has no answer",
    LinkState.OPEN: "no answer",
}
"""Why a shard may have said nothing about a request, by the state of its link."""

_log = logging.getLogger("weft.store")

Outcome: TypeAlias = tuple[Operation, Any, BaseException | None]
"""An operation that has ended: its result, or its error."""


def lacks(error: BaseException) -> bool:
    """Whether some shard certainly lacks a push that failed with this error. After a timeout, or where a shard was
    lost, all of it may have arrived."""
    return not isinstance(error, StoreTimeoutError | StoreLostError)


def noted(error: BaseException) -> StoreError:
    """A copy of an error without its traceback, which would keep the frames of whoever raised it, and the arrays in
    them."""
    return (type(error) if isinstance(error, StoreError) else StoreError)(str(error))


def push_again(step: int, error: BaseException) -> str:
    """Tells the user which step to push again after a push has failed."""
    return f"step {step} has to be pushed again, with step={step}; its push failed: {error}"


class ClientCore:
    """One slot's operations on all shards. `outcomes` has operations that have ended, each once. `tick_at` is when
    `tick` is due; before that it does nothing. `process` are 16 bytes that are drawn once per client; `incarnation`
    counts the clients that the slot has had, one after the other.

    A slot's calls of one key take effect in their order, whatever their priorities. A request is a control message,
    which overtakes data. So it is blocked until earlier `set`s of its keys have arrived, and the end of a step until
    the ids of earlier pulls of rows have; later pushes of these keys are blocked behind the request. Where steps are
    committed, the end of a step concerns every key.

    Invariants: `open` has operations that have begun and not ended, by number, and so in the order of deadlines. Those
    in `outcomes` are not in `open`, and no link sends them again. `_setting` are open operations that set values;
    `_blocked` are operations that wait for others, each with their numbers.
    """

    def __init__(
        self,
        description: StoreDescription,
        routing: Routing,
        slot: int,
        incarnation: int,
        process: bytes,
        *,
        settings: LinkSettings,
        endpoints: Sequence[str],
        now: float,
        memory: SharedMemory | None = None,
    ) -> None:
        self.routing = routing
        self.encoders = GradientEncoders(description, self.routing, slot)
        self.outcomes: list[Outcome] = []
        self.acknowledges_at_once = False
        """Whether frames of values are acknowledged before a caller returns: see `_on_values`."""
        self._slot = slot
        job, term, session = description.job, description.term, 0
        hello = Hello(job, term, slot, incarnation, process, session, digest(description))
        self.links = [
            ClientLink(shard, endpoint, hello, settings, now, memory=memory) for shard, endpoint in enumerate(endpoints)
        ]
        self.open: dict[int, Operation] = {}
        self._names = [key.key for key in description.keys]
        self._commits = description.commit is not None
        self.failed: dict[str, dict[int, StoreError]] = {}
        """By key: the steps whose push has failed, and was not made again; until then no later version comes. Noted
        before the future of the push ends. Other threads may read it, take a step out that they push again, and note
        one that they could not push; a key that was noted once stays."""
        self.failed_pushes: list[tuple[Operation, int, BaseException]] = []
        """Pushes that have failed, with their steps and errors: `fail_pulls` notes them."""
        self._setting: dict[int, Operation] = {}
        self._blocked: list[tuple[Operation, set[int]]] = []
        self._last_senders: dict[int, int] | None = None
        """By dense key: the last operation that sends it. None until a call has a priority; emptied when an operation
        fails, as that one may have arrived before the one ahead of it."""
        self._number = 0
        self._asked = 0
        """The number of the last operation for which shards were asked what it waits for, as its deadline is near."""
        self._timeout_s = settings.request_timeout_s
        self._ask_before_s = min(ASK_BEFORE_S, settings.request_timeout_s / 4)
        self._quiet_until = -math.inf
        self.tick_at = self._next_tick_at = now
        """`_next_tick_at` is when `tick` was due when it was called last: events may make it due earlier."""
        self.rows_pushed = 0
        self.rows_pulled = 0

    def name_of(self, operation: Operation) -> str:
        """The slot and the call: how every error begins."""
        return f"slot {self._slot}: {operation}"

    def begin(self, operation: Operation, now: float) -> None:
        """Begins an operation, which ends by its deadline. An error in its preparation ends this operation only."""
        try:
            number = self._number = operation.number = self._number + 1
            if operation.priority or self._last_senders is not None:
                operation.send_priority = self._send_priority(operation)
            operation.due_at = now + self._timeout_s
            self.open[number] = operation  # From here on, whatever is raised, `close` ends it.
            shards = operation.pending = operation.prepare(self.routing, self.encoders)
        except Exception as error:  # noqa: BLE001  # an operation's outermost frame
            self.end(operation, self._raised(operation, error))
            return
        self.rows_pushed += operation.rows_pushed
        self.rows_pulled += operation.rows_pulled
        for shard in shards:
            link = self.links[shard]
            if link.lost is not None:
                self.end(operation, self._lost_error(link, operation))
                return
        if self.failed and self._fails_with_push(operation):
            return
        if not shards:
            self.end(operation)
            return
        if operation.sets and len(self._setting) >= SETS_KEPT:
            detail = f"{SETS_KEPT} calls that set values have not ended; wait for some of them"
            self.end(operation, StoreRefusedError(f"{self.name_of(operation)}: {detail}"))
            return
        self.tick_at = min(self.tick_at, operation.due_at - self._ask_before_s)
        if self._setting or self._blocked or operation.ends_step:
            keys = {*range(len(self._names))} if operation.ends_step and self._commits else {*operation.reads}
            before = {one for one, other in self._setting.items() if not keys.isdisjoint(other.sets)}
            if operation.ends_step:
                before.update(
                    one
                    for one, other in self.open.items()
                    if isinstance(other, RowOperation) and not (other.has_arrived or keys.isdisjoint(other.reads))
                )
            keys.update(operation.sends)
            before.update(
                *[numbers for other, numbers in self._blocked if not keys.isdisjoint((*other.reads, *other.sends))]
            )
            if before:
                self._blocked.append((operation, before))
                operation.waits_for = dict.fromkeys(shards, BEHIND)
        if operation.sets:
            self._setting[number] = operation
        if operation.waits_for:
            return
        self._start(operation)

    def _send_priority(self, operation: Operation) -> int:
        """The priority of what an operation sends: its own, or lower, so that it does not overtake an earlier call that
        still sends something of the same keys. For dense keys the last such call counts, as its data arrives last; for
        a table all open ones, as they may send to other shards."""
        last = self._last_senders
        if not last:
            last = self._last_senders = {}
            for one in self.open.values():
                last.update(dict.fromkeys(one.sends, one.number))
        if isinstance(operation, RowOperation):
            table = operation.keys.key_indices[0]
            of_rows = [one for one in self.open.values() if isinstance(one, RowOperation)]
            earlier: list[Operation] = [one for one in of_rows if one.keys.key_indices[0] == table]
        else:
            earlier = [
                self.open[number] for number in {last.get(key) for key in operation.sends} if number in self.open
            ]
            last.update(dict.fromkeys(operation.sends, operation.number))
        return min([operation.priority, *[one.send_priority for one in earlier if not one.has_arrived]])

    def _start(self, operation: Operation) -> None:
        """Hands an operation to the links."""
        for shard in operation.pending:
            link = self.links[shard]
            for segment in operation.segments.get(shard, ()):
                link.outbox.put(segment, operation.number)
            if operation.is_request or shard in operation.asked:
                link.requests[operation.number] = operation
                link.new_requests.append(operation)

    def receive(self, shard: int, parts: Sequence[Buffer], now: float) -> None:
        """Handles one message from a shard. Malformed bytes end the link for good where the connection is open, or none
        ever was; else they end this connection."""
        link = self.links[shard]
        if link.state is LinkState.REFUSED:
            return
        try:
            message, payload, number = decode_reply(parts)
            if link.state is LinkState.OPEN:
                link.heard = now
            if number == link.received + 1:
                link.received = number
            elif number:  # 0 is not counted.
                if number > link.received:  # One before it is lost; the next connection brings that.
                    self.disconnected(shard, now)
                return
            if type(message) is Values:
                self._on_values(link, message, payload, now)
            else:
                self._on_control(link, message, now)
        except ProtocolError as error:
            trouble = StoreLostError(f"{link.name} sent what is no message: {error}")
            if link.welcome is None or link.state is LinkState.OPEN:
                link.refuse(trouble)
            else:  # A proxy may have sent it, or another server at the shard's address.
                link.disconnected(now, trouble)
            self.tick_at = now

    def _on_control(self, link: ClientLink, message: Reply, now: float) -> None:
        """A message without values. Messages about operations that have ended are ignored. Raises ProtocolError."""
        match message:
            case Acknowledge():
                self._on_acknowledged(link, message.frame, now)
            case Released():
                for frame in message.frame:
                    if frame not in link.shared_frames.frames:
                        raise ProtocolError(f"Released.frame: {frame} is not in shared memory")
                    self._delivered(link, link.shared_frames.release(frame))
            case PushRefused():
                self._on_push_refused(link, message)
            case Welcome() | Refused():
                self._delivered(link, link.on_handshake(message, now))
                self.tick_at = now
            case Done() | Measured() | Failed() | Because():
                for number in message.request if isinstance(message, Done) else [message.request]:
                    if (request := link.requests.get(number)) is not None:
                        self._on_answer(link, request, message)

    def _on_answer(self, link: ClientLink, request: Operation, message: Answer | Failed | Because) -> None:
        """A shard answers a request, or says what it waits for."""
        if isinstance(message, Because):
            request.waits_for = {**request.waits_for, link.shard: message.reason}
            return
        try:
            if isinstance(message, Failed):
                raise _ERRORS[message.code](message.reason)
            for shard, said in request.answered(link.shard, message):
                self.links[shard].say(said)
        except StoreError as error:
            self.end(request, type(error)(f"{self.name_of(request)}: {link.name}: {error}"))
            link.requests.pop(request.number, None)  # Also one that outlives its failure: this shard has refused it.
            return
        if link.shard not in request.pending:
            link.requests.pop(request.number, None)
        if not request.pending:
            self.end(request)

    def _on_values(self, link: ClientLink, values: Values, payload: memoryview, now: float) -> None:
        """A frame of values. The last frame of a pull that came in several is acknowledged at once: the shard measures
        the link by that, and would send small frames for ever if it waited for the next call. Raises ProtocolError."""
        if values.acknowledge:
            self._on_acknowledged(link, values.acknowledge, now)
        shard, buffers = link.shard, [payload]
        if values.at:
            if link.peer_memory is not None:
                buffers = buffers_at(values, link.peer_memory)
            elif link.welcome is not None and link.welcome.listener:
                self.disconnected(shard, now)  # The shard's end is closed, or its memory could not be mapped.
                return
            else:
                raise ProtocolError("Values.at: the shard shares no memory")
        operation = None
        for request, received in value_segments(values, buffers):
            operation = link.requests.get(request)
            if operation is not None:  # Else it has failed or was cancelled.
                ended = operation.received(shard, operation.write(shard, received))
                if shard not in operation.pending:
                    del link.requests[request]
                if ended:
                    self.acknowledges_at_once = self.acknowledges_at_once or operation.is_partial
                    operation.has_arrived = True
                    self.end(operation, operation.refusal)
        if operation is not None and shard in operation.pending:
            operation.is_partial = True
        total = sum(map(nbytes_of, values.segments))
        link.counts["frames_received"] += 1
        link.counts["payload_bytes_received"] += total
        if values.at:
            link.counts["shared_bytes_received"] += total
        link.acknowledge.append(values.frame)

    def _on_acknowledged(self, link: ClientLink, frames: Sequence[int], now: float) -> None:
        for frame in frames:
            segments = link.outbox.acknowledge(frame, now)
            if link.shared_frames.frames:
                segments = link.shared_frames.arrived(frame, segments)
            self._delivered(link, segments)

    def _delivered(self, link: ClientLink, segments: Sequence[SentSegment]) -> None:
        for segment in segments:
            owner = segment.owner
            if owner.arrived(link.shard, segment.count):
                self.end(owner, owner.refusal)
            elif self._blocked and owner.has_arrived:
                self._unblock(owner.number)

    def _on_push_refused(self, link: ClientLink, message: PushRefused) -> None:
        """A shard has refused a segment. If the segment has gradients of several calls, those of each call are sent
        again by themselves: most of them are right."""
        frame = link.outbox.frames.get(message.frame)
        refused = [] if frame is None else [one for one in frame.segments if one.row == message.segment]
        if frame is None or not refused:
            raise ProtocolError(
                f"PushRefused.segment: segment {message.segment} of frame {message.frame} is not under way"
            )
        operation, *others = {segment.owner: None for segment in refused}
        if not others:
            error = StoreRefusedError(f"{self.name_of(operation)}: {link.name}: {message.reason}")
            if operation.sets:
                operation.refusal = error
            else:
                self.end(operation, error)
            return
        for segment in refused:
            frame.segments.remove(segment)
            segment.entry = segment.entry._replace(request=segment.request)
            if not segment.owner.ended:
                link.outbox.put(segment, segment.request)

    def disconnected(self, shard: int, now: float, reason: str = "", *, may_pass: bool = True) -> None:
        """A connection has broken, or could not be made; the reason is empty where none is known. `may_pass`: a new
        connection may succeed; else the link is given up."""
        self.tick_at, link = now, self.links[shard]
        if not may_pass:
            link.refuse(StoreRefusedError(f"{link.name}: {reason}"))
        else:
            link.disconnected(now, StoreLostError(f"{link.name}: {reason}") if reason else None)

    def tick(self, now: float) -> None:
        """Checks deadlines, pings and silence. If it is late, this process was suspended: deadlines are extended."""
        if now < self.tick_at:
            return
        late_s = now - self._next_tick_at
        if late_s > STALL_S:
            for link in self.links:
                link.after_stall(late_s, now)
            for operation in self.open.values():
                operation.due_at += late_s
        for link in self.links:
            link.tick(now)
            if link.lost is not None:
                for operation in [one for one in self.open.values() if link.shard in one.pending]:
                    self.end(operation, self._lost_error(link, operation))
        if asked := self._end_overdue(now) + self._log_long_wait(now):
            for link in self.links:
                if here := [number for number in asked if number in link.requests]:
                    link.say(Why(here[:MAX_ENTRIES]))
        due_at = next((one.due_at for one in self.open.values()), math.inf)
        ask_at = next((one.due_at for one in self.open.values() if one.number > self._asked), math.inf)
        pings = [link.next_tick() for link in self.links]
        self.tick_at = self._next_tick_at = min(due_at, ask_at - self._ask_before_s, *pings)

    def close(self, reason: str) -> None:
        """Fails what is open, for that reason, and says good-bye."""
        self._blocked.clear()
        for operation in list(self.open.values()):
            self.end(operation, StoreClosedError(f"{self.name_of(operation)}: {reason}"))
        for link in self.links:
            link.say(Bye())

    def fail_pulls(self) -> None:
        """Notes the pushes that have failed, and fails the pulls that wait for them, unless the step was pushed again.
        Called before futures end."""
        pushes, self.failed_pushes = self.failed_pushes, []
        again = {(key, one.pushes) for one in self.open.values() for key in one.sends}
        for push, step, error in pushes:
            if isinstance(error, PushedTwiceError | StoreClosedError):
                continue  # Pulls wait for the first of both; once the store is closed nobody can push it again.
            keys = [key for key in push.sends if (key, step) not in again]
            kept = noted(error)
            for key in keys:
                failed = self.failed.setdefault(self._names[key], {})
                failed[step] = kept
                if len(failed) > MOST_FAILED:
                    failed.pop(max(failed), None)
            if keys and lacks(error):
                _log.warning("it has to be pushed again: %s", error)
        for other in [*self.open.values()]:
            self._fails_with_push(other)

    def _fails_with_push(self, operation: Operation) -> bool:
        """Fails a pull whose version cannot come, because the push of an earlier step has failed. A pushpull fails once
        the shards have its gradients, which count. Returns whether it has ended. Where the operation pushes a failed
        step again, the step is no longer noted as failed."""
        if operation.pushes is not None:
            for key in operation.sends:
                self.failed.get(self._names[key], {}).pop(operation.pushes, None)
        for key in operation.reads if operation.is_pull else ():
            failed = {**self.failed.get(self._names[key], {})}
            step = min([one for one in failed if one < operation.version], default=None)
            if step is not None:
                error, text = failed[step], push_again(step, failed[step])
                lost = next((link.trouble for link in self.links if link.state is LinkState.REFUSED), None)
                if lost is not None and not lacks(error):
                    text = f"{text}; since then: {lost}"
                operation.refusal = type(error)(f"{self.name_of(operation)}: {text}")
                if operation.sends and not operation.has_arrived:
                    return False
                self.end(operation, operation.refusal)
                return True
        return False

    def end(self, operation: Operation, error: BaseException | None = None) -> None:
        """Ends an operation, unless it has ended: with the error, else with its result, or with the error of making the
        result. If a signal's handler raises meanwhile, the operation is in `open` or in `outcomes`."""
        if operation.ended:
            return
        result = None
        if error is None:
            try:
                result = operation.result()
            except Exception as raised:  # noqa: BLE001  # an operation's outermost frame
                error = self._raised(operation, raised)
        self.outcomes.append((operation, result, error))
        operation.ended = True
        if error is not None:
            operation.fail()
            for link in map(self.links.__getitem__, operation.pending):  # What has not left of it is withdrawn.
                link.outbox.cancel(operation.number)
                if not operation.outlives_failure and link.requests.pop(operation.number, None) is not None:
                    link.say(Cancel([operation.number]))
            if operation.pushes is not None and not operation.has_arrived:
                self.failed_pushes.append((operation, operation.pushes, error))
            if self._last_senders:
                self._last_senders.clear()
        operation.segments = {}  # Breaks a reference cycle, so that its arrays are freed at once.
        self.open.pop(operation.number, None)
        self._setting.pop(operation.number, None)
        if self._blocked:
            self._unblock(operation.number)

    def _unblock(self, number: int) -> None:
        """What this operation sends has arrived, or it has ended: begins the blocked operations that wait for no
        other."""
        blocked, self._blocked = self._blocked, []
        for one, before in blocked:
            before.discard(number)
            if before:
                self._blocked.append((one, before))
            elif not one.ended:
                one.waits_for = {}
                self._start(one)

    def end_futures(self) -> None:
        """Ends the futures of operations that have ended. The thread that does the I/O decides when. If a signal's
        handler raises meanwhile, the next call ends the rest."""
        if self.failed_pushes:
            self.fail_pulls()
        for operation, result, error in self.outcomes:
            if not operation.future.has_ended:
                operation.future.end(result, error)
        self.outcomes.clear()

    def _raised(self, operation: Operation, error: Exception) -> StoreError:
        """The error of an operation that could not be prepared, or whose result could not be made."""
        if isinstance(error, StoreRefusedError):
            return error
        if isinstance(error, MemoryError):
            return StoreError(f"{self.name_of(operation)}: no memory: {error}")
        _log.error("slot %d: %s failed", self._slot, operation, exc_info=error)
        failed = StoreError(f"{self.name_of(operation)}: {type(error).__name__}: {error}")
        failed.__cause__ = error
        return failed

    def _lost_error(self, link: ClientLink, operation: Operation) -> StoreError:
        kind = StoreRefusedError if isinstance(link.trouble, StoreRefusedError) else StoreLostError
        return kind(f"{self.name_of(operation)}: {link.trouble}")

    def _end_overdue(self, now: float) -> list[int]:
        """Fails operations that are overdue. Returns the numbers of those that soon will be: shards are asked what they
        wait for."""
        asked = []
        for operation in list(self.open.values()):
            if operation.due_at - self._ask_before_s > now:
                break
            if operation.due_at <= now:
                text = f"{self.name_of(operation)} took over {self._timeout_s:g} s; {self._waits(operation)}"
                self.end(operation, operation.refusal or StoreTimeoutError(text))
            elif operation.number > self._asked:
                self._asked = operation.number
                asked.append(operation.number)
        return asked

    def _log_long_wait(self, now: float) -> list[int]:
        """Logs the call that has been open longest, and what it waits for. Returns the number of the call for which
        shards are to be asked. Called with each ping, so that no call pays for it."""
        oldest = next(iter(self.open.values()), None)
        waited_s = 0.0 if oldest is None else now - (oldest.due_at - self._timeout_s)
        if oldest is None or waited_s < LOG_AFTER_S - ANSWERS_S or now < self._quiet_until:
            return []
        if waited_s >= LOG_AFTER_S:
            self._quiet_until = now + QUIET_S
            _log.warning("%s has waited %.0f s: %s", self.name_of(oldest), waited_s, self._waits(oldest))
        return [oldest.number]

    def _waits(self, operation: Operation) -> str:
        """What it waits for on each shard, as far as that is known."""
        waits = []
        for shard in sorted(operation.pending):
            link = self.links[shard]
            reason = operation.waits_for.get(shard)
            if reason is None and link.trouble is not None:
                waits.append(str(link.trouble))
                continue
            if reason is None:
                reason = UNREAD if link.shared_frames.is_unread(operation) else _SILENT[link.state]
            waits.append(f"{link.name}: {reason}")
        return "; ".join(waits)
