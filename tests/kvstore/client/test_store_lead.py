"""Who works for a client: callers that wait, its own thread, and what becomes of it when they are interrupted."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import zmq

from same_host_children import wait_until
from store_cluster import WAIT_S, NamedClient, clients_of, key_of, served, store_of
from weft_kvstore.client.operation import KeyOperation, Operation
from weft_kvstore.client.poller import BATCH, BURST_BYTES, EAGER_CALLS, Interrupts, uninterrupted
from weft_kvstore.errors import StoreClosedError, StoreError
from weft_kvstore.futures import StoreFuture, joined, on_end, then
from weft_kvstore.settings import LinkSettings

KEYS = ["k0", "k1", "k2", "k3"]
GRADIENT = np.ones(8, np.float32)


@contextmanager
def two_slots() -> Iterator[list[NamedClient]]:
    """Clients of both slots of a sync store: what one pulls at version 1 comes once the other one has pushed."""
    description = store_of([key_of(name, [8], 2) for name in KEYS], slots=2, shards=2)
    with served(description) as (description, _), clients_of(description, LinkSettings()) as clients:
        for client in clients:
            client.pull(KEYS, 0).result(WAIT_S)
        yield clients


@contextmanager
def without_thread(client: NamedClient) -> Iterator[None]:
    """Meanwhile the client's own thread does nothing: it sleeps."""
    held, go_on, own = threading.Event(), threading.Event(), client._poller._thread_wait

    def hold() -> None:
        held.set()
        go_on.wait(WAIT_S)

    client.pull("k0", 0).result(WAIT_S)
    with patch.object(own, "sleep", hold):
        while not held.wait(0.01):
            own.wake()
        try:
            yield
        finally:
            go_on.set()


def is_led(client: NamedClient) -> bool:
    """Whether a caller leads, and sleeps."""
    return client._poller.waited_for is not None and client._poller._leader_wait.is_asleep


def has_come(client: NamedClient) -> bool:
    """Whether a shard's message waits to be read."""
    links = client._sockets._sockets.values()
    return any(int(link.socket.get(zmq.EVENTS)) & zmq.POLLIN for link in links)


def meanwhile(client: NamedClient, act: Callable[[], object]) -> threading.Thread:
    """Acts as soon as a caller leads."""

    def run() -> None:
        wait_until(lambda: is_led(client))
        act()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_who_waits_ends_the_future() -> None:
    with two_slots() as (one, other):
        pushed, pulled = one.push("k0", 0, GRADIENT), one.pull("k0", 1)
        ended: list[int] = []
        on_end(pulled, lambda _: ended.append(threading.get_ident()))
        thread = meanwhile(one, lambda: other.push("k0", 0, GRADIENT))
        pulled.result(WAIT_S)
        pushed.result(WAIT_S)
        thread.join()
        assert ended == [threading.get_ident()]


def test_callers_alone_push_and_pull() -> None:
    with two_slots() as (one, other), without_thread(one), without_thread(other):
        for step in range(20):
            pushes = [client.push("k1", step, GRADIENT) for client in (one, other)]
            pulls = [client.pull("k1", step + 1) for client in (one, other)]
            for pull, push in zip(pulls, pushes, strict=True):
                assert pull.result(WAIT_S).shape == (8,)
                push.result(WAIT_S)


def test_many_operations_at_once_go_without_the_thread_too() -> None:
    with two_slots() as (one, other), without_thread(one), without_thread(other):
        for client in (one, other):
            for push in [client.push(name, 0, GRADIENT) for name in KEYS]:
                push.result(WAIT_S)
        assert len([pull.result(WAIT_S) for pull in [one.pull(name, 1) for name in KEYS * 4]]) == 16


def test_a_joined_future_leads() -> None:
    with two_slots() as (one, other), without_thread(one):
        other.push(KEYS, 0, [GRADIENT] * 4).result(WAIT_S)
        both = joined([one.pull("k2", 1), one.push("k2", 0, GRADIENT)], lambda parts: parts[0])
        assert both.result(WAIT_S).shape == (8,)
        later = then(one.pull("k3", 0), lambda _: one.push("k3", 0, GRADIENT))
        assert later.exception(WAIT_S) is None


