"""The pure parts behind `KVStore`: names, counts of steps, joined futures, and calls of many keys."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from face_stores import WAIT_S, push, steps_of
from same_host_children import wait_until
from store_cluster import constant, key_of, store_of
from weft_kvstore import KVStore, StoreRefusedError
from weft_kvstore.client.operation import KeyOperation
from weft_kvstore.description.form import store_name, user_key
from weft_kvstore.futures import OtherThread, StoreFuture, _one_ended, after, finished, joined, then

USER_KEYS = st.one_of(st.integers(0, 2**64 - 1), st.text(min_size=1).filter(lambda text: not text.startswith("#")))


@given(st.lists(USER_KEYS, unique_by=lambda key: (type(key), key)))
def test_no_two_keys_have_one_name_and_each_comes_back(keys: list[str | int]) -> None:
    names = [store_name(key) for key in keys]
    assert len(set(names)) == len(names)
    assert [user_key(name) for name in names] == keys


@given(
    st.lists(st.one_of(st.just("end"), st.lists(st.sampled_from("abc"), unique=True)), max_size=12), st.integers(0, 9)
)
def test_every_step_of_every_key_is_pushed_or_declared_once(program: list[Any], start: int) -> None:
    """What shards wait for: of each key each step up to the last that was ended, one word from this slot."""
    steps, said, ended = steps_of("a", "b", "c", start=start), [], []

    def declare(found: list[tuple[int, list[str]]]) -> Future[None]:
        for step, nothing in found:
            ended.append(step)
            said.extend([(key, step) for key in nothing])
        return finished(None)

    for action in [*program, "end"]:
        if action == "end":
            steps.end(None, declare)
            continue
        for name in action:
            said.append((name, steps.of(name)))
            push(steps, name, None, finished(None))
    assert len(set(said)) == len(said)
    assert ended == list(range(start, ended[-1] + 1))
    assert {(key, step) for key in "abc" for step in ended} <= set(said)


def test_an_end_that_cannot_be_meant_is_refused() -> None:
    steps, ended = steps_of("w", start=3), list[object]()
    for step in (3, 4):
        steps.end(step, lambda found: finished(ended.append(found)))
    assert ended == [[(3, ["w"])], [(4, ["w"])]]
    for step in (4, 6, 10**6):
        with pytest.raises(StoreRefusedError, match=f"slot 0: end_step: step {step}: the next to end is step 5"):
            steps.end(step, lambda _: finished(None))


def test_any_number_of_pushed_steps_are_ended_at_once() -> None:
    steps, ended = steps_of("w"), list[Any]()
    for _ in range(3000):
        push(steps, "w", None, finished(None))
    steps.end(None, lambda found: finished(ended.extend(found)))
    assert [step for step, _ in ended] == list(range(3000))


def test_a_step_whose_end_fails_at_once_is_to_be_ended_again() -> None:
    steps, ended = steps_of("w"), list[Any]()
    push(steps, "w", None, finished(None))
    failed = Future[None]()
    failed.set_exception(KeyError("failed"))
    assert steps.end(None, lambda _: failed).exception(0) is failed.exception(0)
    steps.end(None, lambda found: finished(ended.extend(found)))
    assert ended == [(0, [])]


def test_an_end_fails_without_waiting_for_a_thread_that_counts_steps() -> None:
    """Which may wait for the thread on which it fails."""
    steps, ended, outcome = steps_of("w"), list[Any](), Future[None]()
    push(steps, "w", None, finished(None))
    steps.end(None, lambda _: outcome)
    failing = threading.Thread(target=outcome.set_exception, args=(KeyError("failed"),), daemon=True)

    def send(*_: object) -> Future[None]:
        failing.start()
        failing.join(WAIT_S)
        return finished(None)

    steps.push("push", ["w"], None, [], send)
    assert not failing.is_alive()
    steps.end(0, lambda found: finished(ended.extend(found)))
    assert ended == [(0, [])]


def test_joined_futures_end_with_the_last_and_fail_with_the_first_error() -> None:
    one, other = Future[int](), Future[int]()
    both = joined([one, other], sum)
    one.set_result(1)
    assert not both.done()
    other.set_result(2)
    assert both.result(0) == 3
    failing, waiting = Future[int](), Future[int]()
    either = joined([waiting, failing], sum)
    failing.set_exception(KeyError("first"))
    assert not either.done(), "the other may still read its caller's arrays"
    waiting.set_exception(KeyError("second"))
    with pytest.raises(KeyError, match="first"):
        either.result(0)
    assert joined([], sum).result(0) == 0
    with pytest.raises(ZeroDivisionError):
        joined([finished(0)], lambda found: 1 // found[0]).result(0)


class Late(Exception):
    """Raised by a signal's handler."""


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", [Late, KeyboardInterrupt])
def test_joined_futures_end_where_a_signals_handler_raises_at_any_line_of_theirs(
    kind: type[BaseException], alone: bool
) -> None:
    """The thread that ends a part may be the main one. Other parts may still read their caller's arrays."""
    for line in count(2):  # Before the first, it has not begun.
        part, other, left = StoreFuture[int](), StoreFuture[int](), line

        def at_each_line(frame: FrameType, event: str, _: object) -> Any:
            nonlocal left
            if frame.f_code is not _one_ended.__code__:
                return None
            left -= event == "line"
            if not left or event == "return":
                sys.settrace(None)
            if not left:
                raise kind
            return at_each_line

        interrupted, another = joined([part] if alone else [part, other], sum), joined([part, other], sum)
        before = sys.gettrace()
        sys.settrace(at_each_line)
        try:
            part.set_result(1)
        except kind:
            assert kind is KeyboardInterrupt
        finally:
            sys.settrace(before)
        assert (interrupted.done(), another.done()) == (alone, False)
        other.set_result(2)
        assert interrupted.done()
        assert another.result(0) == 3
        if left > 0:
            return


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_what_comes_after_a_future_ends_where_a_signals_handler_raises(kind: type[BaseException]) -> None:
    def interrupted(_: BaseException | None) -> None:
        raise kind

    future = StoreFuture[int]()
    noted = after(future, interrupted)
    try:
        future.set_result(1)
    except kind:
        assert kind is KeyboardInterrupt
    assert isinstance(noted.exception(0), kind)


