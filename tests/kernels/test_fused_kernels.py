"""Fused nodes: the bits of the nodes run one by one on the CPU, and generated kernels that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import cuda_on_host
import nvrtc
from sample_graphs import node, scalar
from weft_graph.infer import Inference
from weft_graph.ir import Node, Subgraph
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import schema_of
from weft_graph.types import DType, TensorType, array_type
from weft_kernels import broadcast_shape, fused_body
from weft_kernels.broadcast_shape import broadcast_shape as shape_of
from weft_kernels.cuda import module
from weft_kernels.cuda.fused import Walk, generate, walk
from weft_kernels.cuda.module import CudaSource, generated_source, read_source
from weft_kernels.cuda.pointwise import NotTraceableError
from weft_kernels.kernel import Array, KernelContext, kernel_of, kernels
from weft_kernels.run import KernelError, run_node, run_nodes

needs_compiler = pytest.mark.skipif(
    cuda_on_host.why_not() is not None, reason=f"kernels cannot be run on this CPU: {cuda_on_host.why_not()}"
)
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() is not None, reason=str(nvrtc.why_not()))

ROWS = ((7, 130), (130,), (7, 1), ())
"""Shapes of x, of a value for each column, of one for each row, and of a number."""
SHAPES = (
    ROWS,
    ((1000,), (1000,), (1,), ()),
    ((3, 5, 64), (5, 1), (3, 1, 1), (1, 1, 64)),
    ((2, 300, 3), (2, 1, 3), (300, 3), (3,)),
    ((1, 1), (1,), (), ()),
    ((0, 4), (4,), (0, 1), ()),
)


def gelu_like() -> Subgraph:
    """x * sigmoid(x * column) + row, a bound on it, and a choice by a comparison of what came before.

    Two values on the way are outputs too.
    """
    nodes = (
        node("Mul", ["x", "column"], ["scaled"]),
        node("Sigmoid", ["scaled"], ["gate"]),
        node("Mul", ["x", "gate"], ["gated"]),
        node("Add", ["gated", "row"], ["moved"]),
        node("Identity", ["moved"], ["same"]),
        node("Exp", ["same"], ["grown"]),
        node("Greater", ["moved", "number"], ["above"]),
        node("Min", ["grown", "number"], ["cut"]),
        node("Where", ["above", "cut", "same"], ["y"]),
    )
    return Subgraph(("x", "column", "row", "number"), (), nodes, ("y", "gated", "above"))


def casting() -> Subgraph:
    """Through three element types, one of them twice, with a cast that changes nothing."""
    nodes = (
        node("Cast", ["x"], ["wide"], to=NUMBER_OF_DTYPE[DType.FLOAT64]),
        node("Cast", ["wide"], ["as_wide"], to=NUMBER_OF_DTYPE[DType.FLOAT64]),
        node("Mul", ["as_wide", "as_wide"], ["square"]),
        node("Cast", ["square"], ["narrow"], to=NUMBER_OF_DTYPE[DType.FLOAT32]),
        node("Clip", ["narrow", "", "most"], ["c"]),
        node("Tanh", ["c"], ["t"]),
        node("Add", ["t", "narrow"], ["y"]),
    )
    return Subgraph(("x",), (), nodes, ("y",), (scalar("most", 1.5, "float32"),))


def fused(body: Subgraph) -> Node:
    return Node("Fused", "weft.fused/n_y", body.inputs, body.outputs, {"body": body}, "weft")


def one_by_one(body: Subgraph, arrays: Sequence[Array]) -> list[Array]:
    values = dict(zip(body.inputs, arrays, strict=True))
    values.update((constant.name, constant.array) for constant in body.constants)
    run_nodes(KernelContext(""), body.nodes, values, keep=body.outputs)
    return [values[name] for name in body.outputs]


def drawn(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Array]:
    draw = np.random.default_rng(5)
    return [np.asarray(draw.normal(size=shape)).astype(dtype) for shape in shapes]


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of at least 64 elements, so that small arrays have many."""
    for each in (broadcast_shape, fused_body):
        monkeypatch.setattr(each, "FUSED_ELEMENTS", 64)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_parts_have_the_bits_of_the_nodes_run_one_by_one(shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
    arrays = drawn(shapes, dtype)
    made = run_node(KernelContext(""), fused(gelu_like()), arrays)
    expected = one_by_one(gelu_like(), arrays)
    assert [each.dtype for each in made] == [each.dtype for each in expected]
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("in_parts")
def test_a_value_that_is_passed_on_is_not_overwritten_by_the_next_that_uses_its_buffer() -> None:
    (x,) = drawn([(31, 67)], "float32")
    before = x.copy()
    np.testing.assert_array_equal(run_node(KernelContext(""), fused(casting()), [x])[0], one_by_one(casting(), [x])[0])
    np.testing.assert_array_equal(x, before)


@pytest.mark.usefixtures("in_parts")
def test_arrays_that_do_not_lie_in_order_are_run_whole() -> None:
    arrays = drawn(ROWS, "float32")
    turned = [np.ascontiguousarray(arrays[0].T).T, *arrays[1:]]
    assert not turned[0].flags.c_contiguous
    made = run_node(KernelContext(""), fused(gelu_like()), turned)
    np.testing.assert_array_equal(made[0], one_by_one(gelu_like(), arrays)[0])


@pytest.mark.usefixtures("in_parts")
def test_the_result_lies_where_the_plan_wants_it_also_in_the_place_of_an_input() -> None:
    arrays = drawn(ROWS, "float32")
    expected = one_by_one(gelu_like(), arrays)
    place = np.empty_like(arrays[0])
    for target in (place, arrays[0]):
        made = fused_body.run_fused(KernelContext("", placed=(target,)), gelu_like(), arrays)
        assert np.shares_memory(made[0], target)
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("count", [3, 500])
def test_an_error_names_the_node_inside(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: Any) -> tuple[Array, ...]:
        raise MemoryError("no room")

    monkeypatch.setitem(kernels(), ("", "Exp"), without_memory)  # type: ignore[arg-type]  # it is a dict
    monkeypatch.setattr(fused_body, "body_of", lambda node: kernels()[node.domain, node.op_type])
    arrays = drawn([(count,), (count,), (1,), ()], "float32")
    message = rf"node 'n_grown' \(Exp\): no room \[same is float32\[{min(count, 64)}\]\]"
    with pytest.raises(KernelError, match=message):
        run_node(KernelContext(""), fused(gelu_like()), arrays)


def test_types_are_those_of_the_body() -> None:
    inference = Inference({"x": TensorType(DType.FLOAT16, ("batch", 3))})
    assert inference.add(fused(casting())) == (TensorType(DType.FLOAT32, ("batch", 3)),)


def test_parts_cover_everything_once_and_begin_behind_whole_blocks() -> None:
    for shapes in SHAPES[:4]:
        shape = shape_of(shapes)
        covered = np.zeros(shape.dims, int)
        places = np.arange(covered.size).reshape(shape.dims)
        for part in shape.parts():
            covered[part] += 1
            inside = places[part].reshape(-1)
            assert inside[0] % 64 == 0
            np.testing.assert_array_equal(inside, np.arange(inside[0], inside[0] + inside.size))
        assert covered.min() == covered.max() == 1


def generated(body: Subgraph, arrays: Sequence[Array], index: module.Index = 32) -> CudaSource:
    """For arrays as they lie, and results in rows."""
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    wide = [np.broadcast_to(array, shape) for array in arrays] + [np.empty(shape)] * len(body.outputs)
    over = walk(shape, [tuple(step // each.itemsize for step in each.strides) for each in wide])
    return generated_source(generate(body, tuple(array.dtype for array in arrays), over), index, strided=True)


@needs_compiler
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_one_generated_kernel_computes_what_the_nodes_do(shapes: Sequence[tuple[int, ...]]) -> None:
    strict_arrays = pytest.importorskip("strict_arrays")
    arrays = drawn(shapes, "float32")
    with strict_arrays.own_kernels() as xp:
        context = KernelContext("", xp=xp)
        made = run_node(context, fused(gelu_like()), [strict_arrays.to_device(array) for array in arrays])
        if arrays[0].size:
            assert strict_arrays.launched[-1] == "pointwise"
    for one, expected in zip(made, one_by_one(gelu_like(), arrays), strict=True):
        assert one.shape == expected.shape
        np.testing.assert_allclose(strict_arrays.to_host(one), expected, rtol=1e-5, atol=1e-6)


LIES: dict[str, tuple[Callable[[Array], Array], ...]] = {
    "rows": (np.asarray,) * 4,
    "turned": (lambda x: x.T.copy().T, np.asarray, lambda x: x.T.copy().T, np.asarray),
    "every other": (lambda x: np.repeat(x, 2, -1)[..., ::2], lambda x: np.repeat(x, 3)[::3], np.asarray, np.asarray),
    "backwards": (lambda x: x[::-1, ::-1].copy()[::-1, ::-1], lambda x: x[::-1].copy()[::-1], np.asarray, np.asarray),
    "repeated": (np.asarray, lambda x: np.broadcast_to(x, (7, 130)), np.asarray, lambda x: np.broadcast_to(x, (7, 1))),
}
"""How x, a value for each column, one for each row and a number lie in memory."""


def places_of(shape: tuple[int, ...], dtypes: Sequence[Any], *, turned: bool) -> tuple[Array, ...]:
    return tuple(np.empty(shape[::-1], dtype).T if turned else np.empty(shape, dtype) for dtype in dtypes)


@needs_compiler
@pytest.mark.parametrize("index", [32, 64])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "turned"])
@pytest.mark.parametrize("lies", LIES)
def test_a_generated_kernel_reads_and_writes_arrays_where_they_lie(
    lies: str, turned: bool, index: module.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied and nothing allocated where the plan has places; the bits are those of arrays in rows."""
    strict_arrays = pytest.importorskip("strict_arrays")
    monkeypatch.setattr(module, "INDEX_32_ELEMENTS", 1 << 20 if index == 32 else 0)
    given = drawn(ROWS, "float32")
    arrays = [lie(array) for lie, array in zip(LIES[lies], given, strict=True)]
    with strict_arrays.own_kernels() as xp:
        expected = run_node(KernelContext("", xp=xp), fused(gelu_like()), list(map(strict_arrays.to_device, given)))
        dtypes = [array.dtype for array in expected]
        placed = tuple(map(strict_arrays.StrictArray, places_of(ROWS[0], dtypes, turned=turned)))
        for name in ("ascontiguousarray", "empty"):
            monkeypatch.setattr(strict_arrays.StrictModule, name, None, raising=False)
        inputs = [strict_arrays.StrictArray(array) for array in arrays]
        context = KernelContext("", xp=xp, placed=placed)
        made = kernel_of(fused(gelu_like()))(context, inputs, {"body": gelu_like()})
    assert all(one is place for one, place in zip(made, placed, strict=True))
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_array_equal(strict_arrays.to_host(one), strict_arrays.to_host(other))


@needs_compiler
def test_a_generated_kernel_may_write_in_the_place_of_an_input() -> None:
    strict_arrays = pytest.importorskip("strict_arrays")
    arrays = drawn(ROWS, "float32")
    expected = one_by_one(gelu_like(), arrays)
    with strict_arrays.own_kernels() as xp:
        inputs = list(map(strict_arrays.to_device, arrays))
        context = KernelContext("", xp=xp, placed=(inputs[0],))
        made = kernel_of(fused(gelu_like()))(context, inputs, {"body": gelu_like()})
    assert made[0] is inputs[0]
    for one, other in zip(made, expected, strict=True):
        np.testing.assert_allclose(strict_arrays.to_host(one), other, rtol=1e-5, atol=1e-6)


@needs_compiler
@pytest.mark.parametrize("op_type", ["Gelu", "Clip", "Where"])
def test_a_pointwise_node_alone_is_one_kernel_too(op_type: str) -> None:
    """It writes to its place and makes nothing on the way, as many functions of the array module would."""
    strict_arrays = pytest.importorskip("strict_arrays")
    x, y = drawn([(7, 5), (5,)], "float32")
    given = {"Gelu": [x], "Clip": [x, None, np.float32(0.5)], "Where": [x > 0, x, y]}[op_type]
    names = tuple(f"x{place}" if array is not None else "" for place, array in enumerate(given))
    alone = Node(op_type, "n", names, ("y",))
    arrays = [None if array is None else np.asarray(array) for array in given]
    (expected,) = run_node(KernelContext(""), alone, arrays)
    with strict_arrays.own_kernels() as xp:
        place = strict_arrays.StrictArray(np.empty_like(expected))
        inputs = [None if array is None else strict_arrays.to_device(array) for array in arrays]
        strict_arrays.launched.clear()
        strict_arrays.allocated.clear()
        context = KernelContext("", xp=xp, placed=(place,))
        (made,) = kernel_of(alone)(context, inputs, schema_of(alone).attributes_of(alone))
    assert made is place
    assert (strict_arrays.launched, strict_arrays.allocated) == (["pointwise"], [])
    np.testing.assert_allclose(strict_arrays.to_host(made), expected, rtol=1e-5, atol=1e-6)


def test_what_lies_alike_is_gone_over_in_one_dimension() -> None:
    """In the order of what is written, whatever that is; what lies otherwise has steps, alike ones once."""
    rows, turned, column = (60, 12, 1), (12, 60, 1), (0, 1, 0)
    assert walk((4, 5, 12), [rows, rows]) == Walk((240,), (), (-1, -1))
    assert walk((5, 5, 12), [turned, turned]) == Walk((300,), (), (-1, -1))
    assert walk((5, 5, 12), [turned, column, rows, column, rows]) == Walk(
        (5, 5, 12), ((12, 60, 1), (0, 1, 0)), (0, 1, -1, 1, -1)
    )
    assert walk((7,), [(-1,), (1,)]) == Walk((7,), ((-1,),), (0, -1))
    assert walk((), [(), ()]) == Walk((), (), (-1, -1))


def test_new_results_lie_as_the_first_input_of_their_shape() -> None:
    """As a plan has them, so that they need not be copied into it."""
    strict_arrays = pytest.importorskip("strict_arrays")
    arrays = drawn(ROWS, "float32")
    with strict_arrays.own_kernels() as xp:
        inputs = [strict_arrays.StrictArray(array) for array in (arrays[0].T.copy().T, *arrays[1:])]
        made = run_node(KernelContext("", xp=xp), fused(gelu_like()), inputs)
    assert all(strict_arrays.to_host(each).T.flags.c_contiguous for each in made)


@needs_compiler
def test_a_type_without_a_form_in_c_is_run_node_by_node() -> None:
    strict_arrays = pytest.importorskip("strict_arrays")
    body = Subgraph(("x",), (), (node("Equal", ["x", "x"], ["e"]), node("Not", ["e"], ["y"])), ("y",))
    x = np.arange(6).astype("float8_e4m3fn")
    with strict_arrays.own_kernels() as xp:
        (made,) = run_node(KernelContext("", xp=xp), fused(body), [strict_arrays.to_device(x)])
    np.testing.assert_array_equal(strict_arrays.to_host(made), np.zeros(6, bool))
    with pytest.raises(NotTraceableError, match="float8_e4m3fn has no form"):
        generated(body, [x])


@needs_nvrtc
def test_generated_kernels_compile() -> None:
    for body, arrays in ((gelu_like(), drawn(SHAPES[2], "float16")), (casting(), drawn([(4,)], "float32"))):
        for index in (32, 64):
            size, names = nvrtc.compile_for(generated(body, arrays, index), "sm_90")
            assert size > 0
            assert list(names) == ["pointwise"]


def test_names_of_users_end_no_comment() -> None:
    hostile: Any = "x */ #error\\\n??/"
    body = Subgraph((hostile,), (), (Node("Neg", hostile, (hostile,), ("y",)),), ("y",))
    text = generated(body, [np.zeros(3, np.float32)], 64).text
    own = text[text.index("// Neg, generated") :]
    assert "*/" not in own
    assert "\\" not in own
    assert own.count("\n") == read_source("x.cu", own).text.count("\n") - text.count("\n") + own.count("\n")


def test_array_types_key_the_prepared_bodies() -> None:
    """One body for several element types: none is run with another's buffers."""
    body = Subgraph(("x",), (), (node("Mul", ["x", "x"], ["s"]), node("Neg", ["s"], ["y"])), ("y",))
    for dtype in ("float32", "float64", "int32"):
        x = np.arange(1 << 18).astype(dtype) % 7
        (made,) = run_node(KernelContext(""), fused(body), [x])
        assert array_type(made) == array_type(x)
        np.testing.assert_array_equal(made, -(x * x))