def test_a_leader_that_waits_for_what_another_thread_ends_hears_of_it() -> None:
    with two_slots() as (one, _), without_thread(one):
        device: Future[int] = Future()
        both = joined([one.pull("k0", 0), device], lambda parts: int(parts[1]))
        thread = meanwhile(one, lambda: device.set_result(7))
        assert both.result(WAIT_S) == 7
        thread.join()


def test_the_next_who_waits_leads_when_the_first_has_what_it_wants() -> None:
    with two_slots() as (one, other), without_thread(one), ThreadPoolExecutor(4) as pool:
        one.push(KEYS, 0, [GRADIENT] * 4).result(WAIT_S)
        waits = {name: pool.submit(one.pull(name, 1).result, WAIT_S) for name in KEYS}
        wait_until(lambda: is_led(one) and len(one._poller._followers) == 3)
        for name in KEYS:
            other.push(name, 0, GRADIENT).result(WAIT_S)
            assert waits[name].result(WAIT_S).shape == (8,)
            del waits[name]
            assert not any(wait.done() for wait in waits.values())


@pytest.mark.parametrize("lately", [False, True])
def test_what_nobody_waits_for_ends_all_the_same(lately: bool) -> None:
    with two_slots() as (one, other):
        if lately:
            one.pull("k0", 0).result(WAIT_S)
        futures = [client.push(name, 0, GRADIENT) for client in (one, other) for name in KEYS]
        assert len(list(as_completed(futures, WAIT_S))) == 8

        async def pull() -> Any:
            return await asyncio.wait_for(asyncio.wrap_future(one.pull("k1", 1)), WAIT_S)

        assert asyncio.run(pull()).shape == (8,)


def test_what_comes_is_read_at_once_though_nobody_waits_for_it_and_nothing_is_due() -> None:
    description = store_of([key_of("k0", [8], 1)], slots=1, shards=1)
    with (
        served(description) as (description, _),
        clients_of(description, LinkSettings(request_timeout_s=1e6)) as (client,),
    ):
        client.pull("k0", 0).result(WAIT_S)
        wait_until(lambda: client._poller._thread_wait.is_asleep and client._poller._thread_wait.over_sockets)
        with client._poller._working:
            client._core.tick_at = math.inf
            pulled = client.pull("k0", 0)
            client._sockets.begin(0.0)
            client._sockets.send(0.0)
        assert next(as_completed([pulled], WAIT_S)) is pulled


def test_the_thread_leaves_the_sockets_to_a_caller_that_has_led_lately_and_works_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_slots() as (one, _):
        own = one._poller._thread_wait
        monkeypatch.setattr("weft_kvstore.client.poller.GRACE_S", 1e9)
        one.pull("k0", 0).result(WAIT_S)
        own.wake()
        wait_until(lambda: own.is_asleep and not own.over_sockets)
        monkeypatch.setattr("weft_kvstore.client.poller.GRACE_S", 0.0)
        own.wake()
        wait_until(lambda: own.is_asleep and own.over_sockets)


def test_the_thread_leaves_the_sockets_while_calls_follow_one_another_and_several_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_slots() as (one, _):
        own = one._poller._thread_wait
        monkeypatch.setattr("weft_kvstore.client.poller.GRACE_S", 0.0)
        monkeypatch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
        pulls = [one.pull("k0", 1) for _ in range(EAGER_CALLS - 1)]
        own.wake()
        wait_until(lambda: own.is_asleep and own.over_sockets)
        pulls.append(one.pull("k0", 1))
        own.wake()
        wait_until(lambda: own.is_asleep and not own.over_sockets)
        monkeypatch.setattr("weft_kvstore.client.poller.BATCH_S", 0.0)
        own.wake()
        wait_until(lambda: own.is_asleep and own.over_sockets)
        assert not any(pull.done() for pull in pulls)


def test_calls_that_follow_one_another_are_begun_together_and_the_last_of_them_by_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_slots() as (one, other):
        core, submitted = one._core, one._sockets.submitted
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        with without_thread(one), monkeypatch.context() as patch:
            patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
            pulls = [one.pull("k0", 1) for _ in range(EAGER_CALLS + BATCH - 1)]
            assert (len(core.open), len(submitted)) == (EAGER_CALLS, BATCH - 1)
            pulls.append(one.pull("k0", 1))
            assert (len(core.open), len(submitted)) == (EAGER_CALLS + BATCH, 0)
            pulls += [one.pull("k0", 1) for _ in range(3)]
            assert len(submitted) == 3
        wait_until(lambda: not submitted)
        assert len(core.open) == len(pulls)
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        assert [pull.result(WAIT_S).shape for pull in pulls] == [(8,)] * len(pulls)


