"""Decides which thread polls a client's sockets: one waiting caller leads, others follow. Defers Ctrl-C."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of handlers, which takes ten times as long
import contextlib
import math
import operator
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from signal import SIGINT
from types import FrameType
from typing import Any, ClassVar, Final, TypeVar

from weft_kvstore.client.operation import Operation
from weft_kvstore.client.sockets import ClientSockets, Readable
from weft_kvstore.errors import StoreClosedError, StoreError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.process import Callbacks, OwnProcess, Wakeup

# --- Ctrl-C, kept back while the main thread is in the middle of something --------------------------------------------


T = TypeVar("T")

_INTERRUPT: Final = int(SIGINT)
_getsignal, _setsignal = _signal.getsignal, _signal.signal


class Interrupts:
    """Within this context the Python handler of SIGINT is deferred: it is called during `sleep`, or at the end. It may
    raise, as CPython's own does. For the main thread only; a handler that is called during `sleep` may enter another
    context.

    It replaces the handler meanwhile. A handler that is not Python's, or that is set meanwhile, is left alone.
    """

    thread: ClassVar[int | None] = threading.main_thread().ident
    """The main thread, where Python calls the handlers of signals."""

    are_deferred = False
    """Whether the main thread is within such a context, and does not sleep."""

    _handler: Callable[[int, FrameType | None], Any] | None = None
    _interrupted = False
    _caller: FrameType | None = None
    """The frame that has entered it, or is about to; None where none has. Once that frame has ended, so has the
    context, even if it was not exited."""

    def __enter__(self) -> Interrupts:
        # In this order, as another signal's handler may raise between any two lines.
        self._caller = sys._getframe(1)
        handler = _getsignal(_INTERRUPT)
        if callable(handler):
            if handler != self._receive:  # Else it was not left: another signal's handler raised there.
                self._handler = handler
            Interrupts.are_deferred = True
            _setsignal(_INTERRUPT, self._receive)
        Interrupts.are_deferred = True
        return self

    def __exit__(self, *_: object) -> None:
        Interrupts.are_deferred = False
        handler = self._handler
        if handler is not None and _getsignal(_INTERRUPT) == self._receive:  # Else another was set meanwhile.
            _setsignal(_INTERRUPT, handler)
        self._handler = self._caller = None
        interrupted, self._interrupted = self._interrupted, False
        if interrupted and handler is not None:
            handler(_INTERRUPT, None)

    def sleep(self, sleep: Callable[..., T], *arguments: object) -> T:
        """Calls `sleep`; interrupts are not deferred meanwhile."""
        Interrupts.are_deferred = False
        try:
            if self._interrupted and self._handler is not None:
                self._interrupted = False
                self._handler(_INTERRUPT, None)
            return sleep(*arguments)
        finally:
            Interrupts.are_deferred = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not Interrupts.are_deferred and self._handler is not None:
            self._handler(number, frame)
            return
        self._interrupted = self.is_within(frame)
        if not self._interrupted:
            self.__exit__()
            signal.raise_signal(SIGINT)

    def is_within(self, frame: FrameType | None) -> bool:
        """Whether this frame was called by the one that has entered the context; else another signal's handler raised
        while it was entered or exited."""
        while frame is not None and frame is not self._caller:
            frame = frame.f_back
        return frame is not None


def _in_child() -> None:
    """The thread that has forked is the main thread of the child, where nothing is deferred any more."""
    Interrupts.thread, Interrupts.are_deferred = threading.get_ident(), False
    handler = _getsignal(_INTERRUPT)
    while isinstance(owner := getattr(handler, "__self__", None), Interrupts):
        handler = owner._handler or signal.default_int_handler
    if callable(handler):
        _setsignal(_INTERRUPT, handler)


os.register_at_fork(after_in_child=_in_child)


_NO_INTERRUPTS: Final = contextlib.nullcontext()
"""The context of a thread on which no signal's handler runs, or which defers them already."""
_MAIN_THREAD: Final = Interrupts()


def uninterrupted(*, waits: bool = False) -> Interrupts | contextlib.nullcontext[None]:
    """Defers Ctrl-C while this thread is within the context; it may sleep only by the context's `sleep`, where it has
    one. A caller that `waits` is nearly never within another context: so it checks for one that was not exited, and
    exits that."""
    if threading.get_ident() != Interrupts.thread:
        return _NO_INTERRUPTS
    if Interrupts.are_deferred:
        if not waits or _MAIN_THREAD.is_within(sys._getframe(1)):
            return _NO_INTERRUPTS
        _MAIN_THREAD.__exit__()
    return _MAIN_THREAD if _MAIN_THREAD._caller is None else Interrupts()


