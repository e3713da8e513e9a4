"""Arithmetic, element by element: sums, products, powers, roots, rounding, bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft_graph.attributes import as_float
from weft_graph.dimensions import (
    Amount,
    agree,
    is_natural,
    larger,
    minus,
    over,
    plus,
    product,
    remainder,
    smaller,
    times,
)
from weft_graph.folding import by_element, by_pairs, pairwise
from weft_graph.formals import (
    BOOLEANS,
    FLOATS,
    FLOATS8,
    INDICES,
    NUMBERS,
    SIGNED,
    optional,
    required,
    setting,
    variadic,
)
from weft_graph.ir import WEFT_DOMAIN, Node
from weft_graph.pointwise import binary, unary
from weft_graph.schema import Attribute, Folding, GradientContext, InferContext, Known, OpSchema
from weft_graph.shapes.broadcasting import (
    check_same_dtype,
    infer_binary,
    infer_broadcast,
    infer_variadic,
    sum_to,
)
from weft_graph.shapes.gradients import apply, flat, incoming, scalar
from weft_graph.shapes.reductions import shared_by_equals
from weft_graph.types import DType, TensorType


def _add_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    left = sum_to(context, gradient, context.input(0)) if context.needs(0) else None
    right = sum_to(context, gradient, context.input(1)) if context.needs(1) else None
    return left, right


ADD = binary("Add", NUMBERS, _add_gradient, commutative=True, follows=True, folding=by_pairs(np.add, plus))
"""C = A + B, broadcast."""


def _sub_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    left = sum_to(context, gradient, context.input(0)) if context.needs(0) else None
    if not context.needs(1):
        return left, None
    return left, context.emit("Neg", (sum_to(context, gradient, context.input(1)),))[0]


SUB = binary("Sub", NUMBERS, _sub_gradient, follows=True, folding=by_pairs(np.subtract, minus))
"""C = A - B, broadcast."""


def _mul_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    gradients: list[str | None] = [None, None]
    for index in (0, 1):
        if context.needs(index):
            (part,) = context.emit("Mul", (gradient, context.input(1 - index)))
            gradients[index] = sum_to(context, part, context.input(index))
    return tuple(gradients)


MUL = binary("Mul", NUMBERS, _mul_gradient, commutative=True, follows=True, folding=by_pairs(np.multiply, times))
"""C = A * B, broadcast."""


def _div_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    (share,) = context.emit("Div", (gradient, context.input(1)))
    left = sum_to(context, share, context.input(0)) if context.needs(0) else None
    if not context.needs(1):
        return left, None
    (product,) = context.emit("Mul", (share, context.output(0)))
    return left, context.emit("Neg", (sum_to(context, product, context.input(1)),))[0]


def _divided(dividend: Known, divisor: Known) -> Known | None:
    """Whole numbers towards zero, as C and ONNX divide them; unknown where a divisor is zero."""
    if dividend.dtype.kind == "f":
        return np.asarray(dividend / divisor)
    if not np.all(divisor):
        return None
    is_rounded_down = (dividend % divisor != 0) & ((dividend < 0) != (divisor < 0))
    return np.asarray(dividend // divisor + is_rounded_down)


DIV = binary("Div", NUMBERS, _div_gradient, folding=by_pairs(_divided, over))
"""C = A / B, broadcast; integers are divided towards zero."""


def _mod_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    left = sum_to(context, gradient, context.input(0)) if context.needs(0) else None
    if not context.needs(1):
        return left, None
    # A less the rest is B times a whole number, by which a change of B counts.
    multiple = apply(context, "Div", apply(context, "Sub", context.input(0), context.output(0)), context.input(1))
    share = apply(context, "Mul", gradient, apply(context, "Round", multiple))
    return left, apply(context, "Neg", sum_to(context, share, context.input(1)))


def _remainder(node: Node, inputs: Sequence[Known | None], type_: TensorType) -> Known | None:
    """With `fmod` the sign is the dividend's, which is the same where no number is negative."""
    natural = all(array is not None and all(map(is_natural, array.flat)) for array in inputs)
    return pairwise(remainder)(node, inputs, type_) if natural or not node.attributes.get("fmod") else None


MOD = OpSchema(
    op_type="Mod",
    inputs=(required("A", NUMBERS), required("B", NUMBERS)),
    outputs=(required("C", NUMBERS),),
    infer=infer_binary,
    gradient=_mod_gradient,
    attributes={"fmod": Attribute(int, default=0)},
    pointwise=True,
    folding=Folding(amounts=_remainder),
)
"""Mod: what is left when A is divided by B, broadcast: of B's sign, or of A's with `fmod`."""


def _neg_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("Neg", (incoming(context),))


def _negative(a: Amount) -> Amount:
    return minus(0, a)


NEG = unary("Neg", SIGNED, _neg_gradient, follows=True, folding=by_element(np.negative, _negative))
"""Y = -X."""


