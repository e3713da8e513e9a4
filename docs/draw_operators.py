"""Writes docs/operators.md from the operators' schemas and from the lists of cases that the tests run.

Run it with `python docs/draw_operators.py`; a test compares the page with the lists, so it cannot claim what is not
tested. It needs the packages `onnx` and `jax`, as the tests do.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnx

from weft_graph.formals import FLOATS, FLOATS8, INTEGERS, NUMBERS, SUB_BYTES
from weft_graph.ir import Subgraph
from weft_graph.schema import Attribute, OpSchema, schemas
from weft_graph.shapes.gradients import flat
from weft_graph.types import DType

PAGE = Path(__file__).with_name("operators.md")
TESTS = Path(__file__).parents[1] / "tests"

NO_GRADIENT: Final = {
    "BitCast": "its numbers are bits",
    "DynamicQuantizeLinear": "its numbers are quantized",
    "MelWeightMatrix": "its inputs are bounds",
    "Range": "its inputs are bounds",
}
"""Operators of floats without a gradient, and why."""

FAMILIES: Final = {
    "numbers": NUMBERS,
    "float": FLOATS,
    "integers": INTEGERS,
    "float8": FLOATS8,
    "sub-byte": SUB_BYTES,
}
"""Sets of element types that go by one word, the largest first."""

OTHER_MEANING: Final = {
    ("PRelu", 1): "the slope is by channel",
    ("PRelu", 6): "the slope is by channel",
    ("GroupNormalization", 18): "scale and bias are by group",
}
"""Versions that look like those taken, and mean something else."""

_KINDS: Final[Mapping[Any, type]] = {
    onnx.defs.OpSchema.AttrType.INT: int,
    onnx.defs.OpSchema.AttrType.FLOAT: float,
    onnx.defs.OpSchema.AttrType.STRING: str,
    onnx.defs.OpSchema.AttrType.INTS: tuple,
    onnx.defs.OpSchema.AttrType.FLOATS: tuple,
    onnx.defs.OpSchema.AttrType.STRINGS: tuple,
    onnx.defs.OpSchema.AttrType.GRAPH: Subgraph,
}
_FLOAT_EXTREME: Final = 3.4e38

INTRODUCTION: Final = """# Operators

Written from the schemas and from the tests' lists of cases by `python docs/draw_operators.py`; a test compares.

*Element types* are those of the input that accepts most. *float* is float16, bfloat16, float32 and float64, *integers*
are the eight of 8 to 64 bits, *numbers* both; *float8* are the five types of ONNX, *sub-byte* float4, int4, uint4, int2
and uint2. Sums and functions of float16 and bfloat16 are computed in float32 and rounded once.

*Versions* are the opsets of ONNX whose nodes the operator takes unchanged. Readers of files rewrite older forms; in a
graph they are rejected by the name of their attribute. *Cases* counts ONNX's own node tests of weft's element types, of
values and of inferred types. *JAX* counts cases whose gradients are compared with JAX's reverse mode, each in float64
(also in Fortran's order), float32 (strided and turned around) and float16; *differences* counts those that are also
compared with central differences in float64.

Where a gradient is not unique or does not exist, weft takes:

- **equal elements share** a largest or smallest one's gradient evenly (Max, Min, ReduceMax, ReduceMin, GlobalMaxPool,
  ScatterElements and ScatterND); MaxPool, TopK and Unique give all of it to the first of equals;
- **on a bound** Clip's gradient is that of its input, so that a parameter there can leave it;
- **at zero** Relu, Abs, ReduceL2 and LpNormalization have slope 0; LeakyRelu, PRelu, Elu and Celu have slope 1;
- **steps** (Sign, Floor, Ceil, Round, Hardmax) and draws (Bernoulli, RandomUniformLike, RandomNormalLike) have slope 0:
  nothing flows through them, and a parameter that is reached only through a step is rejected."""


ADDING: Final = """
## Adding an operator

An operator is told once in each of two rooms. What Squareplus, (x + sqrt(x^2 + b)) / 2 (Barron 2021), would take: in a
module of `graph/weft_graph/operators`, its types, its attributes and its gradient, a composition of other operators.

```python
from weft_graph.attributes import as_float
from weft_graph.formals import FLOATS
from weft_graph.pointwise import unary
from weft_graph.schema import Attribute, GradientContext
from weft_graph.shapes.gradients import apply, incoming, scalar


def _squareplus_gradient(context: GradientContext) -> tuple[str | None, ...]:
    x = context.input(0)
    bend = scalar(context, as_float(context.attribute("b")), x)
    root = apply(context, "Sqrt", apply(context, "Add", apply(context, "Mul", x, x), bend))
    slope = apply(context, "Add", scalar(context, 1, x), apply(context, "Div", x, root))
    return (apply(context, "Mul", incoming(context), apply(context, "Mul", slope, scalar(context, 0.5, x))),)


SQUAREPLUS = unary(
    "Squareplus", FLOATS, _squareplus_gradient, attributes={"b": Attribute(float, default=4.0)}, follows=True
)
```

In the module of the same name in `kernels/weft_kernels/operators`, its body, for NumPy and CuPy:

```python
from typing import Any

from weft_kernels.kernel import Array, elementwise


@elementwise("Squareplus")
def squareplus(xp: Any, x: Array, *, b: float) -> Any:
    return (x + xp.sqrt(x * x + x.dtype.type(b))) / 2
```