# --- A thread that sleeps, over a client's sockets or not, and is woken -----------------------------------------------


LONGEST_SLEEP_S: Final = 60.0


class PollWait(Wakeup):
    """One thread at a time sleeps on it; any thread may call `wake`.

    A thread that is about to sleep calls `prepare`, then checks whether there is work, and clears `is_asleep` if there
    is. A thread that has work for it first stores the work, then calls `wake`. So one of them sees the other.

    `over_sockets`: the client's sockets wake it too. `until` is when it wakes without either.
    """

    def __init__(self, sockets: ClientSockets) -> None:
        super().__init__()
        self.is_asleep = False
        self.over_sockets = False
        self.until = 0.0
        self._sockets = sockets
        self._alone = select.poll()
        self._alone.register(self, select.POLLIN)
        self._poll = self._alone
        self._changes = -1

    def prepare(self, until: float, *, over_sockets: bool) -> None:
        """With `over_sockets` the caller holds `_working`, so that no socket is opened or closed meanwhile."""
        if over_sockets and self._changes != self._sockets.changes:
            self._changes = self._sockets.changes
            self._poll = self._sockets.watch(self)
        self.until = until
        self.over_sockets = over_sockets
        self.is_asleep = True

    def sleep(self) -> Readable:
        """Returns once it is woken, or at `until`: the descriptors that are readable then."""
        left_s = min(max(self.until - time.monotonic(), 0.0), LONGEST_SLEEP_S)
        poll = self._poll if self.over_sockets else self._alone
        readable = dict(poll.poll(math.ceil(left_s * 1000)))
        self.is_asleep = False
        if self._fd in readable:
            self.clear()
        return readable

    def wake(self) -> None:
        """Wakes it, if it sleeps."""
        if self.is_asleep:
            self.is_asleep = False
            super().wake()


# --- Which of a client's threads does its work ------------------------------------------------------------------------
# To switch threads costs more than a small round trip. So a caller that waits for a result does the work: it *leads*.
# Each row is a state of a thread, and what the thread does in it.
#
# Thread and state          | sleeps on             | until                            | then
# --------------------------|-----------------------|----------------------------------|--------------------------------
# a caller in `submit`      | nothing               |                                  | `_send`, unless another thread
#                           |                       |                                  | works, or the call may wait
# a caller that leads,      | `_leader_wait`, over  | a message, `tick_at`, its time   | `_round`, until its future has
#   `_lead`                 | the sockets           | is over, or its future has ended | ended; then another may lead
# a caller that follows,    | its future, and a     | its future has ended, or no      | leads
#   `_follow`               | queue in `_followers` | caller leads                     |
# the client's own, while a | `_thread_wait` alone  | `_due_at`: `GRACE_S` after that, | `_round`, unless a caller leads
#   caller leads, or has    |                       | or longer while one leads        | or has led since
#   led lately              |                       |                                  |
# the client's own, else    | `_thread_wait`, over  | a message, or `tick_at`          | `_round`
#                           | the sockets           |                                  |
#
# `_send` and `_round` are the work. One thread at a time does it, which holds `_working` and does not sleep; each takes
# a bounded time, so that pings leave and shards are heard. Callbacks have a thread of their own (`process.Callbacks`).
#
# What is to be sent                            | Who sends it
# ----------------------------------------------|-----------------------------------------------------------------------
# an operation                                  | its own call, in `submit`
# an operation, while another thread works      | the leader or the client's thread, which does not sleep before
# a small push, or a call behind several open   | the next call that waits for less, the leader, or the client's thread
# ones, soon after another (`BATCH_S`)          | after `BATCH_S`
# frames beyond `BURST_BYTES`                   | the same
# acknowledgements, frames that wait for credit | the leader or the client's thread, in `_round`, after it has read
#
# What wakes a thread that sleeps              | Who
# ---------------------------------------------|------------------------------------------------------------------------
# something is due before it would wake        | `_hand_over` wakes the leader, or where none leads the client's thread
# a socket was used, which may clear its       | `_send` wakes who sleeps over the sockets, if a message is there; the
#   descriptor                                 | client's thread wakes the leader, and a leader that leaves that thread
# its future has ended on another thread       | `ended` wakes the leader; the future itself a follower
# the leader leaves                            | `_lead` wakes the first follower
# the client ends                              | `_end` wakes both; the futures that fail then, the followers
#
# Nothing is left half done. Ctrl-C is kept back during the work (`Interrupts`), and comes where a caller sleeps.
# Anything else that is raised in the middle of the work from outside it (by another signal's handler, or by another
# thread) ends the client, as the work's own errors do: its futures fail, and say so.


