"""A generated kernel for every operator of elements, in its element types, with what NumPy's body makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from weft_graph.formals import FLOATS as FLOAT_TYPES
from weft_graph.ir import Node
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import schemas
from weft_graph.types import DType
from weft_kernels.cuda.module import CudaSource, Index, read_source
from weft_kernels.cuda.pointwise import Fused, NotTraceableError, fuse
from weft_kernels.element_types import is_float, is_half
from weft_kernels.kernel import KernelContext
from weft_kernels.run import run_node

ATTRIBUTES: dict[str, tuple[dict[str, Any], ...]] = {
    "BitShift": ({"direction": "LEFT"}, {"direction": "RIGHT"}),
    "Cast": tuple(
        {"to": NUMBER_OF_DTYPE[dtype]}
        for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64, DType.INT64, DType.BOOL)
    ),
    "Gelu": ({}, {"approximate": "tanh"}),
    "GeluGrad": ({"approximate": "none"}, {"approximate": "tanh"}),
    "IsInf": ({}, {"detect_negative": 0}),
    "LeakyRelu": ({"alpha": 0.25},),
    "Mod": ({"fmod": 0}, {"fmod": 1}),
}
"""Beside the defaults: what makes another kernel."""


@dataclass(frozen=True)
class Case:
    """A node with its inputs, and what NumPy's body makes of them."""

    name: str
    node: Node
    inputs: tuple[Any, ...]
    expected: Any
    fused: Fused


FLOATS = [-np.inf, -6.5, -2.5, -1.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 6.5, np.inf, np.nan]
DTYPES = ("float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool")
INTEGERS = (*DTYPES, "int16", "uint32", "uint64")
"""Of operators that take integers alone."""


def _numbers(dtype: str, place: int, op_type: str) -> Any:
    """Numbers that meet each other: for a second input each of the first's stands against another one."""
    kind = np.dtype(dtype).kind
    if is_float(np.dtype(dtype)):
        every = np.array([x for x in FLOATS if np.isfinite(x)] if op_type == "Cast" else FLOATS)
    elif kind == "b":
        every = np.array([False, True, True])
    else:
        # An integer's division by 0 has no result.
        low = 1 if kind == "u" or (place and op_type in {"Div", "Mod", "Pow"}) else -3
        every = np.array([x for x in range(low, 5) if x or not place])
    count = 7 * len(FLOATS)
    return every[(np.arange(count) * (1 + place) + np.arange(count) // 7 * place) % len(every)].astype(dtype)


def _cases_given() -> list[tuple[str, Node, list[Any]]]:
    """Each operator of elements in each element type that it takes."""
    given = []
    for schema in schemas().values():
        if not schema.pointwise:
            continue
        formals = [*schema.inputs, *(schema.inputs[-1:] if schema.inputs[-1].variadic else ())]
        is_of_integers = not any(formal.dtypes & FLOAT_TYPES for formal in formals)
        for dtype in INTEGERS if is_of_integers else DTYPES:
            if not any(DType(dtype) in formal.dtypes for formal in formals):
                continue
            for number, attributes in enumerate(ATTRIBUTES.get(schema.op_type, ({},))):
                if schema.op_type == "Mod" and is_float(np.dtype(dtype)) and not attributes.get("fmod"):
                    continue
                types = [dtype if DType(dtype) in formal.dtypes else "bool" for formal in formals]
                arrays = [_numbers(type_, place, schema.op_type) for place, type_ in enumerate(types)]
                named = tuple(f"in{place}" for place in range(len(arrays)))
                node = Node(schema.op_type, schema.op_type, named, ("out",), attributes, schema.domain)
                given.append((f"{schema.op_type}-{dtype}-{number}", node, arrays))
    return given


@cache
def generated_cases() -> dict[str, Case]:
    """Every case that can be written down, each with a kernel of its own name."""
    found: dict[str, Case] = {}
    for number, (name, node, arrays) in enumerate(_cases_given()):
        with np.errstate(all="ignore"):
            expected = run_node(KernelContext(""), node, arrays)[0]
            # A kernel rounds to float16 or bfloat16 once, at the end.
            wide = [array.astype(np.float32) if is_half(array.dtype) else array for array in arrays]
            expected = run_node(KernelContext(""), node, wide)[0].astype(expected.dtype)
        types = {f"in{place}": array.dtype for place, array in enumerate(arrays)}
        try:
            fused = fuse(
                name,
                [node],
                arrays={**types, "made": expected.dtype},
                numbers={},
                constants={},
                results={"made": "out"},
                by_place=("made",),
                kernel=f"fused{number}",
            )
        except NotTraceableError:
            continue
        found[name] = Case(name, node, tuple(arrays), expected, fused)
    return found


@cache
def every_operator() -> CudaSource:
    return read_source("every_operator.cu", "\n".join(case.fused.text for case in generated_cases().values()))


@cache
def compiled_operators(*, once: bool, index: Index) -> CudaSource:
    """Every operator's kernels but those over float64, whose functions NVRTC is slow with; or one for each operator.

    float64 is compiled in the rules, and run here on the CPU. bfloat16 differs from float16 where it is read and stored
    alone: the one for each operator is its.
    """
    chosen: dict[str, Case] = {}
    for name, case in generated_cases().items():
        if not once and "-float64-" not in name and "-bfloat16-" not in name:
            chosen[name] = case
        if once and (case.node.op_type not in chosen or "-bfloat16-" in name):
            chosen[case.node.op_type] = case
    return read_source("operators.cu", "\n".join(case.fused.text for case in chosen.values()), index)