def test_of_small_pushes_that_are_made_at_the_same_moment_the_first_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may see the other's before it looks which is the first."""
    with two_slots() as (one, _), without_thread(one), monkeypatch.context() as patch:
        patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
        handed_over, both = Mock(), threading.Barrier(2)

        class Submitted(deque[Any]):
            def append(self, operation: Any) -> None:
                super().append(operation)
                both.wait(WAIT_S)

        patch.setattr(one._sockets, "submitted", Submitted())
        patch.setattr(one._poller, "_hand_over", handed_over)
        threads = [threading.Thread(target=one.push, args=(key, 0, GRADIENT)) for key in ("k0", "k1")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(one._sockets.submitted) == 2
        assert handed_over.call_count == 1


def test_a_small_push_travels_with_the_pull_that_follows_it_and_by_itself_where_none_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with two_slots() as (one, other):
        link = one._core.links[0]
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        with without_thread(one), monkeypatch.context() as patch:
            patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
            sent = link.sent
            push = one.push("k0", 1, GRADIENT)
            assert (link.sent, len(one._sockets.submitted)) == (sent, 1)
            pull = one.pull("k0", 1)
            assert (link.sent, len(one._sockets.submitted)) == (sent + 1, 0)
            assert (push.result(WAIT_S), pull.result(WAIT_S).shape) == (None, (8,))
            push = one.push("k0", 2, GRADIENT)
            assert len(one._sockets.submitted) == 1
            assert push.result(WAIT_S) is None, "who waits for it begins it"
            one.push("k0", 3, GRADIENT)
        wait_until(lambda: not one._sockets.submitted)


def test_of_small_pushes_that_threads_submit_at_once_the_first_has_them_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    class Submitted(deque[Operation]):
        def append(self, operation: Operation) -> None:
            super().append(operation)
            if len(self) == 1:
                thread = threading.Thread(target=one.push, args=("k1", 0, GRADIENT))
                thread.start()
                thread.join(WAIT_S)

    with two_slots() as (one, _), without_thread(one), monkeypatch.context() as patch:
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
        handed: list[int] = []
        patch.setattr(one._poller, "_hand_over", lambda: handed.append(len(one._sockets.submitted)))
        one._sockets.submitted = Submitted()
        one.push("k0", 1, GRADIENT)
        assert handed == [2]


def test_a_small_push_that_waits_is_sent_before_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_slots() as (one, other):
        other.push("k0", 0, GRADIENT)
        one.pull("k0", 0).result(WAIT_S)
        with monkeypatch.context() as patch:
            patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
            push = one.push("k0", 0, GRADIENT)
            assert len(one._sockets.submitted) == 1
            one.close()
        with pytest.raises(StoreError, match="the store was closed"):
            push.result(WAIT_S)
        assert other.pull("k0", 1).result(WAIT_S).shape == (8,)


def test_a_large_push_is_on_its_way_when_the_pull_behind_it_is_asked_for_and_leaves_by_itself_where_none_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    description = store_of([key_of("large", [4 * BURST_BYTES // 4], 1)], slots=1, shards=1)
    fixed = LinkSettings(credit_bytes=16 * BURST_BYTES, frame_bytes=16 * BURST_BYTES, same_host=False)
    with served(description) as (description, _), clients_of(description, fixed) as (client,):
        client.pull("large", 0).result(WAIT_S)
        link, gradient = client._core.links[0], np.ones(4 * BURST_BYTES // 4, np.float32)
        with monkeypatch.context() as patch:
            patch.setattr("weft_kvstore.client.poller.BATCH_S", 1e9)
            push = client.push("large", 0, gradient)
            assert (link.counts["payload_bytes_sent"], link.outbox.queued_bytes) == (BURST_BYTES, 3 * BURST_BYTES)
            pull = client.pull("large", 1)
            assert (link.counts["payload_bytes_sent"], link.outbox.queued_bytes) == (4 * BURST_BYTES, 0)
            assert link.requests, "the pull has left before the rest of the push"
            assert pull.result(WAIT_S).shape == gradient.shape
            push.result(WAIT_S)
            alone = client.push("large", 1, gradient)
            assert link.outbox.queued_bytes
        client._poller._thread_wait.wake()  # It may have seen the patched time.
        wait_until(lambda: not link.outbox.queued_bytes)
        alone.result(WAIT_S)


def test_beside_a_caller_that_leads_for_long_the_thread_sleeps_for_long_and_is_woken_when_that_leaves() -> None:
    with two_slots() as (one, other):
        own = one._poller._thread_wait
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        pulled = one.pull("k0", 1)

        def sleep_for_long() -> None:
            one._poller._led_at -= WAIT_S
            own.wake()
            wait_until(lambda: own.is_asleep and own.until > time.monotonic() + LinkSettings().ping_s / 2)
            assert not own.over_sockets
            other.push("k0", 0, GRADIENT)

        thread = meanwhile(one, sleep_for_long)
        pulled.result(WAIT_S)
        thread.join()
        wait_until(lambda: own.over_sockets)


def test_callbacks_run_on_a_thread_of_their_own_and_may_wait() -> None:
    with two_slots() as (one, other):
        told: list[Any] = []
        one.push("k0", 0, GRADIENT)
        pulled = one.pull("k0", 1)
        done = threading.Event()

        def back(_: Future[Any]) -> None:
            told.extend([threading.current_thread() in known, one.pull("k1", 0).result(WAIT_S).shape])
            done.set()

        pulled.add_done_callback(back)
        thread = meanwhile(one, lambda: other.push("k0", 0, GRADIENT))
        known = threading.enumerate()
        pulled.result(WAIT_S)
        assert done.wait(WAIT_S)
        thread.join()
        assert told == [False, (8,)]


def test_callbacks_wait_for_a_thread_if_the_process_may_have_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_slots() as (one, _):
        told: list[str] = []

        def call(key: str) -> None:
            pushed = one.push(key, 0, GRADIENT)
            pushed.add_done_callback(lambda _: told.append(key))
            pushed.result(WAIT_S)

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
            call("k0")
        call("k1")
        wait_until(lambda: told == ["k0", "k1"])


def test_a_callback_that_ends_its_thread_takes_no_other_along() -> None:
    with two_slots() as (one, _):
        told: list[str] = []
        with one._poller._working:  # All end together.
            calls = [one.push(key, 0, GRADIENT) for key in ("k0", "k1")]
            calls[0].add_done_callback(lambda _: sys.exit())
            calls[1].add_done_callback(lambda _: told.append("k1"))
        wait_until(lambda: told == ["k1"])


def test_the_clients_own_thread_works_while_a_callback_runs() -> None:
    """So it sends pings too, however long the callback takes."""
    with two_slots() as (one, _):
        may_end = threading.Event()
        first = one.push("k0", 0, GRADIENT)
        first.add_done_callback(lambda _: may_end.wait(WAIT_S))
        first.result(WAIT_S)
        second = one.push("k1", 0, GRADIENT)
        wait_until(second.done)
        may_end.set()


def test_callbacks_of_several_stores_may_each_close_all_of_them() -> None:
    with two_slots() as stores:
        start, closed = threading.Barrier(2), []

        def close(_: Future[Any]) -> None:
            start.wait(WAIT_S)
            for store in stores:
                store.close()
            closed.append(threading.get_ident())

        for store in stores:
            store.push("k0", 0, GRADIENT).add_done_callback(close)
        wait_until(lambda: len(closed) == 2)


def test_callbacks_of_what_a_close_fails_are_called() -> None:
    with two_slots() as (one, _):
        told: list[BaseException | None] = []
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        one.pull("k0", 1).add_done_callback(lambda future: told.append(future.exception()))
        one.close()
        wait_until(lambda: len(told) > 0)
        assert [str(error) for error in told] == ["slot 0: pull of key 'k0', version 1: the store was closed"]


def test_the_work_itself_cannot_wait() -> None:
    with two_slots() as (one, _):
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        never, told = one.pull("k0", 1), []

        def wait(_: Future[Any]) -> None:
            try:
                never.result(WAIT_S)
            except StoreError as error:
                told.append(str(error))

        with one._poller._working:  # It does not end before the hook is there.
            pulled = one.pull("k1", 0)
            on_end(pulled, wait)
        pulled.result(WAIT_S)
        assert len(told) == 1
        assert told[0].endswith("where it cannot wait for a result: wait once it has returned")


def test_a_wait_that_takes_too_long_ends_and_leaves_the_lead() -> None:
    with two_slots() as (one, other):
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        pulled = one.pull("k0", 1)
        for timeout_s in (0.0, 0.02):
            with pytest.raises(TimeoutError):
                pulled.result(timeout_s)
            with pytest.raises(TimeoutError):
                pulled.exception(timeout_s)
        assert one._poller.waited_for is None
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        assert pulled.result(WAIT_S).shape == (8,)


def test_who_follows_leaves_when_its_time_is_over_and_the_leader_stays() -> None:
    with two_slots() as (one, other), without_thread(one), ThreadPoolExecutor(1) as pool:
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        pulled, never = one.pull("k0", 1), one.pull("k1", 1)
        leading = pool.submit(pulled.result, WAIT_S)
        wait_until(lambda: is_led(one))
        with pytest.raises(TimeoutError):
            never.result(0.02)
        assert is_led(one)
        assert not one._poller._followers
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        assert leading.result(WAIT_S).shape == (8,)


def test_a_signals_handler_may_close_the_client_where_its_own_thread_leads() -> None:
    """Its close returns at once: the thread that it would wait for waits for the leader to leave."""
    with two_slots() as (one, _):
        before = signal.signal(signal.SIGUSR1, lambda *_: one.close())
        try:
            one.push("k0", 0, GRADIENT).result(WAIT_S)
            pulled = one.pull("k0", 1)
            thread = meanwhile(one, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            with pytest.raises(StoreError, match="the store was closed"):
                pulled.result(WAIT_S)
            thread.join()
        finally:
            signal.signal(signal.SIGUSR1, before)


def test_a_close_ends_the_wait_of_who_leads() -> None:
    with two_slots() as (one, _):
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        pulled = one.pull("k0", 1)
        thread = meanwhile(one, one.close)
        with pytest.raises(StoreError, match="the store was closed"):
            pulled.result(WAIT_S)
        thread.join()


def test_a_call_that_comes_while_another_one_finds_the_client_closed_ends() -> None:
    """The other has the lock, and the client's thread is gone: nobody else would end it."""
    with two_slots() as (client, _):
        poller = client._poller
        client.close()
        has_it, go_on, acquire = threading.Event(), threading.Event(), poller._working.acquire

        def slowly(blocking: bool = True) -> bool:
            taken = bool(acquire(blocking))
            if taken and threading.current_thread() is other:
                has_it.set()
                go_on.wait(WAIT_S)
            return taken

        other = threading.Thread(target=lambda: poller._work(poller._send))
        with patch.object(poller, "_working", Mock(wraps=poller._working, acquire=slowly)):
            other.start()
            assert has_it.wait(WAIT_S)
            pulled = client.pull("k0", 0)
            assert not pulled.done()
            go_on.set()
            other.join(WAIT_S)
        with pytest.raises(StoreClosedError, match="the store was closed"):
            pulled.result(WAIT_S)


def test_what_was_submitted_before_a_close_is_sent_though_another_call_comes_meanwhile() -> None:
    with two_slots() as (client, other):
        poller, go_on = client._poller, threading.Event()
        release = poller._release

        def late() -> None:
            go_on.wait(WAIT_S)
            release()

        with patch.object(poller, "_release", late):
            poller._begun_at = math.inf  # The push waits for the next call.
            pushed = client.push("k0", 0, GRADIENT)
            closer = threading.Thread(target=client.close)
            closer.start()
            wait_until(lambda: poller.end_reason() is not None)
            pulled = client.pull("k0", 0)
            assert not pushed.done()
            go_on.set()
            closer.join(WAIT_S)
        for one in (pushed, pulled):
            with pytest.raises(StoreClosedError, match="the store was closed"):
                one.result(WAIT_S)
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        assert other.pull("k0", 1).result(WAIT_S) is not None


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_wait_and_nothing_else() -> None:
    handler = signal.getsignal(signal.SIGINT)
    with two_slots() as (one, other):
        one.push("k0", 0, GRADIENT).result(WAIT_S)
        pulled = one.pull("k0", 1)
        thread = meanwhile(one, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            pulled.result(WAIT_S)
        thread.join()
        assert signal.getsignal(signal.SIGINT) is handler
        assert one._poller.waited_for is None
        other.push("k0", 0, GRADIENT).result(WAIT_S)
        assert pulled.result(WAIT_S).shape == (8,)


@pytest.mark.usefixtures("interruptible")
def test_a_handler_that_sets_another_in_its_place_is_followed_by_that() -> None:
    told: list[str] = []

    def second(*_: Any) -> None:
        told.append("second")

    def first(*_: Any) -> None:
        signal.signal(signal.SIGINT, second)
        told.append("first")

    before = signal.signal(signal.SIGINT, first)
    try:
        with two_slots() as (one, other):
            one.push("k0", 0, GRADIENT).result(WAIT_S)
            pulled = one.pull("k0", 1)

            def interrupt() -> None:
                os.kill(os.getpid(), signal.SIGINT)
                wait_until(lambda: bool(told))
                other.push("k0", 0, GRADIENT)

            thread = meanwhile(one, interrupt)
            pulled.result(WAIT_S)
            thread.join()
        assert signal.getsignal(signal.SIGINT) is second
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_comes_though_another_signals_handler_raised_before_interrupts_were_let_through_again() -> None:
    before, interrupts = signal.getsignal(signal.SIGINT), Interrupts()

    def broken_off() -> None:
        interrupts.__enter__()  # Nobody calls `__exit__`.

    broken_off()
    assert Interrupts.are_deferred
    with interrupts:
        assert Interrupts.are_deferred, "what was not left is entered again"
    assert (Interrupts.are_deferred, signal.getsignal(signal.SIGINT)) == (False, before)
    broken_off()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert (Interrupts.are_deferred, signal.getsignal(signal.SIGINT)) == (False, before)


@pytest.mark.usefixtures("interruptible")
def test_a_wait_lets_interrupts_through_again_that_another_signals_handler_has_left_kept_back() -> None:
    before = signal.getsignal(signal.SIGINT)

    def broken_off() -> None:
        uninterrupted().__enter__()  # Nobody calls `__exit__`.

    broken_off()
    assert not isinstance(uninterrupted(), Interrupts), "they seem to be kept back by a caller of this one"
    with uninterrupted(waits=True) as outer:
        assert isinstance(outer, Interrupts)
        with uninterrupted(waits=True) as inner:
            assert not isinstance(inner, Interrupts)
        assert Interrupts.are_deferred
    assert (Interrupts.are_deferred, signal.getsignal(signal.SIGINT)) == (False, before)


def test_a_child_that_a_thread_forks_has_its_own_main_thread_and_the_handler_of_sigint() -> None:
    """Also where the main thread of the parent has it kept back: nobody in the child would ever let it through."""
    codes: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Others warn of a fork among threads, which is what this is about.
            child = os.fork()
        if not child:
            is_right = Interrupts.thread == threading.get_ident() and not Interrupts.are_deferred
            os._exit(0 if is_right and signal.getsignal(signal.SIGINT) is before else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with Interrupts(), Interrupts():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert codes == [0]
    assert Interrupts.thread == threading.get_ident()


def test_a_signals_handler_cannot_wait_where_its_own_thread_leads() -> None:
    """Nobody else would lead: both would wait for ever. Its wait fails, that of its thread goes on."""
    told: list[str] = []
    with two_slots() as (one, other):

        def handle(*_: Any) -> None:
            try:
                one.pull("k1", 0).result(WAIT_S)
            except StoreError as error:
                told.append(str(error))

        def interrupt() -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(lambda: bool(told))
            other.push("k0", 0, GRADIENT)

        before = signal.signal(signal.SIGUSR1, handle)
        try:
            one.push("k0", 0, GRADIENT).result(WAIT_S)
            thread = meanwhile(one, interrupt)
            assert one.pull("k0", 1).result(WAIT_S).shape == (8,)
            thread.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(told) == 1
        assert told[0].endswith("where it cannot wait for a result: wait once it has returned")
        assert one.pull("k1", 0).result(WAIT_S).shape == (8,)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("what", ["begin", "receive"])
def test_ctrl_c_in_the_middle_of_the_work_comes_after_it(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with two_slots() as (one, other):
        other.push(KEYS, 0, [GRADIENT] * 4).result(WAIT_S)
        work, whole = getattr(one._core, what), []

        def interrupted(*given: Any) -> None:
            if threading.current_thread() is threading.main_thread() and not whole:
                signal.raise_signal(signal.SIGINT)
                work(*given)
                whole.append(True)
            else:
                work(*given)

        with without_thread(one):
            with monkeypatch.context() as patched:
                patched.setattr(one._core, what, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    one.push("k0", 0, GRADIENT).result(WAIT_S)
            assert whole == [True]
            assert one.pull("k0", 1).result(WAIT_S).shape == (8,)


def test_what_a_signals_handler_raises_as_the_work_begins_leaves_it_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python calls a handler right after a lock was taken."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    class Taken:
        def __init__(self, lock: Any) -> None:
            self._lock = lock

        def acquire(self, blocking: bool) -> bool:
            found: bool = self._lock.acquire(blocking)
            if threading.current_thread() is threading.main_thread():
                raise SystemExit(3)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._lock, name)

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *_: object) -> None:
            self._lock.release()

    with two_slots() as (one, _):
        poller = one._poller
        with without_thread(one):
            monkeypatch.setattr(poller, "_working", Taken(poller._working))
            with pytest.raises(SystemExit):
                one.pull("k0", 0)
            assert not poller._working._is_owned()
            (begun,) = one._sockets.submitted
        with pytest.raises(StoreClosedError, match="the store's thread failed: SystemExit: 3"):
            begun.future.result(WAIT_S)
        poller._thread.join(WAIT_S)
        assert one.end_reason() == "the store's thread failed: SystemExit: 3"


@pytest.mark.parametrize("where", ["prepare", "_start"])
def test_a_call_whose_begin_is_broken_off_ends_with_the_client(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    def ended(*_: object) -> None:
        raise SystemExit(3)

    with two_slots() as (one, _):
        with without_thread(one):
            with one._poller._working:
                pulled = one.pull("k0", 0)
            monkeypatch.setattr(KeyOperation if where == "prepare" else one._core, where, ended)
            with pytest.raises(SystemExit):
                pulled.result(WAIT_S)
        for call in (pulled, one.pull("k0", 0)):  # Also what is called later.
            with pytest.raises(StoreError, match="the store's thread failed: SystemExit: 3"):
                call.result(WAIT_S)


@pytest.mark.parametrize("where", [(KeyOperation, "result"), (StoreFuture, "end")])
def test_calls_whose_end_is_broken_off_end_with_the_client(
    where: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    of, name = where
    work, broken = getattr(of, name), []

    def ends_once(one: Any, *given: Any) -> Any:
        if threading.current_thread() is threading.main_thread() and not broken:
            broken.append(one)
            raise SystemExit(3)
        return work(one, *given)

    with two_slots() as (one, _):
        with without_thread(one):
            pulls = [one.pull(KEYS, 0) for _ in range(8)]
            monkeypatch.setattr(of, name, ends_once)
            with pytest.raises(SystemExit):
                pulls[-1].result(WAIT_S)
        for pulled in pulls:
            error = pulled.exception(WAIT_S)
            assert error is None or "the store's thread failed: SystemExit: 3" in str(error)


def test_an_error_of_the_store_where_a_call_begins_ends_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with two_slots() as (one, _):
        monkeypatch.setattr(one._core, "_start", Mock(side_effect=ValueError("no")))
        with pytest.raises(StoreError, match="the store's thread failed: ValueError: no"):
            one.pull("k0", 0).result(WAIT_S)


def test_of_many_calls_some_are_begun_before_what_has_come_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that begins them all hears no shard meanwhile, and sends no ping."""
    done: list[str] = []
    with two_slots() as (one, _):
        for what in ("begin", "receive", "tick"):
            work = getattr(one._core, what)
            monkeypatch.setattr(one._core, what, lambda *given, of=(what, work): (done.append(of[0]), of[1](*given))[1])
        monkeypatch.setattr("weft_kvstore.client.sockets.ROUND_S", 0.0)
        with without_thread(one):
            with one._poller._working:
                first, pulls = one.pull(KEYS, 0), [one.pull(KEYS, 0) for _ in range(8)]
                one._sockets.begin(0.0)
                one._sockets.send(0.0)
                wait_until(lambda: has_come(one))
                for link in one._sockets._sockets.values():
                    link.is_unread = True
                one._core.tick_at = 0.0
                del done[:]
            assert [len(pull.result(WAIT_S)) for pull in pulls] == [4] * 8
            assert first.done()
    assert done.count("begin") == 8
    assert {*done[: done.index("begin", 1)]} == {"begin", "receive", "tick"}


def test_a_shard_is_heard_before_it_can_be_silent() -> None:
    """Its message is read, though nothing has said that it is there, once its silence is due to be judged."""
    with two_slots() as (one, _):
        sockets, core = one._sockets, one._core
        with without_thread(one), one._poller._working:
            one.pull("k0", 0)
            sockets.begin(0.0)
            sockets.send(0.0)
            wait_until(lambda: has_come(one))
            for link in sockets._sockets.values():
                link.is_unread = False
            sockets.receive({}, core.tick_at - 1e-3)
            assert not core.outcomes
            sockets.receive({}, core.tick_at)
            assert len(core.outcomes) == 1


def test_pings_leave_while_who_leads_is_in_a_signals_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_slots() as (one, other):
        leader, core = one._poller._leader_wait, one._core
        sleep = leader.sleep

        def handled() -> None:
            """A handler runs where a caller sleeps."""
            monkeypatch.setattr(leader, "sleep", sleep)
            ticks_at = core.tick_at
            wait_until(lambda: core.tick_at > ticks_at)
            other.push("k0", 0, GRADIENT).result(WAIT_S)

        monkeypatch.setattr(leader, "sleep", handled)
        one.push("k0", 0, GRADIENT)
        one.pull("k0", 1).result(WAIT_S)


def test_whatever_else_is_raised_in_the_middle_of_the_work_fails_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread reports it besides, as it does its own errors."""
    monkeypatch.setattr("threading.excepthook", lambda _: None)

    def ended(*_: object) -> None:
        raise SystemExit(3)

    with two_slots() as (one, _):
        with without_thread(one):
            never = one.push("k0", 0, GRADIENT)
            monkeypatch.setattr(one._core, "receive", ended)
            with pytest.raises(SystemExit):
                never.result(WAIT_S)
        with pytest.raises(StoreError, match="the store's thread failed: SystemExit: 3"):
            never.result(WAIT_S)
        with pytest.raises(StoreError, match="the store's thread failed: SystemExit: 3"):
            one.pull("k0", 0).result(WAIT_S)


def test_what_has_arrived_is_acknowledged_though_nothing_is_called_any_more() -> None:
    description = store_of([key_of("k0", [8], 1)], slots=1, shards=1)
    with served(description) as (description, (shard,)), clients_of(description, LinkSettings()) as (client,):
        client.pull("k0", 0).result(WAIT_S)
        wait_until(lambda: shard.statistics()["in_flight_bytes"] == 0)


def test_the_next_call_acknowledges_what_the_last_one_brought() -> None:
    description = store_of([key_of("k0", [8], 1)], slots=1, shards=1)
    with (
        served(description) as (description, (shard,)),
        clients_of(description, LinkSettings()) as (client,),
        without_thread(client),
    ):
        client.pull("k0", 0).result(WAIT_S)
        assert shard.statistics()["in_flight_bytes"] > 0
        client.push("k0", 0, GRADIENT).result(WAIT_S)
        assert shard.statistics()["in_flight_bytes"] == 0


def test_values_that_came_in_several_frames_are_acknowledged_before_their_caller_goes_on() -> None:
    """Their shard may hold the link for slow, and would go on to if it heard of them later."""
    description = store_of([key_of("k0", [1024], 1)], slots=1, shards=1)
    with (
        served(description, LinkSettings(frame_bytes=1024)) as (description, (shard,)),
        clients_of(description, LinkSettings(same_host=False)) as (client,),
        without_thread(client),
    ):
        client.pull("k0", 0).result(WAIT_S)
        assert client.statistics().frames_received >= 8
        assert not any(link.acknowledge for link in client._core.links)
        wait_until(lambda: shard.statistics()["in_flight_bytes"] == 0)
