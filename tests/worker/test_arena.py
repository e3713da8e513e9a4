"""Real steps in an arena: the bits of steps without one, in the bytes that were planned, and no others."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from residual_nets import SMALL, resnet_graph
from sample_graphs import floats, ints, line, node, scalar, weight
from weft_graph.convert import convert
from weft_graph.ir import Graph
from weft_graph.names import AGAIN
from weft_graph.passes.draft import Options, Recompute
from weft_graph.program import LOSS_SCALE, Programs
from weft_graph.types import DType
from weft_worker import segments
from weft_worker.bind import bind
from weft_worker.engine.engine import Engine
from weft_worker.engine.errors import WorkError
from weft_worker.engine.serial import SerialEngine
from weft_worker.engine.threaded import ThreadedEngine
from weft_worker.plan import Plan, Segment
from weft_worker.step.pusher import StepPusher
from weft_worker.step.run import COMPUTE, IO, Runtime
from weft_worker.step.values import StepContext
from worker_graphs import FEATURES, mlp, normalized

Array = np.ndarray[Any, np.dtype[Any]]
WAIT_S = 60.0
BATCH = 4


@pytest.fixture(autouse=True)
def _sessions_of_small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where onnxruntime is asked for, it computes all that it can."""
    monkeypatch.setattr(segments, "SESSION_OPERATIONS", 0)


class Answering:
    """A store that answers at once, and keeps a copy of what is pushed. `held` pushes wait for `release`."""

    def __init__(self, values: Mapping[str, Array], *, held: bool = False) -> None:
        self.values = values
        self.pushed: dict[tuple[str, int], bytes] = {}
        self.arrays: list[tuple[tuple[str, int], Array]] = []
        self._held = held
        self._lock = threading.Lock()
        self._waiting: list[Future[None]] = []

    def pull(self, key: str, version: int) -> Future[Array]:
        return _ended(self.values[key])

    def push(self, key: str, step: int, gradient: Array) -> Future[None]:
        with self._lock:
            self.pushed[key, step] = gradient.tobytes()
            self.arrays.append(((key, step), gradient))
            if not self._held:
                return _ended(None)
            self._waiting.append(Future())
            return self._waiting[-1]

    def barrier(self, step: int, nothing: Any) -> Future[None]:
        return _ended(None)

    def release(self) -> None:
        """Acknowledges all, whose arrays must be as they were pushed, and from here on each at once."""
        with self._lock:
            self._held = False
            for name, array in self.arrays:
                assert array.tobytes() == self.pushed[name], f"{name} was overwritten before it was acknowledged"
        for ended in self._waiting:
            ended.set_result(None)


