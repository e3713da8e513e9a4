"""Trigonometric and hyperbolic functions, element by element."""

from __future__ import annotations

from weft_graph.formals import FLOATS, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.pointwise import unary
from weft_graph.schema import GradientContext, OpSchema
from weft_graph.shapes.broadcasting import infer_unary
from weft_graph.shapes.gradients import apply, incoming, scalar

# --- What the slopes of trigonometric and hyperbolic functions are made of --------------------------------------------


def one_plus_square(context: GradientContext, value: str) -> str:
    """The name of 1 + value^2."""
    return apply(context, "Add", scalar(context, 1, value), apply(context, "Mul", value, value))


def one_minus_square(context: GradientContext, value: str) -> str:
    """The name of 1 - value^2."""
    return apply(context, "Sub", scalar(context, 1, value), apply(context, "Mul", value, value))


def square_minus_one(context: GradientContext, value: str) -> str:
    """The name of value^2 - 1."""
    return apply(context, "Sub", apply(context, "Mul", value, value), scalar(context, 1, value))


def _sin_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Mul", gradient, apply(context, "Cos", x)),)


SIN = unary("Sin", FLOATS, _sin_gradient, names=("input", "output"))
"""Y = sin(X), X in radians."""


def _cos_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Neg", apply(context, "Mul", gradient, apply(context, "Sin", x))),)


COS = unary("Cos", FLOATS, _cos_gradient, names=("input", "output"))
"""Y = cos(X), X in radians."""


def _tan_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), one_plus_square(context, context.output(0))),)


TAN = unary("Tan", FLOATS, _tan_gradient, names=("input", "output"))
"""Y = tan(X), X in radians."""


def _asin_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Div", gradient, apply(context, "Sqrt", one_minus_square(context, x))),)


ASIN = unary("Asin", FLOATS, _asin_gradient, names=("input", "output"))
"""Y = arcsin(X); NaN outside [-1, 1]."""


def _acos_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (
        apply(context, "Neg", apply(context, "Div", gradient, apply(context, "Sqrt", one_minus_square(context, x)))),
    )


ACOS = unary("Acos", FLOATS, _acos_gradient, names=("input", "output"))
"""Y = arccos(X); NaN outside [-1, 1]."""


def _atan_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Div", gradient, one_plus_square(context, x)),)


ATAN = unary("Atan", FLOATS, _atan_gradient, names=("input", "output"))
"""Y = arctan(X)."""


def _sinh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Mul", gradient, apply(context, "Cosh", x)),)


SINH = unary("Sinh", FLOATS, _sinh_gradient, names=("input", "output"))
"""Y = sinh(X)."""


def _cosh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Mul", gradient, apply(context, "Sinh", x)),)


COSH = unary("Cosh", FLOATS, _cosh_gradient, names=("input", "output"))
"""Y = cosh(X)."""


def _tanh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("TanhGrad", (incoming(context), context.output(0)), domain=WEFT_DOMAIN)


TANH = unary("Tanh", FLOATS, _tanh_gradient, names=("input", "output"), follows=True)
"""Y = tanh(X)."""


TANH_GRAD = OpSchema(
    op_type="TanhGrad",
    inputs=(required("gradient", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""TanhGrad(gradient, output): gradient * (1 - output^2)."""


def _asinh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Div", gradient, apply(context, "Sqrt", one_plus_square(context, x))),)


ASINH = unary("Asinh", FLOATS, _asinh_gradient, names=("input", "output"))
"""Y = arsinh(X)."""


def _acosh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Div", gradient, apply(context, "Sqrt", square_minus_one(context, x))),)


ACOSH = unary("Acosh", FLOATS, _acosh_gradient, names=("input", "output"))
"""Y = arcosh(X); NaN below 1."""


def _atanh_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    return (apply(context, "Div", gradient, one_minus_square(context, x)),)


ATANH = unary("Atanh", FLOATS, _atanh_gradient, names=("input", "output"))
"""Y = artanh(X); NaN outside [-1, 1]."""
