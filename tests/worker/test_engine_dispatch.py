"""In which order and on which threads the threaded engine runs what is ready."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from weft_worker.engine.errors import EngineTimeoutError
from weft_worker.engine.threaded import ThreadedEngine
from weft_worker.engine.work import OnComplete

WAIT_S = 60.0


@pytest.fixture
def engine() -> Iterator[ThreadedEngine]:
    made = ThreadedEngine({"compute": 1, "io": 1})
    yield made
    made.close()


def test_ready_work_of_a_lane_starts_by_priority_then_in_the_order_of_pushing(engine):
    gate = threading.Event()
    begun = threading.Event()
    ran: list[int] = []

    def hold() -> None:
        begun.set()
        gate.wait(WAIT_S)

    engine.push(hold, lane="compute", name="hold")
    assert begun.wait(WAIT_S)
    priorities = [3, 0, 2, 0, 1, 3]
    for place, priority in enumerate(priorities):
        engine.push(lambda place=place: ran.append(place), lane="compute", name=str(place), priority=priority)
    gate.set()
    engine.wait_all(WAIT_S)
    assert ran == [1, 3, 4, 2, 0, 5]


def test_an_io_thread_is_free_while_a_reply_is_awaited(engine):
    """One IO thread starts a second piece of work, and that one brings the reply that the first awaits."""
    x, y = engine.variable("x"), engine.variable("y")
    awaited: list[OnComplete] = []
    engine.push_async(awaited.append, writes=[x], lane="io", name="first")

    def second(on_complete: OnComplete) -> None:
        awaited[0]()
        on_complete()

    engine.push_async(second, writes=[y], lane="io", name="second")
    engine.wait([x, y], WAIT_S)


def test_readers_run_together_and_a_writer_alone():
    engine = ThreadedEngine({"compute": 3})
    x = engine.variable("x")
    together = threading.Barrier(3)
    order: list[str] = []
    for reader in range(3):
        engine.push(lambda: order.append(f"r{together.wait(WAIT_S) // 3}"), [x], lane="compute", name=str(reader))
    engine.push(lambda: order.append("w"), [], [x], lane="compute", name="writer")
    engine.wait([x], WAIT_S)
    engine.close()
    assert order == ["r0", "r0", "r0", "w"]


def test_threads_are_made_once_and_as_many_as_asked_for():
    before = set(threading.enumerate())
    engine = ThreadedEngine({"compute": 3, "io": 2})
    made = set(threading.enumerate()) - before
    seen: set[str] = set()
    for number in range(50):
        engine.push(lambda: seen.add(threading.current_thread().name), lane="compute", name=str(number))
    engine.wait_all(WAIT_S)
    assert set(threading.enumerate()) - before == made
    assert len(made) == 5
    assert seen <= {f"engine-compute-{number}" for number in range(3)}
    engine.close()


def test_what_done_work_held_is_released_before_the_next_comes(engine):
    x = engine.variable("x")
    array = np.zeros(4)
    gone = weakref.ref(array)
    engine.push(lambda array=array: array.sum(), [], [x], lane="compute", name="sum")
    del array
    engine.wait([x], WAIT_S)
    barrier = threading.Event()
    engine.push(barrier.set, lane="compute", name="another")
    assert barrier.wait(WAIT_S)
    gc.collect()
    assert gone() is None


def test_closing_names_the_work_that_keeps_a_thread_busy():
    engine = ThreadedEngine({"compute": 1})
    gate, begun = threading.Event(), threading.Event()

    def busy() -> None:
        begun.set()
        gate.wait(WAIT_S)

    engine.push(busy, lane="compute", name="Conv 'slow'")
    assert begun.wait(WAIT_S)
    with pytest.raises(EngineTimeoutError, match="Conv 'slow'"):
        engine.close(timeout_s=0.01)
    gate.set()
    engine.close()


def test_a_lane_needs_a_thread():
    with pytest.raises(ValueError, match="'io' needs a thread"):
        ThreadedEngine({"io": 0})
