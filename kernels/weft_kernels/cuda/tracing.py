"""An array module that writes CUDA C: a body runs on it once, and what it does to an element is written down.

So every operator that goes element by element has one body, whose meaning NumPy, CuPy and a fused kernel share. Types
follow NumPy, which is asked; float16 and bfloat16 are computed in float32, and rounded where stored or cast to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft_kernels.cuda.functions import FUNCTIONS, NUMPY_NAMES
from weft_kernels.cuda.source import C_TYPES
from weft_kernels.element_types import is_float, is_half

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
