"""The body of a Fused as one generated CUDA kernel: each thread reads an element of every input and writes its result.

Arrays may lie in any order: inputs are read where they are, broadcast and turned ones too, and results are written
where the plan has them. The text depends on element types and on which arrays lie differently, never on sizes, so one
kernel serves every batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.layout.strides import Sizes, expanded, in_rows, made, order_of
from weft_graph.schema import MemoryOrder, Strides
from weft_kernels.body import Same
from weft_kernels.cuda.module import C_TYPES, has_kernels, launch_generated
from weft_kernels.cuda.pointwise import NotTraceableError, Trace, Traced, c_type, literal, shown, write_down
from weft_kernels.kernel import Array, KernelContext

_MOST_KEPT: Final = 1024
_MOST_PARAMETER_BYTES: Final = 4096
"""What CUDA takes as a kernel's parameters on every GPU."""

Types = tuple[np.dtype[Any], ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """How a kernel goes over arrays of one shape, in as few dimensions as tell them apart: `dims`, the slowest first.

    Element e of an array that lies in this order is its e-th. `ways` are how the others lie, each a step (of elements)
    for each of `dims`, 0 where they repeat; `way` has for each array its number in `ways`, -1 for one in order.
    """

    dims: Sizes
    ways: tuple[Strides, ...]
    way: tuple[int, ...]

    @property
    def reach(self) -> int:
        """How far from its first element an array has others, at most."""
        return max((sum((d - 1) * abs(s) for d, s in zip(self.dims, way, strict=True)) for way in self.ways), default=0)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What the kernel is told of it: all dimensions but the first, and the steps that are not 0."""
        steps = (step for way in self.ways for step in way if step)
        return (*self.dims[1:], *steps)


def walk(shape: Sizes, strides: Sequence[Strides]) -> Walk:
    """Over arrays of this shape with these strides, in the order of the last one, which is written."""
    order = order_of(shape, strides[-1]) or range(len(shape))
    axes = [axis for axis in order if shape[axis] != 1]
    steps = [tuple(array[axis] for array in strides) for axis in axes]
    ends = [
        place
        for place, (outer, inner) in enumerate(pairwise(steps))
        if any(a != b * shape[axes[place + 1]] for a, b in zip(outer, inner, strict=True))
    ]
    bounds = [0, *(end + 1 for end in ends), len(axes)] if axes else [0]
    dims = tuple(math.prod(shape[axis] for axis in axes[low:high]) for low, high in pairwise(bounds))
    lie = [tuple(steps[high - 1][array] for high in bounds[1:]) for array in range(len(strides))]
    ways = tuple(dict.fromkeys(each for each in lie if each != in_rows(dims)))
    return Walk(dims, ways, tuple(ways.index(each) if each in ways else -1 for each in lie))


@dataclass(frozen=True, slots=True)
class _Elements:
    """What the kernel does to element e of each array, `a0[o0]` and on and then the results `r0[p0]`, whose types are
    `results`."""

    lines: tuple[str, ...]
    results: Types


def run_generated(context: KernelContext, body: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """The body's outputs, on arrays of `context.xp`; None where some node has no form in CUDA C."""
    key, types = Same(body), tuple(array.dtype for array in inputs)
    elements = _elements(key, types)
    if elements is None:
        return None
    shape = np.broadcast_shapes(*(array.shape for array in inputs))
    results = []
    for number, dtype in enumerate(elements.results):
        result = context.out(number, dtype)
        if result is None or result.shape != shape:
            result = _empty(context.xp, shape, dtype, inputs)
        results.append(result)
    arrays = (*inputs, *results)
    text, numbers, reach = _prepared(key, types, shape, tuple((each.shape, _strides(each)) for each in arrays))
    if not text:
        return None
    count = math.prod(shape)
    launch_generated(context.xp, text, count, (*arrays, count, *numbers), strided=True, reach=reach)
    return tuple(results)


def run_alone(
    domain: str,
    op_type: str,
    context: KernelContext,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, AttributeValue],
) -> tuple[Array, ...] | None:
    """As `run_generated`, for one node of that operator."""
    if not has_kernels(context.xp):
        return None
    there = tuple(array is not None for array in inputs)
    body = _alone(domain, op_type, there, tuple(attributes.items()))
    return run_generated(context, body, [array for array in inputs if array is not None])


@lru_cache(maxsize=_MOST_KEPT)
def _alone(domain: str, op_type: str, there: tuple[bool, ...], attributes: tuple[tuple[str, Any], ...]) -> Subgraph:
    names = tuple(f"x{place}" if given else "" for place, given in enumerate(there))
    node = Node(op_type, op_type, names, ("y",), dict(attributes), domain)
    return Subgraph(tuple(filter(None, names)), (), (node,), ("y",))


