"""One CUDA kernel for nodes that go element by element: their bodies, written down by `tracing`, on one element.

The kernel updates in place: it is what a rule is, on all elements or on some rows of a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_kernels.cuda.source import C_TYPES, CudaSource, read_source
from weft_kernels.cuda.tracing import NotTraceableError, Trace, Traced, TracingModule, c_type, literal
from weft_kernels.kernel import Array, KernelContext, kernel_of

_STRANGE: Final = re.compile(r"[^A-Za-z0-9_.:, \[\]()-]")


@dataclass(frozen=True, slots=True)
class Fused:
    """A generated kernel. Its arguments are `arrays` in order, the four of the rows, then `numbers`, each a double."""

    text: str
    arrays: tuple[str, ...]
    numbers: tuple[str, ...]

    @property
    def source(self) -> CudaSource:
        """The kernel alone, ready to be compiled."""
        return read_source("generated.cu", self.text)


def fuse(
    title: str,
    nodes: Iterable[Node],
    *,
    arrays: Mapping[str, np.dtype[Any]],
    numbers: Mapping[str, np.dtype[Any]],
    constants: Mapping[str, Array],
    results: Mapping[str, str],
    by_place: Sequence[str],
    states: Sequence[str] = (),
    computed: np.dtype[Any] | None = None,
    kernel: str = "fused",
) -> Fused:
    """The kernel of `nodes`, which are in an order that can be run.

    `arrays` are inputs by name, all of one size, and `numbers` are inputs too, one number for all elements; `constants`
    are single numbers. `results` names, for each array that is written, the value that it becomes. `by_place` are the
    arrays that rows' ids place; the others are read in order, and not written. `states` are rounded as a rule's state
    is; see `weft_kernels.rules.half`. `computed` is the element type that arrays are computed in, where not their own.

    Raises NotTraceableError where an operator is not one of elements.
    """
    trace = Trace()
    values: dict[str, Traced] = {}
    nodes = tuple(nodes)
    read = {name for node in nodes for name in node.inputs} | set(results.values())
    for place, (name, dtype) in enumerate(arrays.items()):
        if name not in read:
            continue
        trace.lines.append(f"// {shown(name)}")
        loaded = computed or dtype
        values[name] = trace.value(loaded, f"{c_type(loaded)}(a{place}[{'at' if name in by_place else 'e'}])")
    for place, (name, dtype) in enumerate(numbers.items()):
        trace.lines.append(f"// {shown(name)}")
        values[name] = trace.value(dtype, f"{c_type(dtype)}(n{place})")
    for name, array in constants.items():
        if array.size != 1:
            raise NotTraceableError(f"constant {name!r} has {array.size} elements")
        values[name] = trace.value(array.dtype, literal(array.reshape(()).item(), array.dtype))
    for node in nodes:
        write_down(node, trace, values)
    places = {name: place for place, name in enumerate(arrays)}
    lines = [
        *trace.lines,
        *(
            f"a{places[name]}[at] = {_stored(values[value], arrays[name], name in states)};"
            for name, value in results.items()
        ),
    ]
    parameters = [
        *(
            f"{'' if name in results else 'const '}{C_TYPES[dtype.name]}* a{place}"
            for place, (name, dtype) in enumerate(arrays.items())
        ),
        "ROWS",
        *(f"double n{place}" for place in range(len(numbers))),
    ]
    body = "\n".join(f"        {line}" for line in lines)
    signature = f"__global__ void {kernel}({', '.join(parameters)})"
    text = f"// {shown(title)}, generated.\n{signature} {{\n    UPDATE_LOOP {{\n{body}\n    }}\n}}\n"
    return Fused(text, tuple(arrays), tuple(numbers))


def shown(name: str) -> str:
    """A user's name inside a comment: nothing in it ends the comment or the line."""
    return _STRANGE.sub("_", name)


def write_down(node: Node, trace: Trace, values: dict[str, Traced]) -> None:
    """Adds what a pointwise node does to an element, and its outputs to `values`. Raises NotTraceableError."""
    schema = schema_of(node)
    if not schema.pointwise:
        raise NotTraceableError(f"node {node.name!r}: {node.op_type} is not a function of elements")
    trace.lines.append(f"// {shown(node.name)} ({node.op_type})")
    context = KernelContext(node=node.name, xp=TracingModule(trace), asked=node.outputs)
    inputs: list[Any] = [values[name] if name else None for name in node.inputs]
    outputs: Sequence[Any] = kernel_of(node)(context, inputs, schema.attributes_of(node))
    given = zip(node.outputs, outputs[: len(node.outputs)], strict=True)
    values.update((name, value) for name, value in given if name)


def _stored(value: Traced, dtype: np.dtype[Any], is_state: bool) -> str:
    kind = C_TYPES[dtype.name]
    return f"as_state<{kind}>({value.name})" if is_state else f"{kind}({value.name})"