def _ended(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def transformer(dtype: DType = DType.FLOAT32) -> Graph:
    """One block of attention over (batch, 3, 6): views, a transpose that a reshape has to copy, halves of a split."""
    nodes = [
        node("MatMul", ["x", "w"], ["qkv"]),
        node("Split", ["qkv"], ["q", "k", "v"], axis=2),
        *(node("Reshape", [name, "heads"], [f"{name}4"]) for name in "qkv"),
        *(node("Transpose", [f"{name}4"], [f"{name}h"], perm=(0, 2, 1, 3)) for name in "qv"),
        node("Transpose", ["k4"], ["kh"], perm=(0, 2, 3, 1)),
        node("MatMul", ["qh", "kh"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "vh"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=(0, 2, 1, 3)),
        node("Reshape", ["back", "flat"], ["joined"]),
        node("Add", ["joined", "x"], ["residual"]),
        node("Gelu", ["residual"], ["active"]),
        node("MatMul", ["active", "out"], ["y"]),
        node("ReduceSumSquare", ["y"], ["total"], keepdims=0),
        node("Sqrt", ["total"], ["loss"]),
    ]
    constants = [ints("heads", 0, 0, 2, 3), ints("flat", 0, 0, -1)]
    parameters = [weight("w", 6, 18, dtype=dtype), weight("out", 6, 6, dtype=dtype)]
    return line(nodes, parameters, inputs={"x": floats("batch", 3, 6)}, constants=constants)


def converted(graph: Graph, **options: Any) -> Programs:
    metrics = {name: name for name in graph.outputs[1:]}
    return convert(graph, loss=graph.outputs[0], metrics=metrics, options=Options(dims={"batch": BATCH}, **options))


def drawn(plan: Plan, seed: int = 5) -> tuple[dict[str, Array], dict[str, Array]]:
    """(feeds, parameters) of the plan's types."""
    draw = np.random.default_rng(seed)

    def array(place: int) -> Array:
        type_ = plan.types[place]
        shape = type_.static_shape
        made = draw.integers(0, 3, shape) if not type_.dtype.is_float else draw.uniform(0.1, 1, shape)
        return np.asarray(made).astype(type_.dtype.numpy)

    feeds = {name: array(place) for name, place in plan.inputs.items()}
    feeds[LOSS_SCALE] = np.ones_like(feeds[LOSS_SCALE])
    return feeds, {key: array(place) for key, place in plan.fetched.items()}


@contextmanager
def opened(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.close()


ENGINES: dict[str, Callable[[], Engine]] = {
    "serial": lambda: SerialEngine({COMPUTE: 1, IO: 1}, completion_timeout_s=WAIT_S),
    "one thread": lambda: ThreadedEngine({COMPUTE: 1, IO: 1}),
    "four threads": lambda: ThreadedEngine({COMPUTE: 4, IO: 2}),
}
GRAPHS: dict[str, Callable[[], Graph]] = {
    "mlp": lambda: mlp(DType.FLOAT32),
    "dropout": lambda: mlp(dropout=0.5),
    "normalized": lambda: normalized(DType.FLOAT32),
    "transformer": transformer,
    "resnet": lambda: resnet_graph(SMALL),
}


def stepped(plan: Plan, *, arena: bool, engine: str = "serial", steps: int = 3) -> Any:
    """(what was pushed, the outputs) of steps that are pushed all at once."""
    feeds, values = drawn(plan)
    store = Answering(values)
    with opened(ENGINES[engine]()) as running:
        pusher = StepPusher(Runtime(running, store), arena=arena)  # type: ignore[arg-type]  # as much of a store as is called
        pushed = [pusher.push(plan, StepContext(step, 0, 7, f"step {step}"), feeds) for step in range(steps)]
        running.wait_all(WAIT_S)
        return store.pushed, [each.scalars() for each in pushed]


@pytest.mark.parametrize(("fusion", "threads"), [(True, None), (False, None), (True, 1), (False, 2)])
@pytest.mark.parametrize("name", GRAPHS)
def test_an_arena_changes_no_bit_on_any_engine(name: str, fusion: bool, threads: int | None) -> None:
    plan = bind(converted(GRAPHS[name](), fusion=fusion).train, {"batch": BATCH}, session_threads=threads)
    assert plan.placement.layout.arena_bytes
    expected = stepped(plan, arena=False)
    for engine in ENGINES:
        assert stepped(plan, arena=True, engine=engine) == expected


@pytest.mark.parametrize("threads", [None, 1])
@pytest.mark.parametrize("mode", [Recompute.CHEAP, Recompute.SEGMENTS])
@pytest.mark.parametrize("name", ["dropout", "resnet", "transformer"])
def test_what_is_computed_again_is_the_same_to_the_bit(name: str, mode: Recompute, threads: int | None) -> None:
    graph = GRAPHS[name]()
    expected = stepped(bind(converted(graph).train, {"batch": BATCH}, session_threads=threads), arena=False)
    plan = bind(converted(graph, recompute=mode).train, {"batch": BATCH}, session_threads=threads)
    assert threads or name != "resnet" or any(bound.node.name.startswith(AGAIN) for bound in plan.nodes)
    for engine in ENGINES:
        assert stepped(plan, arena=True, engine=engine) == expected


def test_a_dropout_that_is_computed_again_draws_the_same_mask() -> None:
    nodes, value = [], "x"
    for layer in range(6):
        nodes.append(node("MatMul", [value, "w"], [f"m{layer}"]))
        nodes.append(node("Gelu", [f"m{layer}"], [f"g{layer}"]))
        nodes.append(node("Dropout", [f"g{layer}", "", "training"], [f"d{layer}"]))
        value = f"d{layer}"
    nodes.append(node("ReduceMean", [value], ["loss"], keepdims=0))
    training = scalar("training", True, "bool")
    graph = line(nodes, [weight("w", 64, 64)], inputs={"x": floats("batch", 64)}, constants=[training])
    plan = bind(converted(graph, recompute=Recompute.CHEAP).train, {"batch": BATCH})
    assert any(bound.node.op_type == "Dropout" and bound.node.name.startswith(AGAIN) for bound in plan.nodes)
    expected = stepped(bind(converted(graph).train, {"batch": BATCH}), arena=True)
    assert stepped(plan, arena=True) == expected


def test_a_step_touches_the_planned_bytes_and_no_others() -> None:
    """The arena is larger than planned, and its bytes are marked: in two ways, for one may be what a kernel writes."""
    plan = bind(converted(resnet_graph(SMALL)).train, {"batch": BATCH})
    layout = plan.placement.layout
    feeds, values = drawn(plan)
    touched = np.zeros(2 * layout.arena_bytes, bool)
    for mark in (0x5A, 0xC3):
        with opened(ENGINES["serial"]()) as engine:
            pusher = StepPusher(Runtime(engine, Answering(values)))  # type: ignore[arg-type]
            assert pusher.arenas is not None
            memory, _ = pusher.arenas.take(2 * layout.arena_bytes)
            assert memory is not None
            memory[:] = mark
            pusher.push(plan, StepContext(0, 0, 7, "step"), feeds)
            engine.wait_all(WAIT_S)
            assert pusher.arenas.nbytes == 2 * layout.arena_bytes
            touched |= memory != mark
    assert not touched[layout.arena_bytes :].any()
    last = int(np.flatnonzero(touched)[-1]) + 1
    ends = [layout.offsets[plan.names[place]] + plan.types[place].nbytes for place in places_of(plan)]
    assert last == max(ends) > layout.arena_bytes - 64
    assert touched.mean() * 2 * layout.arena_bytes > 0.9 * layout.live_bytes


def places_of(plan: Plan) -> list[int]:
    return [place for place, name in enumerate(plan.names) if name in plan.placement.layout.offsets]


def wide(width: int = 512) -> Graph:
    """Large values and small parameters: functions, products and sums that write where the plan wants them."""
    nodes = [
        node("Mul", ["x", "w"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("Tanh", ["b"], ["c"]),
        node("Add", ["c", "a"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("ReduceMean", ["e"], ["loss"], keepdims=0),
    ]
    return line(nodes, [weight("w", 1, 1)], inputs={"x": floats("batch", width)})


def test_what_numpy_allocates_besides_is_little_where_kernels_write_directly() -> None:
    """With the arena, a run's own allocations are less than one value; without it, they are the values that live."""
    plan = bind(converted(wide(), fusion=False).evaluate, {"batch": 1024})
    value = 1024 * 512 * 4
    feeds, values = {"x": np.full((1024, 512), 0.5, np.float32)}, {"w": np.full((1, 1), 0.5, np.float32)}

    def allocated(*, arena: bool) -> int:
        with opened(ENGINES["serial"]()) as engine:
            pusher = StepPusher(Runtime(engine, Answering(values)), arena=arena)  # type: ignore[arg-type]
            for step in range(2):
                if step:
                    tracemalloc.start()
                pusher.push(plan, StepContext(step, 0, 7, "step"), feeds)
                engine.wait_all(WAIT_S)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert plan.placement.layout.arena_bytes == 2 * value
    assert allocated(arena=True) < value / 4
    assert allocated(arena=False) >= 2 * value


def test_a_run_has_no_other_memory_than_arena_gradients_and_what_one_kernel_takes() -> None:
    """Of a whole training step: the peak of all that NumPy allocates, the arena included, is the plan and a kernel's
    own columns, which the largest convolution's are."""
    plan = bind(converted(resnet_graph(SMALL)).train, {"batch": 16})
    layout = plan.placement.layout
    feeds, values = drawn(plan)
    stem = 16 * 16 * 16 * 3 * 49 * 4
    with opened(ENGINES["serial"]()) as engine:
        tracemalloc.start()
        pusher = StepPusher(Runtime(engine, Answering(values)))  # type: ignore[arg-type]
        pusher.push(plan, StepContext(0, 0, 7, "step"), feeds)
        engine.wait_all(WAIT_S)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert layout.arena_bytes < peak < layout.peak_bytes + 2 * stem


def test_gradients_stay_until_the_store_has_taken_them() -> None:
    """Pushes of two steps wait while all of both is computed; nothing computed waits for them."""
    plan = bind(converted(resnet_graph(SMALL)).train, {"batch": BATCH})
    feeds, values = drawn(plan)
    store = Answering(values, held=True)
    with opened(ENGINES["four threads"]()) as engine:
        pusher = StepPusher(Runtime(engine, store))  # type: ignore[arg-type]
        pushed = [pusher.push(plan, StepContext(step, 0, 7, f"step {step}"), feeds) for step in range(2)]
        engine.wait([variable for each in pushed for variable in each.outputs], WAIT_S)
        computed = threading.Event()
        assert pusher.arenas is not None
        _, order = pusher.arenas.take(0)
        engine.push(computed.set, [order], [], lane=COMPUTE, name="both steps are computed")
        assert computed.wait(WAIT_S)
        store.release()
        engine.wait_all(WAIT_S)
    assert len(store.pushed) == len(store.arrays) > 2


def test_arenas_are_used_again_and_grow() -> None:
    programs = converted(mlp(DType.FLOAT32))
    with opened(ENGINES["one thread"]()) as engine:
        small, large = (bind(programs.train, {"batch": batch}) for batch in (4, 64))
        pusher = StepPusher(Runtime(engine, Answering(drawn(small)[1])))  # type: ignore[arg-type]
        assert pusher.arenas is not None
        sizes = []
        for step, plan in enumerate((small, small, large, small, large)):
            pusher.push(plan, StepContext(step, 0, 7, "step"), drawn(plan)[0])
            sizes.append(pusher.arenas.nbytes)
        engine.wait_all(WAIT_S)
    first, second = small.placement.layout.arena_bytes, large.placement.layout.arena_bytes
    assert sizes == [first, first, second, second, second]


def test_a_step_that_fails_leaves_the_arena_to_the_next_one() -> None:
    plan = bind(converted(mlp(DType.FLOAT32)).train, {"batch": BATCH})
    feeds, values = drawn(plan)
    wrong = {**feeds, "labels": np.full(BATCH, 99)}
    with opened(ENGINES["one thread"]()) as engine:
        store = Answering(values)
        pusher = StepPusher(Runtime(engine, store))  # type: ignore[arg-type]
        pusher.push(plan, StepContext(0, 0, 7, "step 0"), wrong)
        with pytest.raises(WorkError, match="cross_entropy"):
            engine.wait_all(WAIT_S)
        pusher.push(plan, StepContext(1, 0, 7, "step 1"), feeds)
        engine.wait_all(WAIT_S)
    assert {key for key, step in store.pushed if step == 1} == set(values)


def test_a_kernels_wrong_type_is_told_before_it_is_written() -> None:
    """A copy into the arena would cast it silently."""
    plan = bind(converted(mlp(DType.FLOAT32)).train, {"batch": BATCH})
    bound = next(each for each in plan.nodes if each.node.name == "fc1")
    object.__setattr__(bound, "kernel", lambda context, inputs, attributes: (np.zeros((BATCH, 16)),))
    feeds, values = drawn(plan)
    assert feeds["x"].shape == (BATCH, FEATURES)
    with opened(ENGINES["serial"]()) as engine:
        pusher = StepPusher(Runtime(engine, Answering(values)))  # type: ignore[arg-type]
        pusher.push(plan, StepContext(0, 0, 7, "step"), feeds)
        with pytest.raises(WorkError, match=r"value 'h0' came as float64\[4, 16\], the plan has float32"):
            engine.wait_all(WAIT_S)


def deep() -> Graph:
    """Three layers; what each adds to the loss depends on its parameter."""
    nodes = [
        node("MatMul", ["x", "w0"], ["h0"]),
        node("Tanh", ["h0"], ["a0"]),
        node("MatMul", ["a0", "w1"], ["h1"]),
        node("Tanh", ["h1"], ["a1"]),
        node("MatMul", ["a1", "w2"], ["h2"]),
        node("ReduceMean", ["h2"], ["loss"], keepdims=0),
    ]
    return line(nodes, [weight(f"w{each}", 8, 8) for each in range(3)], inputs={"x": floats("batch", 8)})


def work_of(plan: Plan) -> list[str]:
    """The plan's work as words: a segment's pieces by how many nodes they have and what leaves behind them."""
    told = []
    for work in plan.work:
        if isinstance(work, Segment):
            told.append(
                "segment "
                + ", ".join(
                    f"{len(piece.nodes)}{''.join(f' -{each.key}' for each in piece.leaving)}" for piece in work.pieces
                )
            )
        else:
            told.append(" ".join(f"{each.node.op_type} {each.key}".strip() for each in work))
    return told


@pytest.mark.parametrize("threads", [None, 1])
def test_a_small_step_is_one_segment_between_what_arrives_and_what_leaves(threads: int | None) -> None:
    plan = bind(converted(deep()).train, {"batch": BATCH}, session_threads=threads)
    assert work_of(plan)[0] == "Fetch w0 Fetch w1 Fetch w2"
    assert work_of(plan)[1].startswith("segment ")
    assert work_of(plan)[1].endswith(" -w2 -w1 -w0")
    assert work_of(plan)[2:] == ["SendBarrier"]


def test_a_long_step_is_cut_where_a_value_arrives_and_where_one_can_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUT_OPERATIONS", "LONG_OPERATIONS"):
        monkeypatch.setattr(segments, name, BATCH * 8 * 8)
    plan = bind(converted(deep()).train, {"batch": BATCH})
    arrivals = [text for text in work_of(plan) if text.startswith("Fetch")]
    assert arrivals == ["Fetch w0", "Fetch w1", "Fetch w2"]
    last = [text for text in work_of(plan) if text.startswith("segment")][-1]
    assert [part.split(" -")[1:] for part in last.split(", ")] == [["w2"], ["w1"], ["w0"]]


def test_a_gradient_leaves_while_its_segment_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUT_OPERATIONS", "LONG_OPERATIONS"):
        monkeypatch.setattr(segments, name, BATCH * 8 * 8)
    plan = bind(converted(deep()).train, {"batch": BATCH})
    final = next(work for work in reversed(plan.work) if isinstance(work, Segment))
    bound = final.pieces[-1].nodes[-1]
    left, kernel = threading.Event(), bound.kernel
    assert kernel is not None

    def waits(*arguments: Any) -> Any:
        assert left.wait(WAIT_S), "nothing was sent while the last node was still to run"
        return kernel(*arguments)

    object.__setattr__(bound, "kernel", waits)
    feeds, values = drawn(plan)

    class Noticing(Answering):
        def push(self, key: str, step: int, gradient: Array) -> Future[None]:
            if key == "w2":
                left.set()
            return super().push(key, step, gradient)

    store = Noticing(values)
    with opened(ENGINES["one thread"]()) as engine:
        StepPusher(Runtime(engine, store)).push(plan, StepContext(0, 0, 7, "step"), feeds)  # type: ignore[arg-type]
        engine.wait_all(WAIT_S)
    assert {key for key, _ in store.pushed} == {"w0", "w1", "w2"}


def test_an_error_in_a_segment_names_the_node_and_what_it_read() -> None:
    plan = bind(converted(deep()).train, {"batch": BATCH})
    bound = next(each for each in plan.nodes if each.node.op_type == "Tanh")

    def fails(*_: Any) -> Any:
        raise ValueError("no more")

    object.__setattr__(bound, "kernel", fails)
    feeds, values = drawn(plan)
    with opened(ENGINES["one thread"]()) as engine:
        StepPusher(Runtime(engine, Answering(values))).push(plan, StepContext(3, 0, 7, "step 3"), feeds)  # type: ignore[arg-type]
        with pytest.raises(WorkError, match=r"Tanh '.*' of step 3 failed: ValueError: no more; inputs float32\[4, 8\]"):
            engine.wait_all(WAIT_S)


def test_kernels_of_onnxruntime_and_of_numpy_agree() -> None:
    """Gradients of whole steps, by bodies and by sessions, to the rounding of float32."""
    for name in ("mlp", "normalized", "transformer", "resnet"):
        train = converted(GRAPHS[name]()).train
        bodies, _ = stepped(bind(train, {"batch": BATCH}), arena=True, steps=1)
        plan = bind(train, {"batch": BATCH}, session_threads=1)
        sessions, _ = stepped(plan, arena=True, steps=1)
        assert any(bound.node.op_type == "Session" for bound in plan.nodes), name
        assert bodies.keys() == sessions.keys()
        # The gradient of a bias before a normalization is 0 but for rounding: all are measured by the largest.
        largest = max(float(np.abs(np.frombuffer(each, np.float32)).max()) for each in bodies.values())
        for key, expected in bodies.items():
            found, wanted = (np.frombuffer(each, np.float32) for each in (sessions[key], expected))
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5 * largest, err_msg=f"{name}: {key}")
