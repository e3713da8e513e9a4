"""Names of CPython and pyzmq that are not public and that the store uses: each does what the store takes it to do. A
release without one of them fails here, by that name, before it fails elsewhere in ways that are harder to read."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # as in client/poller.py
import signal
import threading
from concurrent.futures import Future, wait

import pytest
import zmq

from weft_kvstore import futures
from weft_kvstore.futures import StoreFuture


def test_a_plain_future_has_the_fields_that_a_store_future_has_or_makes_late() -> None:
    late = {"_condition", "_waiters", "_done_callbacks"}
    of_plain = set(vars(Future()))
    assert of_plain == late | {"_state", "_result", "_exception"}
    made: StoreFuture[int] = StoreFuture()
    assert all(hasattr(made, name) for name in of_plain)
    assert late <= set(vars(made))


def test_the_states_of_a_future_have_their_names() -> None:
    plain: Future[int] = Future()
    plain.set_running_or_notify_cancel()
    assert plain._state == futures._RUNNING
    plain.set_result(1)
    assert plain._state == futures._FINISHED
    assert (plain._result, plain._exception) == (1, None)


def test_invoke_callbacks_calls_them_in_their_order() -> None:
    called: list[int] = []
    plain: Future[int] = Future()
    for number in range(3):
        plain.add_done_callback(lambda _, number=number: called.append(number))  # type: ignore[misc]  # its own number
    plain._invoke_callbacks()  # type: ignore[attr-defined]
    assert called == [0, 1, 2]


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_for_several_futures_is_among_the_waiters_and_hears_of_a_result_and_of_an_error(
    *, fails: bool
) -> None:
    made: StoreFuture[int] = StoreFuture()
    waiting = threading.Thread(target=wait, args=([made],))
    waiting.start()
    while not made._waiters:
        waiting.join(0.001)
    (waiter,) = made._waiters
    assert callable(waiter.add_result)
    assert callable(waiter.add_exception)
    made.set_exception(ValueError()) if fails else made.set_result(1)
    waiting.join()
    assert waiter.finished_futures == [made]


def test_is_owned_of_a_reentrant_lock_says_whether_this_thread_holds_it() -> None:
    lock = threading.RLock()
    found: list[bool] = [lock._is_owned()]  # type: ignore[attr-defined]
    with lock:
        found.append(lock._is_owned())  # type: ignore[attr-defined]
        other = threading.Thread(target=lambda: found.append(lock._is_owned()))  # type: ignore[attr-defined]
        other.start()
        other.join()
    assert found == [False, True, False]


def test_the_module_behind_signal_sets_and_gives_handlers() -> None:
    def handler(*_: object) -> None:
        """None that is called."""

    before = signal.getsignal(signal.SIGUSR1)
    _signal.signal(int(signal.SIGUSR1), handler)
    try:
        assert _signal.getsignal(int(signal.SIGUSR1)) is signal.getsignal(signal.SIGUSR1) is handler
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("copy", [False, True])
def test_the_send_behind_that_of_a_socket_takes_bytes_flags_and_whether_it_copies(*, copy: bool) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://here")
        other.connect("inproc://here")
        send = super(zmq.Socket, one).send
        send(b"head", int(zmq.NOBLOCK | zmq.SNDMORE), True)
        send(memoryview(bytes(1 << 20)), int(zmq.NOBLOCK), copy)
        assert [len(part) for part in other.recv_multipart()] == [4, 1 << 20]
