"""Activation functions, element by element."""

from __future__ import annotations

from weft_graph.attributes import as_float, as_str
from weft_graph.dimensions import agree_all
from weft_graph.formals import FLOATS, NUMBERS, SIGNED, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.pointwise import binary, unary
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcasts_to, check_same_dtype, infer_unary, sum_to
from weft_graph.shapes.gradients import apply, given_attributes, incoming, scalar
from weft_graph.types import TensorType

# --- Swish, x * sigmoid(alpha * x), and its slope, as compositions for gradients --------------------------------------


def swish_slope(context: GradientContext, x: str) -> str:
    """The name of sigmoid(alpha * x) * (1 + alpha * x * (1 - sigmoid(alpha * x))), with the node's alpha."""
    alpha, one = scalar(context, as_float(context.attribute("alpha")), x), scalar(context, 1, x)
    scaled = apply(context, "Mul", x, alpha)
    share = apply(context, "Sigmoid", scaled)
    rest = apply(context, "Mul", scaled, apply(context, "Sub", one, share))
    return apply(context, "Mul", share, apply(context, "Add", one, rest))


def _relu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("ReluGrad", (incoming(context), context.output(0)), domain=WEFT_DOMAIN)


RELU = unary("Relu", SIGNED, _relu_gradient, follows=True)
"""Y = max(X, 0)."""


