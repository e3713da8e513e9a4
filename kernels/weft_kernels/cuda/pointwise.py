"""CUDA sources of pointwise programs, written by running their bodies on expressions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft_graph.ir import Node
from weft_graph.schema import schema_of
from weft_kernels.cuda.module import C_TYPES
from weft_kernels.element_types import is_float, is_half
from weft_kernels.kernel import Array, KernelContext, kernel_of

# --- NumPy's functions of an element as CUDA C writes them; `{0}` and on are the operands, all of one type ------------
# Two forms are for numbers and for bool. Integers narrower than 64 bits divide through double, which holds them.


NUMPY_NAMES: Final[Mapping[str, str]] = {"true_divide": "divide", "absolute": "abs", "mod": "remainder"}
"""Other names of the same functions."""

_SAME: Final = (
    *("exp", "expm1", "log", "log1p", "log2", "sqrt", "floor", "ceil", "trunc", "rint"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
)

FUNCTIONS: Final[Mapping[str, str | tuple[str, str]]] = {
    **{name: f"{name}({{0}})" for name in _SAME},
    "arcsin": "asin({0})",
    "arccos": "acos({0})",
    "arctan": "atan({0})",
    "arcsinh": "asinh({0})",
    "arccosh": "acosh({0})",
    "arctanh": "atanh({0})",
    "add": ("{0} + {1}", "{0} || {1}"),
    "subtract": "{0} - {1}",
    "multiply": ("{0} * {1}", "{0} && {1}"),
    "divide": "{0} / {1}",
    "floor_divide": "round_down({0}, {1})",
    "remainder": "modulo({0}, {1})",
    "fmod": "rest_of({0}, {1})",
    "power": "pow({0}, {1})",
    "square": "{0} * {0}",
    "reciprocal": "1 / {0}",
    "negative": "-{0}",
    "positive": "{0}",
    "abs": "{0} < 0 ? -{0} : {0} + 0",
    "sign": "{0} != {0} ? {0} : decltype({0})(({0} > 0) - ({0} < 0))",
    "copysign": "copysign({0}, {1})",
    # NaN wins, as in NumPy: C's own functions leave it out.
    "maximum": ("{0} > {1} || {0} != {0} ? {0} : {1}", "{0} || {1}"),
    "minimum": ("{0} < {1} || {0} != {0} ? {0} : {1}", "{0} && {1}"),
    "where": "{0} ? {1} : {2}",
    "less": "{0} < {1}",
    "less_equal": "{0} <= {1}",
    "greater": "{0} > {1}",
    "greater_equal": "{0} >= {1}",
    "equal": "{0} == {1}",
    "not_equal": "{0} != {1}",
    "isnan": "{0} != {0}",
    "isinf": "{0} == {0} && {0} - {0} != {0} - {0}",
    "isfinite": "{0} - {0} == {0} - {0}",
    "logical_and": "({0} != 0) && ({1} != 0)",
    "logical_or": "({0} != 0) || ({1} != 0)",
    "logical_xor": "({0} != 0) != ({1} != 0)",
    "logical_not": "{0} == 0",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "invert": ("~{0}", "!{0}"),
    "left_shift": "{0} << {1}",
    "right_shift": "{0} >> {1}",
}


# --- An array module that writes CUDA C: a body runs on it once, and what it does to an element is written down -------
# So every operator that goes element by element has one body, whose meaning NumPy, CuPy and a fused kernel share.
# Types follow NumPy, which is asked; float16 and bfloat16 are computed in float32, and rounded where stored or cast
# to.


Dtype = np.dtype[Any]
_ALIKE: Final = ("promote_types", "result_type", "finfo", "iinfo", "dtype", "inf", "nan", "pi")
_TYPES: Final = (
    "bool_",
    "float16",
    "float32",
    "float64",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


class NotTraceableError(Exception):
    """A body does something that one element of a kernel cannot do: it looks at a number, a shape or other elements."""


def c_type(dtype: Dtype) -> str:
    """The type that an element is computed in. Raises NotTraceableError for one that C has not."""
    if dtype.name not in C_TYPES:
        raise NotTraceableError(f"{dtype.name} has no form in CUDA C")
    return C_TYPES["float32" if is_half(dtype) else dtype.name]


def literal(value: Any, dtype: Dtype) -> str:
    """A number as C writes it, of that type."""
    kind = c_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    number = float(value) if is_float(dtype) else int(value)
    if math.isnan(number):
        return f"{kind}(infinity() - infinity())"
    if math.isinf(number):
        return f"{kind}({'-' if number < 0 else ''}infinity())"
    ending = "" if is_float(dtype) else "ULL" if dtype.kind == "u" else "LL"
    return f"{kind}({number!r}{ending})"


class Trace:
    """The statements of one kernel so far, each of which makes a value of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._values = 0

    def value(self, dtype: Dtype, text: str) -> Traced:
        """A new value, which is `text`."""
        name = f"v{self._values}"
        self._values += 1
        self.lines.append(f"const {c_type(dtype)} {name} = {text};")
        return Traced(self, dtype, name)

    def apply(self, function: str, operands: Sequence[Any]) -> Traced:
        """What NumPy's function of that name makes of values and numbers. Raises NotTraceableError for another one."""
        name = NUMPY_NAMES.get(function, function)
        if name not in FUNCTIONS:
            raise NotTraceableError(f"{function} has no form in CUDA C")
        samples = [_sample(operand) for operand in operands]
        with np.errstate(all="ignore"):
            result: Dtype = getattr(np, name)(*samples).dtype
        taken = result if is_float(result) else _common(name, samples)
        texts = [
            self._operand(operand, np.dtype(bool) if name == "where" and place == 0 else taken)
            for place, operand in enumerate(operands)
        ]
        form = FUNCTIONS[name]
        text = (form[1] if taken == np.bool_ else form[0]) if isinstance(form, tuple) else form
        return self.value(result, f"{c_type(result)}({text.format(*texts)})")

    def _operand(self, operand: Any, dtype: Dtype) -> str:
        if not isinstance(operand, Traced):
            return literal(operand, dtype)
        return operand.name if c_type(operand.dtype) == c_type(dtype) else f"{c_type(dtype)}({operand.name})"