def _abs_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), apply(context, "Sign", context.input(0))),)


def _absolute(a: Amount) -> Amount:
    return a if is_natural(a) else _negative(a) if is_natural(_negative(a)) else None


ABS = unary("Abs", NUMBERS, _abs_gradient, follows=True, folding=by_element(np.abs, _absolute))
"""Y = |X|."""


SIGN = unary("Sign", NUMBERS, flat)
"""Y = -1, 0 or 1, as the sign of X is; NaN stays."""


def _reciprocal_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, output = incoming(context), context.output(0)
    share = apply(context, "Mul", gradient, apply(context, "Mul", output, output))
    return (apply(context, "Neg", share),)


RECIPROCAL = unary("Reciprocal", FLOATS, _reciprocal_gradient, folding=by_element(np.reciprocal))
"""Y = 1 / X."""


def _sqrt_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    (half,) = context.emit("Mul", (gradient, scalar(context, 0.5, gradient)))
    return context.emit("Div", (half, context.output(0)))


SQRT = unary("Sqrt", FLOATS, _sqrt_gradient, folding=by_element(np.sqrt))
"""Y = sqrt(X)."""


def _infer_pow(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(0).dtype, infer_broadcast(context, 0, 1)),)


def _pow_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, base, exponent = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        (part,) = context.emit("PowBaseGrad", (gradient, base, exponent), domain=WEFT_DOMAIN)
        gradients[0] = sum_to(context, part, base)
    if context.needs(1) and context.type_of(exponent).dtype.is_float:
        inputs = (gradient, base, exponent, context.output(0))
        (part,) = context.emit("PowExponentGrad", inputs, domain=WEFT_DOMAIN)
        gradients[1] = sum_to(context, part, exponent)
    return tuple(gradients)


POW = OpSchema(
    op_type="Pow",
    inputs=(required("X", FLOATS | INDICES), required("Y", NUMBERS)),
    outputs=(required("Z", FLOATS | INDICES),),
    infer=_infer_pow,
    gradient=_pow_gradient,
    pointwise=True,
)
"""Pow: Z = X^Y, broadcast; of X's element type."""


def _infer_pow_base_grad(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(1).dtype, context.input(0).shape),)


POW_BASE_GRAD = OpSchema(
    op_type="PowBaseGrad",
    inputs=(required("gradient", FLOATS), required("base", FLOATS), required("exponent", NUMBERS)),
    outputs=(required("base_gradient", FLOATS),),
    infer=_infer_pow_base_grad,
    domain=WEFT_DOMAIN,
)
"""PowBaseGrad(gradient, base, exponent): gradient * exponent * base^(exponent - 1), 0 where exponent is 0.

It has the shape of `gradient` and the element type of the base.
"""


def _infer_pow_exponent_grad(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(context.input(2).dtype, context.input(0).shape),)


POW_EXPONENT_GRAD = OpSchema(
    op_type="PowExponentGrad",
    inputs=(
        required("gradient", FLOATS),
        required("base", FLOATS),
        required("exponent", NUMBERS),
        required("output", FLOATS),
    ),
    outputs=(required("exponent_gradient", FLOATS),),
    infer=_infer_pow_exponent_grad,
    domain=WEFT_DOMAIN,
)
"""PowExponentGrad(gradient, base, exponent, output): gradient * output * ln(base), 0 where base is 0.

It has the shape of `gradient` and the element type of the exponent.
"""


def _exp_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("Mul", (incoming(context), context.output(0)))


EXP = unary("Exp", FLOATS, _exp_gradient, names=("input", "output"))
"""Y = e^X."""


def _log_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("Div", (incoming(context), context.input(0)))


LOG = unary("Log", FLOATS, _log_gradient, names=("input", "output"))
"""Y = ln(X)."""


def _erf_gradient(context: GradientContext) -> tuple[str | None, ...]:
    x = context.input(0)
    bell = apply(context, "Exp", apply(context, "Neg", apply(context, "Mul", x, x)))
    height = scalar(context, 2 / math.sqrt(math.pi), x)
    return (apply(context, "Mul", incoming(context), apply(context, "Mul", bell, height)),)


ERF = unary("Erf", FLOATS, _erf_gradient, names=("input", "output"))
"""Y = the error function of X, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to X."""


CEIL = unary("Ceil", FLOATS, flat, folding=by_element(np.ceil))
"""Y = the smallest whole number that is not below X."""


FLOOR = unary("Floor", FLOATS, flat, folding=by_element(np.floor))
"""Y = the largest whole number that is not above X."""


ROUND = unary("Round", FLOATS, flat)
"""Y = the whole number nearest to X; of two, the even one."""


def _bound(context: GradientContext, index: int, name: str) -> str | None:
    """The value that bounds, or None where the node leaves it out."""
    number = context.attribute(name)
    return context.input(index) or None if number is None else scalar(context, as_float(number), context.input(0))


