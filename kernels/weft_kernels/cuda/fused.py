"""The body of a Fused as one generated CUDA kernel: each thread reads an element of every input and writes its result.

The text depends on element types and on which dimensions inputs have, never on sizes, so one kernel serves every batch.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.ir import Subgraph
from weft_kernels.broadcast_shape import broadcast_shape
from weft_kernels.cuda.module import C_TYPES, CudaSource, launch_source, read_source
from weft_kernels.cuda.pointwise import NotTraceableError, Trace, Traced, c_type, literal, shown, write_down
from weft_kernels.kernel import Array, KernelContext

_MOST_KEPT: Final = 1024

Full = tuple[tuple[bool, ...], ...]
Types = tuple[np.dtype[Any], ...]


@dataclass(frozen=True, slots=True)
class Generated:
    """A kernel. Its arguments are the inputs, the outputs, of the types `results`, the count of elements, and all
    dimensions but the first."""

    source: CudaSource
    results: Types


_kept: OrderedDict[tuple[int, Types, Full], tuple[Subgraph, Generated | None]] = OrderedDict()


def run_generated(context: KernelContext, body: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    """The body's outputs, on arrays of `context.xp`; None where some node has no form in CUDA C."""
    xp = context.xp
    shape = broadcast_shape([array.shape for array in inputs])
    key = id(body), tuple(array.dtype for array in inputs), shape.full
    if key not in _kept:
        # The body is kept with its kernel: no other one has its id then.
        _kept[key] = body, _or_none(body, key[1], shape.full)
        if len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
    generated = _kept[key][1]
    if generated is None:
        return None
    results = tuple(xp.empty(shape.shape, dtype=dtype) for dtype in generated.results)
    arrays = (*(xp.ascontiguousarray(array) for array in inputs), *results)
    count = math.prod(shape.dims)
    launch_source(xp, generated.source, count, (*arrays, count, *shape.dims[1:]))
    return results


def _or_none(body: Subgraph, types: Types, full: Full) -> Generated | None:
    try:
        return generate(body, types, full)
    except NotTraceableError:
        return None


def generate(body: Subgraph, types: Types, full: Full, *, kernel: str = "pointwise") -> Generated:
    """The kernel of a body whose inputs have these element types, and elements of their own along these dimensions.

    Raises NotTraceableError where an operator or a type has no form in CUDA C.
    """
    _check_types((*types, *(constant.array.dtype for constant in body.constants)))
    trace = Trace()
    rank = len(full[0])
    trace.lines += _indices(rank)
    values: dict[str, Traced] = {}
    for place, (name, dtype, along) in enumerate(zip(body.inputs, types, full, strict=True)):
        trace.lines.append(f"// {shown(name)}")
        values[name] = trace.value(dtype, f"{c_type(dtype)}(a{place}[{_offset(along)}])")
    for constant in body.constants:
        if constant.array.size != 1:
            raise NotTraceableError(f"constant {constant.name!r} has {constant.array.size} elements")
        values[constant.name] = trace.value(constant.array.dtype, literal(constant.array.item(), constant.array.dtype))
    for node in body.nodes:
        write_down(node, trace, values)
    results = tuple(values[name].dtype for name in body.outputs)
    _check_types(results)
    stores = [
        f"r{place}[e] = {C_TYPES[dtype.name]}({values[name].name});"
        for place, (name, dtype) in enumerate(zip(body.outputs, results, strict=True))
    ]
    parameters = [
        *(f"const {C_TYPES[dtype.name]}* a{place}" for place, dtype in enumerate(types)),
        *(f"{C_TYPES[dtype.name]}* r{place}" for place, dtype in enumerate(results)),
        "index_t count",
        *(f"index_t d{dim}" for dim in range(1, rank)),
    ]
    lines = "\n".join(f"        {line}" for line in (*trace.lines, *stores))
    signature = f"__global__ void {kernel}({', '.join(parameters)})"
    operators = ", ".join(node.op_type for node in body.nodes)
    text = f"// {shown(operators)}, generated.\n{signature} {{\n    GRID_LOOP(e, count) {{\n{lines}\n    }}\n}}\n"
    return Generated(read_source("generated.cu", text), results)


def _check_types(types: Sequence[np.dtype[Any]]) -> None:
    for dtype in types:
        if dtype.name not in C_TYPES:
            raise NotTraceableError(f"{dtype.name} has no form in CUDA C")


def _indices(rank: int) -> Iterator[str]:
    """The place of element `e` along each dimension, the last one first."""
    rest = "e"
    for dim in range(rank - 1, 0, -1):
        yield f"const index_t i{dim} = {rest} % d{dim}, q{dim} = {rest} / d{dim};"
        rest = f"q{dim}"
    if rank > 1:
        yield f"const index_t i0 = {rest};"


def _offset(along: Sequence[bool]) -> str:
    """Where an input that has elements along these dimensions has that of element `e`."""
    if all(along):
        return "e"
    text = ""
    for dim, full in enumerate(along):
        if full:
            text = f"({text}) * d{dim} + i{dim}" if text else f"i{dim}"
    return text or "0"