RELU_GRAD = OpSchema(
    op_type="ReluGrad",
    inputs=(required("gradient", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""ReluGrad(gradient, output): the gradient where Relu's output is positive, else 0."""


def _leaky_relu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    negative = apply(context, "LessOrEqual", x, scalar(context, 0, x))
    share = apply(context, "Mul", gradient, scalar(context, as_float(context.attribute("alpha")), x))
    return (apply(context, "Where", negative, share, gradient),)


LEAKY_RELU = unary(
    "LeakyRelu", FLOATS, _leaky_relu_gradient, attributes={"alpha": Attribute(float, default=0.01)}, follows=True
)
"""Y = X, where it is below 0 times `alpha`. At 0 the slope is `alpha`."""


def _infer_prelu(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    data, slope = context.input(0), context.input(1)
    if not broadcasts_to(slope.shape, data.shape):
        raise context.shape_error(f"slope {slope} does not broadcast to {data}")
    return (data,)


def _prelu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x, slope = incoming(context), context.input(0), context.input(1)
    zero = scalar(context, 0, x)
    negative = apply(context, "LessOrEqual", x, zero)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        share = apply(context, "Mul", gradient, slope)
        gradients[0] = apply(context, "Where", negative, share, gradient)
    if context.needs(1):
        part = apply(context, "Where", negative, apply(context, "Mul", gradient, x), zero)
        gradients[1] = sum_to(context, part, slope)
    return tuple(gradients)


PRELU = binary("PRelu", NUMBERS, _prelu_gradient, infer=_infer_prelu, names=("X", "slope", "Y"), follows=True)
"""Y = X, where it is below 0 times `slope`, which broadcasts to X. At 0 that is the slope of Y, too."""


def _thresholded_relu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    above = apply(context, "Greater", x, scalar(context, as_float(context.attribute("alpha")), x))
    return (apply(context, "Where", above, gradient, scalar(context, 0, x)),)


THRESHOLDED_RELU = unary(
    "ThresholdedRelu",
    FLOATS,
    _thresholded_relu_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    follows=True,
)
"""Y = X where it is above `alpha`, 0 elsewhere."""


def _shrink_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    limit = as_float(context.attribute("lambd"))
    below = apply(context, "Less", x, scalar(context, -limit, x))
    outside = apply(context, "Or", below, apply(context, "Greater", x, scalar(context, limit, x)))
    return (apply(context, "Where", outside, gradient, scalar(context, 0, x)),)


SHRINK = unary(
    "Shrink",
    NUMBERS,
    _shrink_gradient,
    names=("input", "output"),
    attributes={"bias": Attribute(float, default=0.0), "lambd": Attribute(float, default=0.5)},
)
"""Shrink: Y = X + `bias` below -`lambd`, X - `bias` above `lambd`, 0 between."""


def _elu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    negative = apply(context, "LessOrEqual", x, scalar(context, 0, x))
    # alpha * exp(X) is the output, higher by alpha.
    slope = apply(context, "Add", context.output(0), scalar(context, as_float(context.attribute("alpha")), x))
    share = apply(context, "Mul", gradient, slope)
    return (apply(context, "Where", negative, share, gradient),)


ELU = unary("Elu", FLOATS, _elu_gradient, attributes={"alpha": Attribute(float, default=1.0)}, follows=True)
"""Y = X, where it is below 0 `alpha` * (exp(X) - 1). At 0 the slope is `alpha`."""


def _infer_celu(context: InferContext) -> tuple[TensorType, ...]:
    if as_float(context.attribute("alpha")) == 0:
        raise context.shape_error("alpha must not be 0")
    return (context.input(0),)


def _celu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    negative = apply(context, "Less", x, scalar(context, 0, x))
    # exp(X / alpha) is the output over alpha, higher by 1.
    slope = apply(context, "Div", context.output(0), scalar(context, as_float(context.attribute("alpha")), x))
    share = apply(context, "Mul", gradient, apply(context, "Add", slope, scalar(context, 1, x)))
    return (apply(context, "Where", negative, share, gradient),)


CELU = OpSchema(
    op_type="Celu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_celu,
    gradient=_celu_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
    follows=True,
)
"""Y = X, where it is below 0 `alpha` * (exp(X / alpha) - 1)."""


def _selu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, x = incoming(context), context.input(0)
    alpha, gamma = as_float(context.attribute("alpha")), as_float(context.attribute("gamma"))
    # gamma * alpha * exp(X) is the output, higher by gamma * alpha.
    slope = apply(context, "Add", context.output(0), scalar(context, gamma * alpha, x))
    positive = apply(context, "Greater", x, scalar(context, 0, x))
    return (apply(context, "Mul", gradient, apply(context, "Where", positive, scalar(context, gamma, x), slope)),)


SELU = OpSchema(
    op_type="Selu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=infer_unary,
    gradient=_selu_gradient,
    attributes={
        "alpha": Attribute(float, default=1.67326319217681884765625),
        "gamma": Attribute(float, default=1.05070102214813232421875),
    },
    pointwise=True,
    follows=True,
)
"""Y = `gamma` * X, where it is not above 0 `gamma` * `alpha` * (exp(X) - 1)."""


def _sigmoid_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("SigmoidGrad", (incoming(context), context.output(0)), domain=WEFT_DOMAIN)


SIGMOID = unary("Sigmoid", FLOATS, _sigmoid_gradient, follows=True)
"""Y = 1 / (1 + exp(-X))."""


SIGMOID_GRAD = OpSchema(
    op_type="SigmoidGrad",
    inputs=(required("gradient", FLOATS), required("output", FLOATS)),
    outputs=(required("input_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""SigmoidGrad(gradient, output): gradient * output * (1 - output)."""


def _hard_sigmoid_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, output = incoming(context), context.output(0)
    above = apply(context, "Greater", output, scalar(context, 0, output))
    inside = apply(context, "And", above, apply(context, "Less", output, scalar(context, 1, output)))
    share = apply(context, "Mul", gradient, scalar(context, as_float(context.attribute("alpha")), output))
    return (apply(context, "Where", inside, share, scalar(context, 0, output)),)


HARD_SIGMOID = unary(
    "HardSigmoid",
    FLOATS,
    _hard_sigmoid_gradient,
    attributes={"alpha": Attribute(float, default=0.2), "beta": Attribute(float, default=0.5)},
    follows=True,
)
"""Y = `alpha` * X + `beta`, within 0 and 1."""


def _hard_swish_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("HardSwishGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


HARD_SWISH = unary("HardSwish", FLOATS, _hard_swish_gradient, follows=True)
"""Y = X * max(0, min(1, X / 6 + 1 / 2))."""


HARD_SWISH_GRAD = OpSchema(
    op_type="HardSwishGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""HardSwishGrad(gradient, X): gradient * (X / 3 + 1 / 2) where X is less than 3 from 0, the gradient above, 0 below."""


def _swish_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), swish_slope(context, context.input(0))),)


SWISH = unary("Swish", FLOATS, _swish_gradient, attributes={"alpha": Attribute(float, default=1.0)}, follows=True)
"""Y = X * sigmoid(`alpha` * X)."""


def _infer_swi_glu(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    if not agree_all(context.input(0).shape, context.input(1).shape):
        raise context.shape_error(f"A {context.input(0)} and B {context.input(1)} must have one shape")
    return (context.input(0),)


def _swi_glu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, gate, value = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        slope = swish_slope(context, gate)
        gradients[0] = apply(context, "Mul", gradient, apply(context, "Mul", slope, value))
    if context.needs(1):
        swish = apply(context, "Swish", gate, alpha=as_float(context.attribute("alpha")))
        gradients[1] = apply(context, "Mul", gradient, swish)
    return tuple(gradients)


SWI_GLU = OpSchema(
    op_type="SwiGLU",
    inputs=(required("A", FLOATS), required("B", FLOATS)),
    outputs=(required("Y", FLOATS),),
    infer=_infer_swi_glu,
    gradient=_swi_glu_gradient,
    attributes={"alpha": Attribute(float, default=1.0)},
    pointwise=True,
    follows=True,
)
"""SwiGLU: Y = A * sigmoid(`alpha` * A) * B, of two inputs of one shape."""


def _infer_gelu(context: InferContext) -> tuple[TensorType, ...]:
    approximate = as_str(context.attribute("approximate"))
    if approximate not in {"none", "tanh"}:
        raise context.shape_error(f"approximate {approximate!r} is none of none, tanh")
    return (context.input(0),)


def _gelu_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit(
        "GeluGrad",
        (incoming(context), context.input(0)),
        given_attributes(context, ("approximate",)),
        domain=WEFT_DOMAIN,
    )


GELU = OpSchema(
    op_type="Gelu",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_gelu,
    gradient=_gelu_gradient,
    attributes={"approximate": Attribute(str, default="none")},
    pointwise=True,
    follows=True,
)
"""Y = X * P(a standard normal number is below X); `approximate` "tanh" takes a tanh for P."""


GELU_GRAD = OpSchema(
    op_type="GeluGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    attributes={"approximate": Attribute(str, default="none")},
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""GeluGrad(gradient, X): gradient * (P(X) + X * P'(X)), P as `approximate` has it; Gelu's attributes."""


def _mish_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("MishGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


MISH = unary("Mish", FLOATS, _mish_gradient, follows=True)
"""Y = X * tanh(ln(exp(X) + 1))."""


MISH_GRAD = OpSchema(
    op_type="MishGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
    pointwise=True,
)
"""MishGrad(gradient, X): gradient * (t + X * (1 - t^2) * sigmoid(X)), where t = tanh(ln(exp(X) + 1))."""


def _softplus_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return (apply(context, "Mul", incoming(context), apply(context, "Sigmoid", context.input(0))),)


SOFTPLUS = unary("Softplus", FLOATS, _softplus_gradient)
"""Y = ln(exp(X) + 1)."""


def _softsign_gradient(context: GradientContext) -> tuple[str | None, ...]:
    x = context.input(0)
    below = apply(context, "Add", apply(context, "Abs", x), scalar(context, 1, x))
    return (apply(context, "Div", incoming(context), apply(context, "Mul", below, below)),)


SOFTSIGN = unary("Softsign", FLOATS, _softsign_gradient, names=("input", "output"))
"""Y = X / (1 + |X|)."""
