"""Whose thread polls the sockets: one caller that waits leads, the others follow and are woken; Ctrl-C meanwhile."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of handlers, which takes ten times as long
import contextlib
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any, Final

from weft_kvstore.client.calls import end_futures
from weft_kvstore.client.operation import Operation
from weft_kvstore.client.sockets import ClientSockets, Readable
from weft_kvstore.errors import StoreError
from weft_kvstore.futures import StoreFuture
from weft_kvstore.process import OwnProcess, Wakeup

# --- Ctrl-C, kept back while the main thread is in the middle of something --------------------------------------------


MAIN: Final = threading.main_thread().ident
"""Where Python calls the handlers of signals."""


_INTERRUPT: Final = int(SIGINT)


class Interrupts:
    """While it is entered, the handler that SIGINT has in Python is called only during `sleep`, and else at the end. It
    may raise, as CPython's own does. For the main thread alone; where one is entered within another, the outer one's
    end is the end, and its `sleep` that of both.

    It takes the handler's place meanwhile, and leaves alone what is no handler of Python's.
    """

    are_held = False
    """Whether the main thread is in the middle of something, and does not sleep."""

    may_come = False
    _handler: Callable[[int, FrameType | None], Any] | None = None
    _came = False
    _outer = False

    def __enter__(self) -> Interrupts:
        handler = _signal.getsignal(_INTERRUPT)
        if callable(handler):
            self._handler = handler
            _signal.signal(_INTERRUPT, self._hear)
        self._outer = Interrupts.are_held
        Interrupts.are_held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Interrupts.are_held = self._outer
        self.may_come = False
        handler, self._handler = self._handler, None
        if handler is not None:
            _signal.signal(_INTERRUPT, handler)
            if self._came:
                handler(_INTERRUPT, None)

    def sleep(self, sleep: Callable[..., object], *arguments: object) -> None:
        """Calls it, and lets interrupts through meanwhile."""
        self.may_come = True
        Interrupts.are_held = self._outer
        try:
            if self._came and self._handler is not None:
                self._came = False
                self._handler(_INTERRUPT, None)
            sleep(*arguments)
        finally:
            Interrupts.are_held = True
            self.may_come = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.may_come and self._handler is not None:
            self._handler(number, frame)
        else:
            self._came = True


_OTHER_THREAD: Final = contextlib.nullcontext()


def uninterrupted() -> contextlib.AbstractContextManager[object]:
    """Keeps Ctrl-C back from what this thread does within it, which waits for nothing."""
    return Interrupts() if threading.get_ident() == MAIN and not Interrupts.are_held else _OTHER_THREAD


# --- Callers that wait for a future each while another caller leads the client's work ---------------------------------


class Followers:
    """Any thread follows, and any wakes the first: in the order in which they came. Each sleeps over its future's own
    condition, so that the future's end wakes it too."""

    def __init__(self) -> None:
        self.futures: list[StoreFuture[Any]] = []

    def follow(
        self, future: StoreFuture[Any], until: float, is_led: Callable[[], bool], interrupts: Interrupts | None
    ) -> None:
        """Waits until it is done, or nobody leads any more. `is_led` is asked where whoever stops leading wakes this
        one afterwards, so that one of both sees the other."""

        def wait() -> None:
            with future._condition:
                if not future.has_ended and is_led():
                    left_s = min(until - time.monotonic(), threading.TIMEOUT_MAX)
                    future._condition.wait(max(left_s, 0.0))

        self.futures.append(future)
        try:
            if interrupts is None:
                wait()
            else:
                interrupts.sleep(wait)
        finally:
            self.futures.remove(future)

    def wake_first(self) -> None:
        """The first whose future has not ended may lead now."""
        for other in self.futures.copy():
            if not other.has_ended:
                with other._condition:
                    other._condition.notify_all()
                break


# --- Sleeps over a client's sockets, and is woken by whoever has something for it -------------------------------------


LONGEST_SLEEP_S: Final = 60.0


