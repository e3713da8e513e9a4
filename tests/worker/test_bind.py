"""A plan is a program with static types, kernels and places; its values live until their last reader is done."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft_graph.ir import Node
from weft_graph.program import LOSS_SCALE
from weft_graph.types import BATCH, DType, TensorType
from weft_kernels.kernel import KernelContext
from weft_worker.bind import Binder, bind
from weft_worker.errors import BindError, ValueMismatchError
from weft_worker.plan import Plan
from weft_worker.table import ValueTable, described
from worker_graphs import CLASSES, FEATURES, HIDDEN, METRICS, mlp
from worker_jobs import programs_of

PROGRAMS = programs_of(mlp(dropout=0.5))


def sent(plan: Plan) -> set[str]:
    return {bound.key for bound in plan.nodes if bound.node.op_type == "Send"}


def test_every_type_is_static_and_follows_the_batch():
    plan = bind(PROGRAMS.train, {BATCH: 7})
    assert all(type_.is_static for type_ in plan.types)
    hidden = plan.names.index("h0")
    assert plan.types[hidden] == TensorType(DType.FLOAT64, (7, HIDDEN))


def test_a_train_plan_fetches_and_sends_every_key():
    plan = bind(PROGRAMS.train, {BATCH: 4})
    assert set(plan.fetched) == sent(plan) == {"w1", "b1", "w2", "b2"}
    assert set(plan.inputs) == {"x", "labels", LOSS_SCALE}
    assert set(plan.outputs) == {"loss", *METRICS}


def test_an_evaluation_plan_sends_nothing():
    plan = bind(PROGRAMS.evaluate, {BATCH: 4})
    assert sent(plan) == set()
    assert set(plan.fetched) == {"w1", "b1", "w2", "b2"}


def test_attributes_are_whole():
    plan = bind(PROGRAMS.train, {BATCH: 4})
    (gemm,) = [bound for bound in plan.nodes if bound.node.name == "fc1"]
    assert gemm.attributes["alpha"] == 1.0
    assert gemm.attributes["transB"] == 0


def test_a_size_of_batch_is_bound_once():
    binder = Binder(PROGRAMS.train)
    assert binder.plan({BATCH: 4}) is binder.plan({BATCH: 4})
    assert binder.plan({BATCH: 4}) is not binder.plan({BATCH: 5})


def test_a_dimension_that_nothing_fills_is_refused_by_name():
    with pytest.raises(BindError, match=r"'x' is float64\[batch, 6\]; nothing fills 'batch'"):
        bind(PROGRAMS.train, {})


def test_an_operator_without_a_kernel_is_refused_by_name(monkeypatch):
    def none(node: Node) -> None:
        raise KeyError(node.op_type)

    monkeypatch.setattr("weft_worker.bind.kernel_of", none)
    with pytest.raises(BindError, match="node 'fc1': there is no kernel for 'Gemm'"):
        bind(PROGRAMS.train, {BATCH: 4})


def test_an_output_that_nothing_makes_is_refused():
    program = replace(PROGRAMS.evaluate, outputs={"loss": "nowhere"})
    with pytest.raises(BindError, match="output 'loss' is 'nowhere'"):
        bind(program, {BATCH: 4})


def held(table: ValueTable) -> int:
    """Bytes of the values that are there now."""
    return sum(array.nbytes for array in table.arrays if array is not None)


def test_values_are_dropped_when_their_last_reader_is_done():
    """In runnable order the most that is there at once is less than half of all values together."""
    graph = mlp()
    plan = bind(programs_of(graph).evaluate, {BATCH: 512})
    table = ValueTable(plan)
    table.put(plan.inputs["x"], np.zeros((512, FEATURES)))
    table.put(plan.inputs["labels"], np.zeros(512, np.int64))
    most = 0
    for bound in plan.nodes:
        if bound.kernel is None:
            (place,) = bound.outputs
            table.put(place, np.zeros(plan.types[place].static_shape))
            continue
        outputs = bound.kernel(KernelContext("n"), table.take(bound.inputs), bound.attributes)
        for place, array in zip(bound.outputs, outputs, strict=False):
            if place is not None:
                table.put(place, np.asarray(array))
        table.release(bound.inputs)
        most = max(most, held(table))
    assert most < sum(type_.nbytes for type_ in plan.types) / 2
    table.release(plan.outputs.values())
    assert held(table) == 0


def test_a_value_that_nobody_reads_is_not_kept():
    plan = bind(PROGRAMS.train, {BATCH: 4})
    unread = [place for place, readers in enumerate(plan.readers) if readers == 0]
    table = ValueTable(plan)
    before = held(table)
    for place in unread:
        type_ = plan.types[place]
        table.put(place, np.zeros(type_.static_shape, type_.dtype.numpy))
    assert held(table) == before


@pytest.mark.parametrize("array", [np.zeros((4, CLASSES)), np.zeros((4, FEATURES), np.float32)], ids=["shape", "dtype"])
def test_a_value_of_another_type_than_the_plans_is_refused_by_name(array):
    plan = bind(PROGRAMS.train, {BATCH: 4})
    with pytest.raises(ValueMismatchError, match=r"value 'x' came as float\d\d\[4, \d\], the plan has float64\[4, 6\]"):
        ValueTable(plan).put(plan.inputs["x"], array)


def test_arrays_are_described_by_type():
    assert described([np.zeros((2, 3), np.float32), None]) == "inputs float32[2, 3], none"
    assert described([]) == "inputs none"