def test_what_follows_a_future_fails_with_it_or_by_itself() -> None:
    assert then(finished(1), lambda value: finished(value + 1)).result(0) == 2
    broken = Future[int]()
    broken.set_exception(KeyError("broken"))
    for future in (then(broken, finished), then(finished(1), lambda _: broken)):
        with pytest.raises(KeyError, match="broken"):
            future.result(0)
    with pytest.raises(ZeroDivisionError):
        then(finished(0), lambda value: finished(1 // value)).result(0)
    given_up = Future[int]()
    assert given_up.cancel()
    ways = [then(finished(0), lambda _: given_up), then(given_up, finished)]
    for future in (*ways, joined([given_up], sum)):
        with pytest.raises(CancelledError):
            future.result(0)


def test_work_of_another_thread_that_took_too_long_is_its_callers_error() -> None:
    """It is asked at most twice whether the other thread is there: before the work is done, and after."""
    checks_steps = iter([False, False])
    with pytest.raises(TimeoutError, match="the link"):
        OtherThread(lambda work: work(), lambda: next(checks_steps)).do(late)


def late() -> None:
    raise TimeoutError("the link")


class ManyStore:
    """A store that takes many keys at once, and none alone."""

    def __init__(self) -> None:
        self.failed: dict[str, dict[int, BaseException]] = {}
        self.pushed: list[tuple[list[str], int]] = []
        self.outs: list[bool] = []

    def submit(self, operation: KeyOperation) -> StoreFuture[Any]:
        names, found = list(operation.keys.names), None
        if operation.is_pull:
            self.outs.append(operation.out is not None)
            found = (
                [*map(np.empty, operation.keys.shapes, operation.keys.dtypes)]
                if operation.out is None
                else operation.out
            )
            for key, value in zip(names, found, strict=True):
                value[:] = len(key) + 10 * operation.version
        else:
            assert all(np.all(gradient == len(key)) for key, gradient in zip(names, operation.arrays, strict=True))
            self.pushed.append((names, operation.step))
        operation.future.set_result(found)
        return operation.future

    def close(self) -> None:
        pass


def test_keys_at_one_step_go_in_one_call_where_the_store_has_one() -> None:
    names = ["a", "bb", "ccc"]
    description = store_of([constant(key_of(name, (2,), 1), 0.0) for name in names], slots=1, shards=1)
    store = ManyStore()
    with KVStore(store, description, 0) as calls:  # type: ignore[arg-type]  # no more of a store than is asked for
        gradients = [np.full(2, len(name), np.float32) for name in names]
        calls.push(names, gradients).result(WAIT_S)
        calls.push("bb", gradients[1])
        calls.push(names, gradients).result(WAIT_S)
        assert store.pushed == [(names, 0), (["bb"], 1), (["a", "ccc"], 1), (["bb"], 2)]
        outs = [np.empty(2, np.float32), np.empty(4, np.float32)[::2], np.empty(2, np.float32)]
        found = calls.pull(names, out=outs).result(WAIT_S)
        assert [value[0] for value in outs] == [21.0, 32.0, 23.0]
        assert all(one is other for one, other in zip(found, outs, strict=True))
        assert [value[1] for value in calls.pull(names, version=4).result(WAIT_S)] == [41.0, 42.0, 43.0]
        assert store.outs == [False, False, False]


@pytest.mark.parametrize("error", [None, StoreRefusedError("far")])
def test_who_asks_of_a_future_before_its_end_and_who_asks_after_it_hear_of_it(error: StoreRefusedError | None) -> None:
    """It makes its lock when the first of them asks."""
    early, late, seen = StoreFuture[int](), StoreFuture[int](), list[Future[int]]()
    early.add_done_callback(seen.append)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, [early], WAIT_S)
        wait_until(lambda: len(early._waiters) == 1)
        for future in (early, late):
            if error is None:
                future.set_result(1)
            else:
                future.set_exception(error)
        assert waiting.result(WAIT_S).done == {early}
    assert "_condition" not in vars(late)
    late.add_done_callback(seen.append)
    assert seen == [early, late]
    assert wait([late], WAIT_S).done == {late}
    assert [one.exception(0) for one in (early, late)] == [error, error]


def test_a_future_that_others_wait_for_ends_while_its_lock_is_held() -> None:
    """They count what has not ended with the lock held, so that may not change meanwhile."""
    future, seen = StoreFuture[int](), list[bool]()

    class Watched:
        def __enter__(self) -> None:
            seen.append(future.done())

        def __exit__(self, *_: object) -> None:
            seen.append(future.done())

        def notify_all(self) -> None:
            """Nobody waits."""

    vars(future)["_lock"] = Watched()
    future.set_result(1)
    assert seen == [False, True]