class PollWait:
    """One thread at a time sleeps by it; any may call `wake`.

    Who is about to sleep says so by `lie_down`, then looks whether there is something to do, and sleeps if not; who has
    something for it first puts it there, then calls `wake`: one of both sees the other. `news` is what the sockets had
    when it woke, None where its thread has just begun to lead. `is_asleep`: it sleeps, or is about to; who does not
    after all clears it. `over_sockets`: whether they can wake it; `until` is when it wakes by itself.
    """

    def __init__(self, sockets: ClientSockets) -> None:
        self.is_asleep = False
        self.over_sockets = False
        self.until = 0.0
        self.news: Readable | None = {}
        self._sockets = sockets
        self._wakeup = Wakeup()
        self._wakeup_fd = self._wakeup.fileno()
        self._alone = select.poll()
        self._alone.register(self._wakeup_fd, select.POLLIN)
        self._poll = self._alone
        self._changes = -1

    def lie_down(self, until: float, *, over_sockets: bool) -> None:
        """Over the sockets only while nobody changes them."""
        if over_sockets and self._changes != self._sockets.changes:
            self._changes = self._sockets.changes
            self._poll = self._sockets.watch(self._wakeup_fd)
        self.news = {}
        self.until = until
        self.over_sockets = over_sockets
        self.is_asleep = True

    def sleep(self, until: float) -> bool:
        """Until there is something, or the time has come, or that of `lie_down`. Whether there was something."""
        left_s = min(max(min(until, self.until) - time.monotonic(), 0.0), LONGEST_SLEEP_S)
        poll = self._poll if self.over_sockets else self._alone
        self.news = dict(poll.poll(math.ceil(left_s * 1000)))
        self.is_asleep = False
        if self._wakeup_fd in self.news:
            self._wakeup.clear()
        return bool(self.news)

    def wake(self) -> None:
        """Wakes it, if it sleeps."""
        if self.is_asleep:
            self.is_asleep = False
            self._wakeup.wake()

    def close(self) -> None:
        self._wakeup.close()


# --- How long a client's own thread keeps away from the work, as callers lead it or not -------------------------------


GRACE_S: Final = 0.002
"""How long an answer may be left alone before the thread looks for it, where a caller has led lately."""

LOOKS: Final = 50
"""Looks of the thread, `GRACE_S` apart, that find nobody who leads and nothing under way, before it leads again."""

LONGEST_PAUSE_S: Final = 60.0
"""Between two looks at a caller that leads and does not leave."""


class SparePoller:
    """`leads` counts the times that a caller has led: where it has changed, one has led since the last look. `looks`
    counts the looks since then that found nothing to do; from `LOOKS` on the thread leads by itself."""

    __slots__ = ("_pause_s", "_seen", "looks")

    def __init__(self) -> None:
        self.looks = LOOKS
        self._seen = 0
        self._pause_s = GRACE_S

    def pause_s(self, leads: int, *, is_led: bool, is_due: bool, is_open: bool = False, batch_s: float = 0.0) -> float:
        """How long the thread has nothing to do; 0 where it is to lead. `is_open`: an answer may come that nobody waits
        for. `batch_s`: how long operations may still be submitted that are begun together."""
        has_led, self._seen = leads != self._seen, leads
        if is_led:  # Beside one leader pauses double.
            self.looks, self._pause_s = 0, GRACE_S if has_led else min(2 * self._pause_s, LONGEST_PAUSE_S)
            return self._pause_s
        self._pause_s = GRACE_S
        if is_due:
            return 0.0
        if has_led:  # It will lead again, most probably.
            self.looks = 0
            return GRACE_S
        if batch_s > 0:
            return batch_s
        if self.looks < LOOKS and not is_open:
            self.looks += 1
            return GRACE_S
        return 0.0

    def woken(self, leads: int) -> None:
        """Somebody has left work behind: the thread is to lead."""
        self.looks = LOOKS
        self._seen = leads


# ----------------------------------------------------------------------------------------------------------------------
# Which of a client's threads works on its core and sockets: whoever waits for a future, else a thread of its own.
#
# For a small round trip, threads that take turns cost more than the work. So a call begins and sends its operation by
# itself, and who waits for a result reads and goes on until it is there.
#
# Lock       | Held                                                                | By
# -----------|---------------------------------------------------------------------|-------------------------------
# `_leading` | while a caller waits and works, also asleep                         | one caller, the leader
# `_working` | while anything is done to core or sockets; never asleep             | a leader, a call, the thread
# `_lock`    | for a moment: to hand something over                                | anybody
#
# The thread leads while no caller does. Where one has led in the last moments it stands by, and looks again after
# `GRACE_S`: a program that calls and waits in a loop never wakes it. Who leaves work behind that cannot wait so long
# wakes it; who leaves others that wait wakes the first of them.
#
# Nothing is left half done. Ctrl-C is kept back during the work (`Interrupts`), and comes where a caller sleeps.
# Anything else that is raised in the middle of the work from outside it (by another signal's handler, or by another
# thread) ends the client, as the work's own errors do: its futures fail, and say so.


