"""Runs the body of a Fused on NumPy's arrays, a part that stays in a core's cache at a time.

The bits are those of the nodes run one after the other: parts begin behind whole blocks of elements, and a body whose
arrays do not lie in order is run whole. What nodes make on the way lies in a few arrays of a part's size, which every
part uses again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from weft_graph.infer import Inference
from weft_graph.ir import AttributeValue, Node, Subgraph
from weft_graph.schema import schema_of
from weft_graph.types import TensorType, array_type
from weft_kernels.blocks import FUSED_ELEMENTS
from weft_kernels.body import Body, Same
from weft_kernels.broadcast_shape import BroadcastShape, broadcast_shape
from weft_kernels.errors import failed
from weft_kernels.kernel import Array, Kernel, KernelContext, body_of

Dtype = np.dtype[Any]

_PROGRAMS_KEPT: Final = 1024
"""A worker has a few programs, each with up to some hundred bodies."""


def run_fused(context: KernelContext, subgraph: Subgraph, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The body's outputs, of the shape that the inputs broadcast to. Raises KernelError."""
    shape = broadcast_shape([array.shape for array in inputs])
    if not _is_cut(shape, inputs):
        return Body(context, subgraph, ())(inputs)
    program = program_of(Same(subgraph), tuple(array_type(array) for array in inputs))
    arrays = [array.reshape(shape.of(number)) for number, array in enumerate(inputs)]
    results = [_result(context, number, shape, dtype) for number, dtype in enumerate(program.results)]
    parts = list(shape.parts())
    largest = max(math.prod(result[part].shape) for result in results[:1] for part in parts)
    buffers = [np.empty(largest, dtype) for dtype in program.buffers]
    for part in parts:
        values = [array[shape.taken(number, part)] for number, array in enumerate(arrays)]
        program.run(values, buffers, [result[part] for result in results])
    return tuple(result.reshape(shape.shape) for result in results)


def _is_cut(shape: BroadcastShape, inputs: Sequence[Array]) -> bool:
    return math.prod(shape.dims) > FUSED_ELEMENTS and all(array.flags.c_contiguous for array in inputs)


def _result(context: KernelContext, number: int, shape: BroadcastShape, dtype: Dtype) -> Array:
    """An array for output `number` over `shape.dims`: that which the plan has for it, where it has one."""
    placed = context.out(number, dtype)
    if placed is not None and placed.flags.c_contiguous and placed.shape == shape.shape:
        return placed.reshape(shape.dims)
    return np.empty(shape.dims, dtype)


@dataclass(frozen=True, slots=True)
class _Step:
    """A node with the numbers of the values that it reads, -1 for one that is left out. Its output goes to a buffer,
    or, where `buffer` is below 0, to result number -1 - `buffer`."""

    node: Node
    body: Kernel
    attributes: Mapping[str, AttributeValue]
    reads: tuple[int, ...]
    buffer: int


@dataclass(frozen=True, slots=True)
class Program:
    """A body for inputs of certain types. Values are numbered: inputs, constants, then what each step makes."""

    steps: tuple[_Step, ...]
    constants: tuple[Array, ...]
    buffers: tuple[Dtype, ...]
    results: tuple[Dtype, ...]

    def run(self, inputs: Sequence[Array], buffers: Sequence[Array], results: Sequence[Array]) -> None:
        """Fills `results`, which are of one shape; `buffers` have as many elements or more. Raises KernelError."""
        values = [*inputs, *self.constants]
        size, shape = results[0].size, results[0].shape
        shaped = [buffer[:size].reshape(shape) for buffer in buffers]
        with np.errstate(all="ignore"):
            for step in self.steps:
                given = [values[place] if place >= 0 else None for place in step.reads]
                is_result = step.buffer < 0
                target = results[-1 - step.buffer] if is_result else shaped[step.buffer]
                # A pointwise body knows nothing of the step: what else is in the fused node's context is not for it.
                seen = KernelContext(step.node.name, asked=step.node.outputs, placed=(target,))
                try:
                    made = step.body(seen, given, step.attributes)[0]
                except (ValueError, MemoryError) as error:
                    raise failed(step.node, given, error) from error
                # What is passed on as it is would change when its buffer is used again.
                if made is not target and (is_result or any(_share(made, array) for array in given)):
                    target[...] = made
                    made = target
                values.append(made)


def _share(made: Array, given: Array | None) -> bool:
    return given is not None and np.may_share_memory(made, given)


@lru_cache(maxsize=_PROGRAMS_KEPT)
def program_of(body: Same, types: tuple[TensorType, ...]) -> Program:
    """The program of a body of pointwise nodes, for inputs of these types."""
    subgraph = body.subgraph
    inference = Inference(dict(zip(subgraph.inputs, types, strict=True)), subgraph.constants)
    names = [*subgraph.inputs, *(constant.name for constant in subgraph.constants)]
    last = {name: index for index, node in enumerate(subgraph.nodes) for name in node.inputs}
    buffers: list[Dtype] = []
    free: list[int] = []
    lies: dict[str, int] = {}
    steps: list[_Step] = []
    places = {name: place for place, name in enumerate(names)}
    for index, node in enumerate(subgraph.nodes):
        dtype = inference.add(node)[0].dtype.numpy
        (output,) = (name for name in node.outputs if name)
        if output in subgraph.outputs:
            buffer = -1 - subgraph.outputs.index(output)
        else:
            fitting = [each for each in free if buffers[each] == dtype]
            if not fitting:
                buffers.append(dtype)
            buffer = fitting[-1] if fitting else len(buffers) - 1
            free = [each for each in free if each != buffer]
            lies[output] = buffer
        reads = tuple(places[name] if name else -1 for name in node.inputs)
        steps.append(_Step(node, body_of(node), schema_of(node).attributes_of(node), reads, buffer))
        places[output] = len(places)
        free += [lies.pop(name) for name in dict.fromkeys(node.inputs) if name in lies and last[name] == index]
    results = tuple(inference.types[name].dtype.numpy for name in subgraph.outputs)
    return Program(tuple(steps), tuple(constant.array for constant in subgraph.constants), tuple(buffers), results)