def _infer_clip(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    for index, name in ((1, "min"), (2, "max")):
        bound = context.optional_input(index)
        if bound is None:
            continue
        if context.attribute(name) is not None:
            raise context.shape_error(f"{name} is an input and an attribute; it must be one of them")
        check_same_dtype(context, 0, index)
        if not agree(product(bound.shape), 1) or bound.rank > data.rank:
            raise context.shape_error(f"{name} {bound} must be a scalar")
    return (data,)


def _clip_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, data = incoming(context), context.input(0)
    zero = scalar(context, 0, data)
    low, high = _bound(context, 1, "min"), _bound(context, 2, "max")
    gradients: list[str | None] = [None] * len(context.node.inputs)
    raised = data if low is None else apply(context, "Max", data, low)
    above = None if high is None else apply(context, "Greater", raised, high)
    below = None if low is None else apply(context, "Less", data, low)
    if above is not None and context.needs(2):
        gradients[2] = sum_to(context, apply(context, "Where", above, gradient, zero), context.input(2))
    left = gradient if above is None else apply(context, "Where", above, zero, gradient)
    if below is not None and context.needs(1):
        gradients[1] = sum_to(context, apply(context, "Where", below, left, zero), context.input(1))
    gradients[0] = left if below is None else apply(context, "Where", below, zero, left)
    return tuple(gradients)


CLIP = OpSchema(
    op_type="Clip",
    inputs=(required("input", NUMBERS), setting(optional("min", NUMBERS)), setting(optional("max", NUMBERS))),
    outputs=(required("output", NUMBERS),),
    infer=_infer_clip,
    gradient=_clip_gradient,
    attributes={"min": Attribute(float), "max": Attribute(float)},
    pointwise=True,
    follows=True,
)
"""Y = X, not below `min` and not above `max`: scalar inputs or attributes, either may be left out.

On a bound the gradient is X's, so that a parameter there can leave it. Where `min` is above `max`, Y is `max`.
"""


MAX = OpSchema(
    op_type="Max",
    inputs=(variadic("data_0", NUMBERS),),
    outputs=(required("max", NUMBERS),),
    infer=infer_variadic,
    gradient=shared_by_equals,
    pointwise=True,
    follows=True,
    folding=by_pairs(None, larger),
)
"""Max: the largest of all inputs, element by element, broadcast; NaN where one is NaN. Equals share the gradient."""


MIN = OpSchema(
    op_type="Min",
    inputs=(variadic("data_0", NUMBERS),),
    outputs=(required("min", NUMBERS),),
    infer=infer_variadic,
    gradient=shared_by_equals,
    pointwise=True,
    follows=True,
    folding=by_pairs(None, smaller),
)
"""Min: the smallest of all inputs, element by element, broadcast; NaN where one is NaN. Equals share the gradient."""


def _sum_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    return tuple(sum_to(context, gradient, name) if context.needs(i) else None for i, name in enumerate(inputs))


SUM = OpSchema(
    op_type="Sum",
    inputs=(variadic("data_0", FLOATS),),
    outputs=(required("sum", FLOATS),),
    infer=infer_variadic,
    gradient=_sum_gradient,
    pointwise=True,
    follows=True,
    folding=by_pairs(None, plus),
)
"""Sum: the sum of all inputs, element by element, broadcast."""


def _mean_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    share = apply(context, "Div", gradient, scalar(context, len(inputs), gradient))
    return tuple(sum_to(context, share, name) if context.needs(i) else None for i, name in enumerate(inputs))


MEAN = OpSchema(
    op_type="Mean",
    inputs=(variadic("data_0", FLOATS),),
    outputs=(required("mean", FLOATS),),
    infer=infer_variadic,
    gradient=_mean_gradient,
    pointwise=True,
)
"""Mean: the mean of all inputs, element by element, broadcast."""


def _infer_is_inf(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.BOOL, context.input(0).shape),)


IS_INF = OpSchema(
    op_type="IsInf",
    inputs=(required("X", FLOATS | FLOATS8),),
    outputs=(required("Y", BOOLEANS),),
    infer=_infer_is_inf,
    attributes={"detect_negative": Attribute(int, default=1), "detect_positive": Attribute(int, default=1)},
    pointwise=True,
)
"""IsInf: whether X is infinite, of the signs that the attributes ask for."""


def _infer_is_nan(context: InferContext) -> tuple[TensorType, ...]:
    return (TensorType(DType.BOOL, context.input(0).shape),)


IS_NAN = OpSchema(
    op_type="IsNaN",
    inputs=(required("X", FLOATS | FLOATS8),),
    outputs=(required("Y", BOOLEANS),),
    infer=_infer_is_nan,
    pointwise=True,
)
"""IsNaN: whether X is not a number."""
