"""NumPy's functions of an element as CUDA C writes them; `{0}` and on are the operands, all of one type.

Two forms are for numbers and for bool. Integers narrower than 64 bits divide through double, which holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