def _sample(operand: Any) -> Any:
    """What NumPy is asked with: an array without elements, or the number itself."""
    if isinstance(operand, Traced):
        return np.empty(0, operand.dtype)
    if isinstance(operand, bool | int | float | np.generic):
        return operand
    if isinstance(operand, np.ndarray) and operand.ndim == 0:
        return operand[()]
    raise NotTraceableError(f"{type(operand).__name__} is no element")


def _common(name: str, samples: Sequence[Any]) -> Dtype:
    return np.result_type(*(samples[1:] if name == "where" else samples))


class Traced:
    """An element that a kernel has computed. Stands for an array, of which it is any element."""

    __slots__ = ("dtype", "name", "trace")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # as NumPy's

    def __init__(self, trace: Trace, dtype: Dtype, name: str) -> None:
        self.trace = trace
        self.dtype = dtype
        self.name = name

    def astype(self, dtype: Any, copy: bool = True) -> Traced:
        """The element as another type, rounded if it is float16 or bfloat16."""
        wanted: Dtype = np.dtype(dtype)
        if wanted == self.dtype:
            return self
        kind = c_type(wanted)
        text = f"{self.name} != {c_type(self.dtype)}(0)" if kind == "bool" else f"{kind}({self.name})"
        if is_half(wanted):
            text = f"{kind}({C_TYPES[wanted.name]}({text}))"
        return self.trace.value(wanted, text)

    def copy(self) -> Traced:
        return self

    def __getattr__(self, name: str) -> Any:
        raise NotTraceableError(f"a body asks an element for {name!r}")

    def _refuse(self, *_: Any) -> Any:
        raise NotTraceableError("a body looks at a number")

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = __array__ = __getitem__ = __setitem__ = _refuse


def _operator(function: str, *, reflected: bool = False, in_place: bool = False) -> Any:
    def operate(self: Traced, *others: Any) -> Traced:
        made = self.trace.apply(function, (*others, self) if reflected else (self, *others))
        # In place the array keeps its type, whatever it is combined with; nobody else sees the element change.
        return made.astype(self.dtype) if in_place else made

    return operate


for _symbol, _function in {
    **{"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide"},
    **{"mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"},
}.items():
    setattr(Traced, f"__{_symbol}__", _operator(_function))
    setattr(Traced, f"__r{_symbol}__", _operator(_function, reflected=True))
for _symbol, _function in {
    **{"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal"},
    **{"neg": "negative", "pos": "positive", "abs": "abs", "invert": "invert"},
}.items():
    setattr(Traced, f"__{_symbol}__", _operator(_function))


class TracingModule:
    """What a body has as `xp` while it is written down."""

    __name__ = "weft_tracing"
    ndarray = Traced

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getattr__(self, name: str) -> Any:
        if name in _ALIKE or name in _TYPES:
            return getattr(np, name)

        def call(*operands: Any, **options: Any) -> Traced:
            if any(value is not None for value in options.values()):
                raise NotTraceableError(f"{name} with {sorted(options)} has no form in CUDA C")
            return self._trace.apply(name, operands)

        return call

    def full_like(self, like: Traced, value: float) -> Traced:
        return self._trace.value(like.dtype, literal(value, like.dtype))

    def zeros_like(self, like: Traced) -> Traced:
        return self.full_like(like, 0)

    def clip(self, value: Any, low: Any, high: Any) -> Traced:
        return self._trace.apply("minimum", (self._trace.apply("maximum", (value, low)), high))

    def asarray(self, value: Any) -> Any:
        return value


_STRANGE: Final = re.compile(r"[^A-Za-z0-9_.:, \[\]()-]")


@dataclass(frozen=True, slots=True)
class Fused:
    """A generated kernel. Its arguments are `arrays` in order, the four of the rows, then `numbers`, each a double."""

    text: str
    arrays: tuple[str, ...]
    numbers: tuple[str, ...]


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