CALLS_BEGIN: Final = 4
"""Operations that are under way at most where each call begins its own, but for a small push. Who has more waits for
none of them yet, and what is begun together shares its messages."""

BATCH: Final = 16
"""Operations that are begun together, at most."""

BURST_BYTES: Final = 2 << 20
"""Bytes of frames that a call sends to each shard by itself. The rest leaves with the next call, or soon by itself: a
pull that is made after a large push then reaches the shard while it is on its way, and values come back meanwhile."""

BATCH_S: Final = 0.001
"""Within so long after a call has begun operations, the next ones may wait for one another. Who calls less often never
waits."""


class Poller:
    """Leads a client's work. `submit`, `drive` and `close` are called from any thread of the process; `name` is that
    of the one it has.

    Invariants: `_leader` is used by whoever has `_leading`, `_own` by the client's thread; anybody wakes them.
    `waited_for` is the leader's future, None once it has ended, and while nobody leads. `_to_call_back` are futures
    that have ended and whose callbacks the thread has not called. `_closing` is set once and for all, with why in
    `_failure` where it is no call of `close`; `_gone` when everything is released: from then on whoever ends a future
    calls back.
    """

    def __init__(self, sockets: ClientSockets, name: str) -> None:
        self._sockets = sockets
        self._process = OwnProcess()
        self._leading = threading.Lock()
        self._working = threading.Lock()
        self._worker: int | None = None
        """The thread that has `_working`."""
        self._waiters: set[int] = set()
        """The threads that lead, or are about to find out whether they do."""
        self._lock = threading.RLock()  # A signal's handler may call while its own thread holds it.
        self._closing = False
        self._gone = False
        self._failure: BaseException | None = None
        self._to_call_back: deque[StoreFuture[Any]] = deque()
        self._followers = Followers()
        self.waited_for: StoreFuture[Any] | None = None
        self._leads = 0
        """Times that a caller has led."""
        self._begun_at = -math.inf
        """When a call has begun operations last."""
        self._leader = PollWait(sockets)
        self._own = PollWait(sockets)
        self._spare_poller = SparePoller()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, operation: Operation) -> None:
        """Takes an operation; where little is under way it begins on this thread. Ends no future but that of the
        operation, once the client is closed."""
        with self._lock:
            is_closed = self._closing
            if not is_closed:
                self._sockets.submitted.append(operation)
        if is_closed:
            told = f"{self._sockets.told(operation)}: the store was closed"
            operation.future.set_exception(StoreError(told))
        elif (
            (operation.may_wait or len(self._sockets.core.open) >= CALLS_BEGIN)
            and self._batch_s() > 0
            and len(self._sockets.submitted) < BATCH
        ):
            self._leave()
        elif Interrupts.are_held or threading.get_ident() != MAIN or self._worker == MAIN:
            self._begin()
        else:
            with Interrupts():
                self._begin()

    def drive(self, future: StoreFuture[Any], timeout_s: float | None) -> None:
        """Returns when the future has ended, or after that long. Raises StoreError in a forked child, and where a
        finalizer or a signal's handler waits in the middle of the work, or of a wait that leads: nobody else would."""
        if timeout_s is not None and timeout_s <= 0:
            return
        if os.getpid() != self._process.number:
            self._process.check()
        thread = threading.get_ident()
        if self._worker == thread or thread in self._waiters:
            raise StoreError("in the middle of the store's own work nobody can wait for a result of it")
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        if thread != MAIN:
            self._drive(future, until, None)
        else:
            with Interrupts() as interrupts:
                self._drive(future, until, interrupts)

    def ended(self, future: StoreFuture[Any]) -> None:
        """It has ended, on this thread."""
        if self.waited_for is future:
            self.waited_for = None
            if self._worker != threading.get_ident():
                self._leader.wake()
        if not future._done_callbacks:
            return
        with self._lock:
            here = self._gone
            if not here:
                self._to_call_back.append(future)
        if here:
            future.call_back()
        else:
            self._own.wake()

    def close(self) -> None:
        """Fails what is open, and returns once everything is released; at once in the middle of the work."""
        self._end(None)
        if threading.get_ident() not in {self._thread.ident, self._worker}:
            self._thread.join()

    def _begin(self) -> None:
        """Begins what was submitted, unless another thread works: that will."""
        if not self._working.acquire(blocking=False):
            self._rouse()
            return
        leader, own = self._leader, self._own
        now = self._begun_at = time.monotonic()
        # A call that asks for values sends all: nothing has to get ahead of its bytes.
        most = math.inf if self._sockets.submitted and self._sockets.submitted[-1].asks_of else BURST_BYTES
        if leader.is_asleep and leader.over_sockets:
            self._work(self._send)
        elif own.is_asleep and own.over_sockets:
            self._work(self._send, most)
        else:
            self._work(self._sockets.send, now, most)
        self._pass_on()

    def _send(self, most: float = math.inf) -> None:
        """Sends; who sleeps over the sockets may not hear of what comes meanwhile."""
        sockets = self._sockets
        sockets.send(time.monotonic(), most)
        for poll_wait in (self._leader, self._own):
            watches = poll_wait.is_asleep and poll_wait.over_sockets
            if watches and (sockets.unread() or sockets.core.tick_at < poll_wait.until):
                poll_wait.wake()

    def _rouse(self) -> None:
        """Somebody has to look at once. Who is not asleep looks before it sleeps, or when it leaves."""
        sleeper = self._leader if self._leading.locked() else self._own
        if sleeper.is_asleep:
            sleeper.wake()

    def _batch_s(self) -> float:
        """How long what was submitted, or not sent yet, may wait for what comes next, to be begun with it."""
        return self._begun_at + BATCH_S - time.monotonic()

    def _leave(self) -> None:
        """What was submitted is begun by a later call, or by the thread when its time is over."""
        own = self._own
        if own.over_sockets or self._leading.locked():
            self._rouse()
        elif own.until > time.monotonic() + 2 * BATCH_S:
            own.wake()

    def _pass_on(self) -> None:
        """What is left is somebody else's: at once where it is due, else soon, for something may be under way, or
        receipts owed."""
        own = self._own
        if self._sockets.is_due:
            self._rouse()
        elif self._sockets.has_more:
            self._leave()
        elif not own.over_sockets and own.until > time.monotonic() + 2 * GRACE_S and not self._leading.locked():
            own.wake()

    def _work(self, work: Callable[..., object], *arguments: object) -> object:
        """Works, lets go of `_working`, and returns what the work returns. What fails in the middle ends the client:
        nobody knows what was done."""
        self._worker = threading.get_ident()
        try:
            return work(*arguments)
        except Exception as error:  # noqa: BLE001  # the work's outermost frame: whoever waits has to hear of it
            self._end(error)
            return None
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._worker = None
            self._working.release()

    def _round(self, poll_wait: PollWait, future: StoreFuture[Any] | None) -> bool:
        """Reads what came, then sends, so what is urgent overtakes. Futures end before anything is sent: who waits for
        one goes on meanwhile; and who has nothing else under way leaves receipts to his next call, or to the thread,
        unless they are wanted at once.
        `future` is the leader's: once it has ended there is nothing more to do for him. A leader who has just begun
        looks only whether he may sleep, since his call has sent already. Whether he is through, or the client is
        closing."""
        sockets, core = self._sockets, self._sockets.core
        news = poll_wait.news
        if news is not None or sockets.submitted or sockets.has_more:
            sockets.receive(news or {})
            if core.outcomes:
                end_futures(core)
            if (
                core.open
                or core.hurries
                or sockets.submitted
                or not (self._closing or (future is not None and self.waited_for is None))
            ):
                sockets.go_on(time.monotonic())
                if core.outcomes:
                    end_futures(core)
        if self._closing or (future is not None and self.waited_for is None):
            return True
        # Said before `_working` is let go of: whoever works after this knows that somebody sleeps.
        poll_wait.lie_down(core.tick_at, over_sockets=True)
        if sockets.submitted or core.outcomes or self._to_call_back or sockets.unread():
            poll_wait.is_asleep = False
        return False

    def _drive(self, future: StoreFuture[Any], until: float, interrupts: Interrupts | None) -> None:
        thread = threading.get_ident()
        while True:
            try:
                self._waiters.add(thread)
                leads = not self._closing and self._leading.acquire(blocking=False)
                if leads:
                    self._lead(future, until, interrupts)
            finally:
                self._waiters.discard(thread)
            if not leads:
                self._followers.follow(future, until, self._is_led, interrupts)
            if future.has_ended or (until != math.inf and time.monotonic() >= until):
                return

    def _lead(self, future: StoreFuture[Any], until: float, interrupts: Interrupts | None) -> None:
        """With `_leading` held: works until it is done, or there is no time left, and hands on."""
        leader = self._leader
        leader.news = None
        try:
            self.waited_for = future
            if future.has_ended:
                return
            while True:
                self._working.acquire()
                if self._work(self._round, leader, future) or self._closing:
                    return
                if leader.is_asleep:
                    if self._sockets.submitted:
                        leader.is_asleep = False
                        continue
                    if interrupts is None:
                        leader.sleep(until)
                    else:
                        interrupts.sleep(leader.sleep, until)
                    if self._closing or time.monotonic() >= until:
                        return
        finally:
            self.waited_for = None
            leader.is_asleep = False
            self._leads += 1
            self._leading.release()
            self._hand_on()

    def _hand_on(self) -> None:
        """What others wait for, or what is under way, is somebody else's now."""
        followers, own = self._followers, self._own
        if followers.futures:
            followers.wake_first()
        if own.is_asleep and own.over_sockets:
            self._rouse()
        else:
            self._pass_on()

    def _is_led(self) -> bool:
        """Whether somebody brings futures to their end: a leader, or the thread that fails them all."""
        return self._closing or self._leading.locked()

    def _run(self) -> None:
        """The thread's work."""
        try:
            while not self._closing:
                self._call_back()
                is_led = self._leading.locked()
                pause_s = self._pause(is_led=is_led)
                if pause_s:
                    self._stand_by(pause_s, is_led=is_led)
                else:
                    self._lead_alone()
        except BaseException as error:
            self._end(error)
            raise
        finally:
            self._release()
        if self._failure is not None:
            raise self._failure

    def _call_back(self) -> None:
        """Callbacks are the user's: they run here, and nothing is held meanwhile."""
        while self._to_call_back:
            self._to_call_back.popleft().call_back()

    def _pause(self, *, is_led: bool) -> float:
        """How long the thread has nothing to do; 0 where it is to lead. `is_led`: a caller led a moment ago."""
        sockets = self._sockets
        # While a caller is at work, who takes the interpreter from him delays him and himself.
        is_held = not is_led and sockets.is_held
        batch_s = 0.0 if is_led or is_held else self._batch_s()
        if batch_s > 0 and (sockets.submitted or sockets.has_more):
            return batch_s
        is_due, is_open = is_held or bool(sockets.submitted) or sockets.has_more, bool(sockets.core.open)
        spare = self._spare_poller
        pause_s = spare.pause_s(self._leads, is_led=is_led, is_due=is_due, is_open=is_open, batch_s=batch_s)
        # Callers do other things: receipts do not wait for them.
        if pause_s and spare.looks and batch_s <= 0 and sockets.owes_receipts and self._working.acquire(blocking=False):
            self._work(self._send)
        return pause_s

    def _stand_by(self, pause_s: float, *, is_led: bool) -> None:
        """`is_led` is what `pause_s` was chosen by: who has left since has found nobody asleep."""
        own = self._own
        own.lie_down(time.monotonic() + pause_s, over_sockets=False)
        # A leader that leaves looks here afterwards, so one of both sees the other.
        is_over = is_led and not self._leading.locked()
        is_due = self._sockets.is_due or self._sockets.has_more
        if is_over or self._closing or self._to_call_back or (not is_led and pause_s > BATCH_S and is_due):
            own.is_asleep = False
        elif own.sleep(math.inf) and self._batch_s() <= 0:
            self._spare_poller.woken(self._leads)

    def _lead_alone(self) -> None:
        own = self._own

        def work() -> None:
            self._round(own, None)
            if self._leader.is_asleep:  # A caller has begun to lead meanwhile: what is new is not what it knows.
                self._leader.wake()

        self._working.acquire()
        self._work(work)
        if own.is_asleep:
            if self._sockets.submitted or self._to_call_back or self._closing or self._leading.locked():
                own.is_asleep = False
            else:
                own.sleep(math.inf)

    def _end(self, failure: BaseException | None) -> None:
        """The thread is to release everything. The first who says so says why."""
        with self._lock:
            if not self._closing:
                self._failure = failure
            self._closing = True
        self._leader.wake()
        self._own.wake()

    def _release(self) -> None:
        failure = self._failure
        reason = "the store was closed"
        if failure is not None:
            reason = f"the store's thread failed: {type(failure).__name__}: {failure}"
        self._working.acquire()
        try:
            if failure is None:
                self._sockets.send(time.monotonic())
            # Futures first: whatever fails after this, nobody waits for ever.
            self._sockets.close(reason)
            end_futures(self._sockets.core)
            self._call_back()
            self._sockets.release()
        finally:
            self._working.release()
            with self._lock:
                self._gone = True
            self._call_back()
            with self._leading:  # Who leads has been woken, and goes.
                self._leader.close()
            self._own.close()