That is all: `weft.ops.apply("Squareplus", x)`, jobs and optimizers have it. What else there is to say of an operator is
in its schema too (`OpSchema`): whether mixed precision computes it in the narrow type (`product`, `follows`), what is
known of its output before a step (`folding`), whether its output is a view, what it may write over. Everything else is
optional, for speed or comfort: a row in `weft_kernels.cuda.pointwise`, a form for onnxruntime in
`weft_kernels.onnx_runtime.lowering`, a function in `weft.ops`.
"""


def page() -> str:
    sys.path.insert(0, str(TESTS))
    try:
        from gradient_cases import gradient_cases
        from onnx_node_cases import cases_to_run

        # The cases' modules are found while they are asked for.
        gradients = gradient_cases()
    finally:
        sys.path.remove(str(TESTS))
    onnx_cases = Counter(case.op_type for case in cases_to_run().values())
    jax = Counter((case.domain, case.op_type) for case in gradients)
    differences = Counter((case.domain, case.op_type) for case in gradients if case.smooth)
    users = {key: schema for key, schema in sorted(schemas().items(), key=lambda item: item[0][1]) if is_users(schema)}
    rows = [
        f"| {op_type} | {_versions(schema)} | {types_of(schema)} | {gradient(schema)} "
        f"| {onnx_cases[op_type] if not domain else '-'} | {jax[domain, op_type] or '-'} "
        f"| {differences[domain, op_type] or '-'} |"
        for (domain, op_type), schema in users.items()
    ]
    converters = sorted(op_type for (_, op_type), schema in schemas().items() if not is_users(schema))
    return "\n".join(
        [
            INTRODUCTION,
            "",
            "| Operator | Versions | Element types | Gradient | Cases | JAX | Differences |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            "The converter also writes operators of the domain `weft`, which are proven with those that they serve: "
            + ", ".join(converters)
            + ".",
            ADDING,
        ]
    )


def is_users(schema: OpSchema) -> bool:
    """Whether users' graphs may hold it: all of ONNX's, and of weft's own those that have a gradient themselves."""
    return not schema.domain or schema.gradient is not None


def gradient(schema: OpSchema) -> str:
    """`yes`, or why not."""
    if schema.gradient is flat:
        return "0: steps"
    if schema.gradient is not None:
        return "yes"
    if not _has_floats(schema.outputs):
        return "no: its outputs are no floats"
    if not _has_floats(schema.inputs):
        return "no: its inputs are no floats"
    return f"no: {NO_GRADIENT[schema.op_type]}"


def _has_floats(formals: Any) -> bool:
    return any(dtype.is_float for formal in formals for dtype in formal.dtypes)


def types_of(schema: OpSchema) -> str:
    """Element types of the input that takes most, in families; of the output where there is no input."""
    left = set(max((formal.dtypes for formal in schema.inputs or schema.outputs), key=len))
    if left == set(DType):
        return "all"
    words = []
    for name, family in FAMILIES.items():
        if family <= left:
            words.append(name)
            left -= family
    for name in ("float", "int", "uint"):
        sizes = [size for dtype in DType if (size := dtype.removeprefix(name)).isdecimal() and dtype in left]
        words += [name + "/".join(sizes)] if sizes else []
        left -= {DType(name + size) for size in sizes}
    return ", ".join([*words, *(dtype for dtype in DType if dtype in left)])


def _versions(schema: OpSchema) -> str:
    """The versions of ONNX's operator that this one takes; the domain where it is another's, such as weft's own."""
    if schema.domain:
        return schema.domain
    every = sorted(
        (
            theirs
            for theirs in onnx.defs.get_all_schemas_with_history()
            if (theirs.domain, theirs.name) == ("", schema.op_type)
        ),
        key=lambda theirs: theirs.since_version,
    )
    return ", ".join(str(theirs.since_version) for theirs in every if takes(schema, theirs))


def takes(ours: OpSchema, theirs: Any) -> bool:
    """Whether a node of that version is one of this operator, by its attributes and the number of its values."""
    if (ours.op_type, theirs.since_version) in OTHER_MEANING:
        return False
    is_variadic = any(formal.variadic for formal in ours.inputs)
    needed = sum(not formal.optional for formal in ours.inputs)
    if len(theirs.inputs) > len(ours.inputs) or (theirs.min_input < needed and not is_variadic):
        return False
    if len(theirs.outputs) > len(ours.outputs):
        return False
    if any(formal.required and not _is_required(theirs, name) for name, formal in ours.attributes.items()):
        return False
    return all(_takes_attribute(ours.attributes, name, theirs.attributes[name]) for name in theirs.attributes)


def _is_required(theirs: Any, name: str) -> bool:
    return name in theirs.attributes and theirs.attributes[name].required


def _takes_attribute(ours: Mapping[str, Attribute], name: str, theirs: Any) -> bool:
    if theirs.type == onnx.defs.OpSchema.AttrType.TENSOR:
        return {name, "dtype"} <= set(ours)  # a tensor of one element, as a number and its type
    if name not in ours or _KINDS.get(theirs.type) is not ours[name].kind:
        return False
    default = ours[name].default
    if not theirs.default_value.name:
        return default is None or theirs.required
    value = onnx.helper.get_attribute_value(theirs.default_value)
    value = value.decode() if isinstance(value, bytes) else value
    if isinstance(value, float):
        return abs(value) > _FLOAT_EXTREME if default is None else abs(value - float(default)) < 1e-6  # type: ignore[arg-type]  # a float's
    return value == default


if __name__ == "__main__":
    PAGE.write_text(page())