def _strides(array: Array) -> Strides:
    return tuple(step // array.itemsize for step in array.strides)


def _empty(xp: Any, shape: Sizes, dtype: np.dtype[Any], inputs: Sequence[Array]) -> Array:
    """A new array that lies as the first input of its shape, as a plan has it."""
    order = order_of(shape, made(MemoryOrder.INPUT, shape, ((each.shape, _strides(each)) for each in inputs)))
    assert order is not None, "it has no gaps"
    array: Array = xp.empty(tuple(shape[axis] for axis in order), dtype=dtype)
    return array.transpose(tuple(order.index(axis) for axis in range(len(order))))


@lru_cache(maxsize=_MOST_KEPT)
def _prepared(
    key: Same, types: Types, shape: Sizes, arrays: tuple[tuple[Sizes, Strides], ...]
) -> tuple[str, tuple[int, ...], int]:
    """(the kernel's text, its numbers behind the count, `reach`); no text where CUDA does not take so much of it."""
    over = walk(shape, [expanded(sizes, strides, shape) for sizes, strides in arrays])
    if 8 * (len(arrays) + 1 + len(over.numbers)) > _MOST_PARAMETER_BYTES:
        return "", (), 0
    return generate(key.subgraph, types, over), over.numbers, over.reach


@lru_cache(maxsize=_MOST_KEPT)
def _elements(key: Same, types: Types) -> _Elements | None:
    try:
        return _written_down(key.subgraph, types)
    except NotTraceableError:
        return None


def generate(body: Subgraph, types: Types, over: Walk, *, kernel: str = "pointwise") -> str:
    """The kernel of a body whose inputs have these element types, over inputs and then results. Its arguments are the
    inputs, the results, the count of elements, and the walk's numbers.

    Raises NotTraceableError where an operator or a type has no form in CUDA C.
    """
    elements = _written_down(body, types)
    names = [*(f"o{place}" for place in range(len(types))), *(f"p{place}" for place in range(len(elements.results)))]
    offsets = (
        f"const index_t {name} = {f'w{way}' if way >= 0 else 'e'};" for name, way in zip(names, over.way, strict=True)
    )
    parameters = [
        *(f"const {C_TYPES[dtype.name]}* a{place}" for place, dtype in enumerate(types)),
        *(f"{C_TYPES[dtype.name]}* r{place}" for place, dtype in enumerate(elements.results)),
        "index_t count",
        *(f"index_t d{dim}" for dim in range(1, len(over.dims))),
        *(f"index_t s{way}_{dim}" for way, steps in enumerate(over.ways) for dim, step in enumerate(steps) if step),
    ]
    lines = "\n".join(f"        {line}" for line in (*_indices(over), *offsets, *elements.lines))
    signature = f"__global__ void {kernel}({', '.join(parameters)})"
    operators = ", ".join(node.op_type for node in body.nodes)
    return f"// {shown(operators)}, generated.\n{signature} {{\n    GRID_LOOP(e, count) {{\n{lines}\n    }}\n}}\n"


def _written_down(body: Subgraph, types: Types) -> _Elements:
    _check_types((*types, *(constant.array.dtype for constant in body.constants)))
    trace = Trace()
    values: dict[str, Traced] = {}
    for place, (name, dtype) in enumerate(zip(body.inputs, types, strict=True)):
        trace.lines.append(f"// {shown(name)}")
        values[name] = trace.value(dtype, f"{c_type(dtype)}(a{place}[o{place}])")
    for constant in body.constants:
        if constant.array.size != 1:
            raise NotTraceableError(f"constant {constant.name!r} has {constant.array.size} elements")
        values[constant.name] = trace.value(constant.array.dtype, literal(constant.array.item(), constant.array.dtype))
    for node in body.nodes:
        write_down(node, trace, values)
    results = tuple(values[name].dtype for name in body.outputs)
    _check_types(results)
    stores = (
        f"r{place}[p{place}] = {C_TYPES[dtype.name]}({values[name].name});"
        for place, (name, dtype) in enumerate(zip(body.outputs, results, strict=True))
    )
    return _Elements((*trace.lines, *stores), results)


def _check_types(types: Sequence[np.dtype[Any]]) -> None:
    for dtype in types:
        if dtype.name not in C_TYPES:
            raise NotTraceableError(f"{dtype.name} has no form in CUDA C")


def _indices(over: Walk) -> Iterator[str]:
    """The place of element `e` along each dimension, the last one first, and where it lies each way."""
    rest = "e"
    for dim in range(len(over.dims) - 1, 0, -1):
        yield f"const index_t i{dim} = {rest} % d{dim}, q{dim} = {rest} / d{dim};"
        rest = f"q{dim}"
    if over.ways:
        yield f"const index_t i0 = {rest};"
    for way, steps in enumerate(over.ways):
        yield f"const index_t w{way} = {' + '.join(f'i{dim} * s{way}_{dim}' for dim, s in enumerate(steps) if s) or 0};"
