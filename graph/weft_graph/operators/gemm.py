"""Gemm: Y = alpha * A' B' + beta * C, where A' is A or its transpose, and C broadcasts to Y."""

from __future__ import annotations

from weft_graph.attributes import as_float, as_int
from weft_graph.dimensions.dims import agree
from weft_graph.formals import SUMMABLE, optional, required
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcasts_to, check_same_dtype, sum_to
from weft_graph.shapes.flops import scaled_product
from weft_graph.shapes.flow import incoming, scalar
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    left, right, bias = context.input(0), context.input(1), context.optional_input(2)
    if left.rank != 2 or right.rank != 2:
        raise context.shape_error(f"A and B must be matrices, got {left} and {right}")
    check_same_dtype(context, *range(2 if bias is None else 3))
    rows, inner = left.shape[::-1] if as_int(context.attribute("transA")) else left.shape
    inner_right, columns = right.shape[::-1] if as_int(context.attribute("transB")) else right.shape
    if not agree(inner, inner_right):
        raise context.shape_error(f"inner dimensions differ: {inner} of A {left} and {inner_right} of B {right}")
    shape = (rows, columns)
    if bias is not None and not broadcasts_to(bias.shape, shape):
        raise context.shape_error(f"C {bias} does not broadcast to {TensorType(left.dtype, shape)}")
    return (TensorType(left.dtype, shape),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, left, right = incoming(context), context.input(0), context.input(1)
    transposed_a, transposed_b = as_int(context.attribute("transA")), as_int(context.attribute("transB"))
    alpha = as_float(context.attribute("alpha"))

    def product(first: str, second: str, transposed_first: int, transposed_second: int) -> str:
        attributes = {"alpha": alpha, "transA": transposed_first, "transB": transposed_second}
        return context.emit("Gemm", (first, second), attributes)[0]

    gradients: list[str | None] = [None] * len(context.node.inputs)
    if context.needs(0):
        # dA' = alpha * dY B'^T, and dA is its transpose where A was transposed.
        gradients[0] = (
            product(right, gradient, transposed_b, 1) if transposed_a else product(gradient, right, 0, 1 - transposed_b)
        )
    if context.needs(1):
        # dB' = alpha * A'^T dY, and dB is its transpose where B was transposed.
        gradients[1] = (
            product(gradient, left, 1, transposed_a) if transposed_b else product(left, gradient, 1 - transposed_a, 0)
        )
    if len(gradients) > 2 and context.needs(2):
        gradients[2] = _bias_gradient(context, gradient)
    return tuple(gradients)


def _bias_gradient(context: GradientContext, gradient: str) -> str:
    summed = sum_to(context, gradient, context.input(2))
    beta = as_float(context.attribute("beta"))
    return summed if beta == 1 else context.emit("Mul", (summed, scalar(context, beta, gradient)))[0]


SCHEMA = OpSchema(
    op_type="Gemm",
    inputs=(required("A", SUMMABLE), required("B", SUMMABLE), optional("C", SUMMABLE)),
    outputs=(required("Y", SUMMABLE),),
    infer=_infer,
    gradient=_gradient,
    attributes={
        "alpha": Attribute(float, default=1.0),
        "beta": Attribute(float, default=1.0),
        "transA": Attribute(int, default=0),
        "transB": Attribute(int, default=0),
    },
    flops=scaled_product,
)