GRACE_S: Final = 0.005
"""For so long after a caller has led, the client's own thread leaves what is not urgent to the next caller:
acknowledgements, and answers that nobody waits for."""

EAGER_CALLS: Final = 4
"""While at most so many operations are open, each call begins its own, unless it is a small push. A program with more
open operations is not waiting for one of them yet, and operations that are begun together share messages."""

BATCH: Final = 32
"""Once so many operations wait, or a multiple, the last call begins them. While another thread works, more gather."""

BURST_BYTES: Final = 2 << 20
"""Bytes of frames that a call sends to each shard by itself. The rest leaves with the next call, or soon by itself: a
pull that is made after a large push then reaches the shard while it is on its way, and values come back meanwhile."""

BATCH_S: Final = 0.001
"""For so long after a call has begun operations, the next ones may wait for one another. A program that calls less
often never waits. While several are open, the client's own thread does not read messages: it would take the interpreter
from the caller."""


class Poller:
    """Does a client's work. `submit`, `drive` and `close` are called from any thread of the process; `name` names the
    client's own thread.

    `waited_for` is the leader's future, None while no caller leads. `_failure` is why the client ends, once it does:
    StoreClosedError after `close`.
    """

    def __init__(self, sockets: ClientSockets, name: str) -> None:
        self._sockets = sockets
        self._process = OwnProcess()
        # Reentrant locks know whether this thread holds them.
        self._leading: Any = threading.RLock()
        self._working: Any = threading.RLock()
        self._failure: BaseException | None = None
        self._is_released = False
        self._callbacks = Callbacks(f"{name}-callbacks")
        self._followers: list[tuple[StoreFuture[Any], SimpleQueue[None]]] = []
        """The future of each caller that waits and does not lead, and what wakes the caller; the oldest first."""
        self.waited_for: StoreFuture[Any] | None = None
        self._led_at = -math.inf
        """When the current leader began; without one, when the last leader left."""
        self._begun_at = -math.inf
        """When operations were last begun."""
        self._leader_wait = PollWait(sockets)
        self._thread_wait = PollWait(sockets)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> StoreFuture[Any]:
        """Takes an operation, whose future it returns; where little is under way it begins on this thread. Ends no
        future, unless the client ends. Raises StoreError in a forked child."""
        if os.getpid() != self._process.number:
            self._process.check()
        future = operation.future
        future.driver = self
        sockets = self._sockets
        submitted = sockets.submitted
        submitted.append(operation)
        if self._failure is not None:
            if self._is_released:  # Else the client's thread sends it, with what was submitted before, or refuses it.
                self._refuse_submitted()
        elif (
            (operation.may_wait or len(sockets.core.open) >= EAGER_CALLS)
            and self.waited_for is None
            and len(submitted) % BATCH
            and time.monotonic() < self._begun_at + BATCH_S
        ):
            try:
                if submitted[0] is operation:  # Else the call that submitted the first has done that.
                    self._hand_over()
            except IndexError:
                pass  # Another thread has begun it.
        else:
            with uninterrupted():
                if not self._working._is_owned():
                    self._work(self._send, blocking=False)  # Else another thread works, and leaves it to be begun.
                self._hand_over()
        return future

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Returns when the future has ended, or after that long. Raises StoreError in a forked child, and where a
        finalizer or a signal's handler waits in the middle of the work, or of a wait that leads: nobody else would."""
        if timeout_s is not None and timeout_s <= 0:
            return
        if os.getpid() != self._process.number:
            self._process.check()
        if self._leading._is_owned() or self._working._is_owned():
            raise StoreError(
                "a signal's handler or a finalizer came in the middle of the store's own work, "
                "where it cannot wait for a result: wait once it has returned"
            )
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with uninterrupted(waits=True) as interrupts:
            asleep = operator.call if interrupts is None else interrupts.sleep
            while not future.has_ended and time.monotonic() < until:
                if not self._lead(future, until, asleep):
                    self._follow(future, until, asleep)

    def ended(self, future: StoreFuture[Any]) -> None:
        """The future has ended, on this thread."""
        if self.waited_for is future and not self._leading._is_owned():
            self._leader_wait.wake()
        if future._done_callbacks:
            self._callbacks.add(future)

    def end_reason(self) -> str | None:
        """Why the client ends, once it does."""
        if self._failure is None:
            return None
        if isinstance(self._failure, StoreClosedError):
            return str(self._failure)
        return f"the store's thread failed: {type(self._failure).__name__}: {self._failure}"

    def close(self) -> None:
        """Fails what is open, and returns once everything is released; at once in the middle of the work, and in a
        callback."""
        self._end(StoreClosedError("the store was closed"))
        if not (self._working._is_owned() or self._leading._is_owned()):
            self._thread.join()

    # --- Who works, and until when the others sleep

    def _lead(self, future: StoreFuture[Any], until: float, asleep: Callable[..., Any]) -> bool:
        """Works until the future has ended or the time is over, then wakes whoever goes on. False where another caller
        leads, or the client ends."""
        leader, own = self._leader_wait, self._thread_wait
        try:
            if self._failure is not None or not self._leading.acquire(blocking=False):
                return False
            self._led_at, self.waited_for = time.monotonic(), future
            readable = None  # Its call has just sent: it only goes to sleep.
            while not (future.has_ended or self._work(self._round, leader, readable, future, until)):
                readable = asleep(leader.sleep) if leader.is_asleep else {}
                if self._failure is not None or time.monotonic() >= until:
                    break
            return True
        finally:
            if self._leading._is_owned():
                self.waited_for, leader.is_asleep = None, False
                self._led_at = time.monotonic()
                self._leading.release()
                for other, woken in self._followers.copy():
                    if not other.has_ended:  # It may lead now.
                        woken.put(None)
                        break
                if own.over_sockets:  # What was read since may have cleared the descriptors that it sleeps on.
                    own.wake()
                else:
                    self._hand_over()

    def _follow(self, future: StoreFuture[Any], until: float, asleep: Callable[..., Any]) -> None:
        """Waits until the future has ended, or no caller leads. It joins `_followers` before it checks `waited_for`,
        and a leader clears that before it wakes a follower, so that one of them sees the other."""
        follower = future, SimpleQueue[None]()
        self._followers.append(follower)
        try:
            if not future.has_ended and (self.waited_for is not None or self._failure is not None):
                left_s = max(min(until - time.monotonic(), threading.TIMEOUT_MAX), 0.0)
                asleep(future.sleep, follower[1], left_s)
        finally:
            self._followers.remove(follower)

    def _run(self) -> None:
        """The loop of the client's own thread."""
        own, readable = self._thread_wait, Readable()
        try:
            while self._failure is None:
                own.prepare(math.inf, over_sockets=False)  # From here on it is woken for what is left to it.
                own.until = self._due_at(over_sockets=False)
                if own.until <= time.monotonic():
                    self._work(self._round, own, readable)
                    self._leader_wait.wake()  # A caller may have begun to lead, and not know what was read.
                readable = own.sleep() if self._failure is None and own.is_asleep else {}
                own.is_asleep = False
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._release()
        if not isinstance(self._failure, StoreClosedError):
            raise self._failure

    def _due_at(self, *, over_sockets: bool) -> float:
        """When the leader, or else the client's thread, has to work next. `over_sockets`: messages wake it besides."""
        sockets, core = self._sockets, self._sockets.core
        if not over_sockets and self.waited_for is not None:
            # While a caller leads for long, the thread wakes less and less often, but for pings: the caller may be in a
            # signal's handler.
            now = time.monotonic()
            return min(now + max(GRACE_S, now - self._led_at), core.tick_at + GRACE_S)
        if core.outcomes:
            return 0.0
        if sockets.submitted or sockets.has_more:
            return self._begun_at + BATCH_S
        if over_sockets:
            return core.tick_at
        for link in core.links:
            if link.outbox.queued_slices:  # It waits for credit.
                return 0.0
        if len(core.open) >= EAGER_CALLS:
            return max(self._led_at + GRACE_S, self._begun_at + BATCH_S)
        return self._led_at + GRACE_S

    def _hand_over(self) -> None:
        """Leaves the remaining work to the leader or the client's thread, and wakes that if it would sleep for much
        longer."""
        poll_wait = self._thread_wait if self.waited_for is None else self._leader_wait
        if poll_wait.is_asleep and self._due_at(over_sockets=poll_wait.over_sockets) + GRACE_S < poll_wait.until:
            poll_wait.wake()

    # --- The work

    def _work(self, work: Callable[..., bool | None], *arguments: object, blocking: bool = True) -> bool | None:
        """Calls `work` with `_working` held; where another thread holds it, not at all unless `blocking`. An exception
        ends the client, as its state is unknown then. The lock is taken within the `try`, and to release it is the
        first call behind it: a signal's handler that raises, wherever it does, leaves it free. A thread that comes once
        everything is released works no more, and refuses what others have submitted meanwhile."""
        try:
            if not self._working.acquire(blocking):
                return None
            return True if self._is_released else work(*arguments)
        except BaseException as error:
            has_begun = self._working._is_owned()
            if has_begun:
                self._end(error)
            if has_begun and isinstance(error, Exception):
                return True  # Waiting callers get it from their futures.
            raise
        finally:
            try:  # noqa: SIM105  # no call may come before
                self._working.release()
            except RuntimeError:
                pass  # Another thread has it.
            if self._is_released:
                self._refuse_submitted()

    def _send(self) -> None:
        """Begins what was submitted, and sends at most `BURST_BYTES` of frames; all of them if the last call pulls, as
        its values wait for them. Using a socket can clear its descriptor, so a thread that sleeps on it is woken."""
        sockets = self._sockets
        now = self._begun_at = time.monotonic()
        submitted = sockets.submitted
        sends_all = self.waited_for is not None or (submitted and submitted[-1].reads)
        sockets.begin(now)
        sockets.send(now, math.inf if sends_all else BURST_BYTES)
        for poll_wait in (self._leader_wait, self._thread_wait):
            if poll_wait.is_asleep and poll_wait.over_sockets and sockets.unread():
                poll_wait.wake()

    def _round(
        self,
        poll_wait: PollWait,
        readable: Readable | None,
        future: StoreFuture[Any] | None = None,
        until: float = math.inf,
    ) -> bool:
        """Begins what was submitted, reads messages, ends futures, then sends; sees to it that the thread sleeps until
        there is more to do, or until that time. Whether the leader's `future` has ended, or the client ends.

        It sends last, so that urgent slices go first and other callers can return. A leader whose future has ended
        sends nothing if no other operation is open: its next call, or the client's thread, acknowledges what was read.
        Without `readable` it reads nothing, but what it has begun may have brought.
        """
        sockets, core = self._sockets, self._sockets.core
        if readable is not None or sockets.submitted or sockets.has_more:
            now = time.monotonic()
            if sockets.submitted:
                sockets.begin(now)
            sockets.receive(readable or {}, now)
            if core.outcomes:
                core.end_futures()
            is_over = future is not None and future.has_ended
            if not is_over or core.open or core.acknowledges_at_once or sockets.submitted:
                sockets.advance(time.monotonic())
                if core.outcomes:
                    core.end_futures()
        if self._failure is not None or (future is not None and future.has_ended):
            return True
        # Before `_working` is released, so that whoever works next knows that this thread sleeps.
        poll_wait.prepare(min(core.tick_at, until), over_sockets=True)
        if core.outcomes or sockets.submitted or sockets.unread():
            poll_wait.is_asleep = False
        return False

    # --- The end

    def _end(self, failure: BaseException) -> None:
        """Has the client's thread release everything. The first failure is the reason that is reported."""
        if self._failure is None:
            self._failure = failure
        self._leader_wait.wake()
        self._thread_wait.wake()

    def _refuse_submitted(self) -> None:
        """Fails what was submitted to a client that ends. Where another thread works, that one does it afterwards, or
        the client's thread."""
        sockets = self._sockets
        while sockets.submitted and self._working.acquire(blocking=False):
            try:
                sockets.refuse_submitted(str(self.end_reason()))
                sockets.core.end_futures()
            finally:
                self._working.release()

    def _release(self) -> None:
        sockets = self._sockets
        try:
            with self._working:
                try:
                    if isinstance(self._failure, StoreClosedError):
                        now = time.monotonic()
                        sockets.begin(now)
                        sockets.send(now)
                finally:  # Whatever fails, nobody waits for ever.
                    try:
                        sockets.close(str(self.end_reason()))
                    finally:
                        self._is_released = True
                        sockets.core.end_futures()
        finally:
            self._refuse_submitted()  # Operations that were submitted meanwhile.
