"""One contract, kept by every engine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_programs import LANES, WAIT_S, DeliberateError, Execution, interpreted, operations, programs
from weft_worker.engine.engine import Engine
from weft_worker.engine.errors import EngineClosedError, EngineTimeoutError, EngineUsageError, PartError, WorkError
from weft_worker.engine.serial import SerialEngine
from weft_worker.engine.threaded import ThreadedEngine
from weft_worker.engine.work import OnComplete

MAKERS: dict[str, Callable[[], Engine]] = {
    "serial": lambda: SerialEngine(LANES, completion_timeout_s=WAIT_S),
    "1 thread": lambda: ThreadedEngine({"compute": 1, "io": 1}),
    "2 threads": lambda: ThreadedEngine(LANES),
    "4 threads": lambda: ThreadedEngine({"compute": 4, "io": 1}),
}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Engine]:
    return MAKERS[request.param]


@pytest.fixture
def engine(make: Callable[[], Engine]) -> Iterator[Engine]:
    made = make()
    yield made
    made.close()


def fail() -> None:
    raise DeliberateError("on purpose")


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_a_program_gives_the_sequential_result(maker, program):
    values, _, first = interpreted(program)
    engine = maker()
    try:
        execution = Execution(engine)
        execution.push(program)
        if first is None:
            engine.wait_all(WAIT_S)
        else:
            with pytest.raises(WorkError) as raised:
                engine.wait_all(WAIT_S)
            assert raised.value.name == f"op{first}"
        engine.wait_all(WAIT_S)
        assert execution.values == values
    finally:
        engine.close()


@settings(max_examples=60, deadline=None)
@given(program=programs)
def test_each_failure_is_raised_by_the_first_wait_that_meets_it_and_by_no_other(program):
    _, failed, _ = interpreted(program)
    expected: dict[int, str] = {}
    for variable, cause in enumerate(failed):
        if cause is not None and f"op{cause}" not in expected.values():
            expected[variable] = f"op{cause}"
    for maker in MAKERS.values():
        engine = maker()
        try:
            execution = Execution(engine)
            execution.push(program)
            assert execution.failures() == expected
        finally:
            engine.close()


def test_an_error_names_the_work_or_the_part_of_it_that_failed_and_its_inputs(engine):
    def fail_in_part() -> None:
        raise PartError("MatMul 'fc1'", "inputs float32[2, 3]", DeliberateError("on purpose"))

    x, y = engine.variable("x"), engine.variable("y")
    engine.push(fail, writes=[x], lane="compute", name="w")
    engine.push(fail_in_part, writes=[y], lane="compute", name="segment")
    with pytest.raises(WorkError, match=r"^w failed: DeliberateError: on purpose$"):
        engine.wait([x], WAIT_S)
    with pytest.raises(WorkError, match=r"^MatMul 'fc1' failed: DeliberateError: on purpose; inputs float32\[2, 3\]$"):
        engine.wait([y], WAIT_S)


def test_the_cause_is_the_error_itself(engine):
    x = engine.variable("x")
    engine.push(fail, writes=[x], lane="compute", name="w")
    with pytest.raises(WorkError) as raised:
        engine.wait([x], WAIT_S)
    assert isinstance(raised.value.__cause__, DeliberateError)


def test_dependents_are_skipped_and_their_wait_raises_the_first_error(engine):
    x, y, z = (engine.variable(name) for name in "xyz")
    ran: list[str] = []
    engine.push(fail, writes=[x], lane="compute", name="first")
    engine.push(lambda: ran.append("second"), [x], [y], lane="compute", name="second")
    engine.push(lambda: ran.append("third"), [y], [z], lane="compute", name="third")
    with pytest.raises(WorkError, match="first failed"):
        engine.wait([z], WAIT_S)
    assert ran == []


def test_after_it_was_raised_an_error_is_forgotten(engine):
    x = engine.variable("x")
    ran: list[int] = []
    engine.push(fail, writes=[x], lane="compute", name="w")
    with pytest.raises(WorkError):
        engine.wait([x], WAIT_S)
    engine.push(lambda: ran.append(1), [x], lane="compute", name="next")
    engine.wait_all(WAIT_S)
    assert ran == [1]


def test_independent_failures_come_together_the_earliest_first(engine):
    x, y = engine.variable("x"), engine.variable("y")
    engine.push(fail, writes=[x], lane="compute", name="one")
    engine.push(fail, writes=[y], lane="compute", name="two")
    with pytest.raises(WorkError) as raised:
        engine.wait([y, x], WAIT_S)
    assert raised.value.name == "one"
    assert [error.name for error in raised.value.others] == ["two"]
    engine.wait_all(WAIT_S)


def test_a_failure_of_work_that_writes_nothing_is_raised_by_wait_all(engine):
    engine.push(fail, lane="compute", name="lonely")
    with pytest.raises(WorkError, match="lonely"):
        engine.wait_all(WAIT_S)
    engine.wait_all(WAIT_S)


def test_an_asynchronous_start_that_raises_is_a_failure(engine):
    x = engine.variable("x")

    def start(on_complete: OnComplete) -> None:
        raise DeliberateError("at the start")

    engine.push_async(start, writes=[x], lane="io", name="pull")
    with pytest.raises(WorkError, match="pull failed: DeliberateError: at the start"):
        engine.wait([x], WAIT_S)


def test_completing_twice_is_refused(engine):
    x = engine.variable("x")
    refused: list[bool] = []

    def start(on_complete: OnComplete) -> None:
        on_complete()
        try:
            on_complete()
        except EngineUsageError:
            refused.append(True)

    engine.push_async(start, writes=[x], lane="io", name="pull")
    engine.wait_all(WAIT_S)
    assert refused == [True]


def test_an_error_after_the_completion_is_not_lost(engine):
    x = engine.variable("x")

    def start(on_complete: OnComplete) -> None:
        on_complete()
        raise DeliberateError("too late")

    engine.push_async(start, writes=[x], lane="io", name="pull")
    with pytest.raises(WorkError, match="too late"):
        engine.wait_all(WAIT_S)


def test_a_variable_that_work_has_released_is_free_and_keeps_no_error(engine):
    early, late, seen = engine.variable("early"), engine.variable("late"), []

    def work():
        engine.release(early)
        fail()

    engine.push(work, [], [early, late], lane="compute", name="two parts")
    engine.push(lambda: seen.append("early"), [early], lane="io", name="reads the first")
    engine.push(lambda: seen.append("late"), [late], lane="io", name="reads the second")
    with pytest.raises(WorkError, match="two parts"):
        engine.wait_all(WAIT_S)
    assert seen == ["early"]


def test_work_goes_on_while_what_it_has_released_is_read():
    read = threading.Event()
    with contextlib.closing(ThreadedEngine({"compute": 1, "io": 1})) as engine:
        early = engine.variable("early")

        def work():
            engine.release(early)
            assert read.wait(WAIT_S)

        engine.push(work, [], [early], lane="compute", name="two parts")
        engine.push(read.set, [early], lane="io", name="reads the first")
        engine.wait_all(WAIT_S)


@pytest.mark.parametrize("reads", [("x", "x"), ("x",), ()], ids=["twice read", "read and written", "twice written"])
def test_a_variable_named_twice_is_refused(engine, reads):
    x = engine.variable("x")
    writes = [x] if reads == ("x",) else [] if reads else [x, x]
    with pytest.raises(EngineUsageError, match="twice"):
        engine.push(fail, [x] * len(reads), writes, lane="compute", name="w")
    engine.wait_all(WAIT_S)


def test_a_variable_of_another_engine_is_refused(engine, make):
    other = make()
    try:
        with pytest.raises(EngineUsageError, match="another engine"):
            engine.push(fail, [other.variable("x")], lane="compute", name="w")
    finally:
        other.close()


def test_an_unknown_lane_is_refused(engine):
    with pytest.raises(EngineUsageError, match="'gpu'"):
        engine.push(fail, lane="gpu", name="w")


def test_a_closed_engine_takes_nothing(engine):
    x = engine.variable("x")
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.push(fail, [x], lane="compute", name="w")
    with pytest.raises(EngineClosedError):
        engine.wait([x], WAIT_S)


def test_work_may_push_work(engine):
    x, y = engine.variable("x"), engine.variable("y")
    ran: list[str] = []

    def outer() -> None:
        engine.push(lambda: ran.append("inner"), [x], [y], lane="compute", name="inner")
        ran.append("outer")

    engine.push(outer, writes=[x], lane="compute", name="outer")
    engine.wait([x], WAIT_S)
    engine.wait([y], WAIT_S)
    assert ran == ["outer", "inner"]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["run", "start"])
@pytest.mark.parametrize(
    "call",
    [lambda engine, x: engine.wait([x], WAIT_S), lambda engine, x: engine.wait_all(WAIT_S), lambda e, x: e.close()],
    ids=["wait", "wait_all", "close"],
)
def test_work_that_waits_is_refused_and_fails(engine, call, asynchronous):
    x, y = engine.variable("x"), engine.variable("y")
    ran: list[str] = []

    def outer() -> None:
        engine.push(lambda: ran.append("inner"), writes=[x], lane="compute", name="inner")
        call(engine, x)
        ran.append("outer")

    def start(on_complete: OnComplete) -> None:
        outer()
        on_complete()

    if asynchronous:
        engine.push_async(start, writes=[y], lane="io", name="outer")
    else:
        engine.push(outer, writes=[y], lane="compute", name="outer")
    with pytest.raises(WorkError, match=r"outer failed: EngineUsageError: .* was called from inside work") as raised:
        engine.wait([y], WAIT_S)
    assert isinstance(raised.value.__cause__, EngineUsageError)
    engine.wait_all(WAIT_S)
    assert ran == ["inner"]


@settings(max_examples=40, deadline=None)
@given(program=st.lists(operations(), max_size=12))
def test_no_engine_keeps_anything_of_work_that_is_done(program):
    for maker in MAKERS.values():
        engine = maker()
        try:
            execution = Execution(engine)
            execution.push(program)
            with contextlib.suppress(WorkError):
                engine.wait_all(WAIT_S)
            for variable in execution.variables:
                assert variable.writer is None
                assert not variable.queue
                assert not variable.readers
        finally:
            engine.close()


def test_the_serial_engine_gives_up_on_work_that_never_completes():
    engine = SerialEngine(LANES, completion_timeout_s=0.01)
    x = engine.variable("x")
    engine.push_async(lambda on_complete: None, writes=[x], lane="io", name="pull w1")
    with pytest.raises(WorkError, match=r"'pull w1' was not completed within 0\.01 s"):
        engine.wait([x], WAIT_S)


def test_a_wait_that_times_out_names_the_unfinished_work():
    engine = ThreadedEngine(LANES)
    x, y = engine.variable("x"), engine.variable("y")
    completions: list[OnComplete] = []
    engine.push_async(completions.append, writes=[x], lane="io", name="pull w1")
    engine.push(lambda: None, [x], [y], lane="compute", name="MatMul 'fc1'")
    with pytest.raises(EngineTimeoutError, match=r"'pull w1' \(\w+\), \"MatMul 'fc1'\" \(waiting\)"):
        engine.wait([y], 0.01)
    with pytest.raises(EngineTimeoutError, match="pull w1"):
        engine.wait_all(0.01)
    completions[0]()
    engine.wait([y], WAIT_S)
    engine.close()


def test_closing_fails_those_who_wait_and_ends_the_threads():
    before = set(threading.enumerate())
    engine = ThreadedEngine(LANES)
    x = engine.variable("x")
    started = threading.Event()
    completions: list[OnComplete] = []

    def start(on_complete: OnComplete) -> None:
        completions.append(on_complete)
        started.set()

    engine.push_async(start, writes=[x], lane="io", name="pull")
    assert started.wait(WAIT_S)
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            engine.wait([x], WAIT_S)
        except EngineClosedError as error:
            outcome.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    engine.close()
    waiter.join(WAIT_S)
    completions[0]()
    assert [type(error) for error in outcome] == [EngineClosedError]
    assert set(threading.enumerate()) <= before
