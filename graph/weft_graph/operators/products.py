"""Matrix products, determinants, sums of products."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.dimensions import Dim, agree, is_unknown
from weft_graph.formals import FLOATS, NUMBERS, SUMMABLE, optional, required, variadic
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import broadcasts_to, check_same_dtype, infer_like, sum_to
from weft_graph.shapes.einsum import Equation, parsed, sizes_of
from weft_graph.shapes.flops import product_gradient, scaled_product, stacked_products
from weft_graph.shapes.gradients import apply, incoming, refusal, scalar
from weft_graph.shapes.windows import infer_product
from weft_graph.types import Shape, TensorType


def _infer_matmul(context: InferContext) -> tuple[TensorType, ...]:
    check_same_dtype(context, 0, 1)
    left, right = context.input(0), context.input(1)
    return (TensorType(left.dtype, infer_product(context, left, right)),)


def _matmul_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, left, right = incoming(context), context.input(0), context.input(1)
    gradients: list[str | None] = [None, None]
    if context.needs(0):
        (gradients[0],) = context.emit("MatMulLeftGrad", (gradient, left, right), domain=WEFT_DOMAIN)
    if context.needs(1):
        (gradients[1],) = context.emit("MatMulRightGrad", (gradient, left, right), domain=WEFT_DOMAIN)
    return tuple(gradients)


MATMUL = OpSchema(
    op_type="MatMul",
    inputs=(required("A", SUMMABLE), required("B", SUMMABLE)),
    outputs=(required("Y", SUMMABLE),),
    infer=_infer_matmul,
    gradient=_matmul_gradient,
    flops=stacked_products,
    product=True,
)
"""MatMul: the product of matrices, or of stacks of them that broadcast, as numpy.matmul defines it."""


MATMUL_LEFT_GRAD = OpSchema(
    op_type="MatMulLeftGrad",
    inputs=(required("gradient", FLOATS), required("left", FLOATS), required("right", FLOATS)),
    outputs=(required("left_gradient", FLOATS),),
    infer=infer_like(1),
    domain=WEFT_DOMAIN,
    flops=product_gradient,
)
"""MatMulLeftGrad(gradient, left, right): the gradient of MatMul's left operand, of that operand's shape."""


MATMUL_RIGHT_GRAD = OpSchema(
    op_type="MatMulRightGrad",
    inputs=(required("gradient", FLOATS), required("left", FLOATS), required("right", FLOATS)),
    outputs=(required("right_gradient", FLOATS),),
    infer=infer_like(2),
    domain=WEFT_DOMAIN,
    flops=product_gradient,
)
"""MatMulRightGrad(gradient, left, right): the gradient of MatMul's right operand, of that operand's shape."""


def _infer_gemm(context: InferContext) -> tuple[TensorType, ...]:
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


def _gemm_gradient(context: GradientContext) -> tuple[str | None, ...]:
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


GEMM = OpSchema(
    op_type="Gemm",
    inputs=(required("A", SUMMABLE), required("B", SUMMABLE), optional("C", SUMMABLE)),
    outputs=(required("Y", SUMMABLE),),
    infer=_infer_gemm,
    gradient=_gemm_gradient,
    attributes={
        "alpha": Attribute(float, default=1.0),
        "beta": Attribute(float, default=1.0),
        "transA": Attribute(int, default=0),
        "transB": Attribute(int, default=0),
    },
    flops=scaled_product,
    product=True,
)
"""Gemm: Y = alpha * A' B' + beta * C, where A' is A or its transpose, and C broadcasts to Y."""


def _infer_einsum(context: InferContext) -> tuple[TensorType, ...]:
    types = [context.input(index) for index in range(len(context.node.inputs))]
    check_same_dtype(context, *range(len(types)))
    try:
        equation = parsed(as_str(context.attribute("equation")), [type_.rank for type_ in types])
        sizes = sizes_of(equation, [type_.shape for type_ in types])
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(types[0].dtype, tuple(sizes[label] for label in equation.result)),)


def _einsum_gradient(context: GradientContext) -> tuple[str | None, ...]:
    shapes = [context.type_of(name).shape for name in context.node.inputs]
    equation = parsed(as_str(context.attribute("equation")), [len(shape) for shape in shapes])
    return tuple(
        _of_operand(context, equation, shapes, index) if context.needs(index) else None for index in range(len(shapes))
    )


def _of_operand(context: GradientContext, equation: Equation, shapes: Sequence[Shape], index: int) -> str:
    """The product of the gradient and the others, summed to what the operand has, then spread over the rest.

    A label that stands twice is taken once, and the result put into the diagonal.
    """
    labels, sizes = equation.operands[index], sizes_of(equation, shapes)
    if any(
        is_unknown(sizes[label]) or is_unknown(shape[axis]) for shape, axis, label in _wide(equation, shapes, sizes)
    ):
        raise refusal(context, "whether a dimension of an ellipsis is broadcast is known only in a step")
    others = [_unstretched(context, equation, shapes, place) for place in range(len(shapes)) if place != index]
    terms, values = (equation.result, *(term for term, _ in others)), (incoming(context), *(name for _, name in others))
    once = "".join(dict.fromkeys(labels))
    shape = tuple(shapes[index][labels.index(label)] for label in once)
    # What only this operand has was summed, and is spread again; what was broadcast is summed.
    alone = [axis for axis, label in enumerate(once) if not any(label in term for term in terms)]
    stretched = [axis for axis, label in enumerate(once) if shape[axis] != sizes[label]]
    gone = sorted({*alone, *stretched})
    target = "".join(label for axis, label in enumerate(once) if axis not in gone)
    part = apply(context, "Einsum", *values, equation=f"{','.join(terms)}->{target}")
    if gone:
        part = apply(context, "Unsqueeze", part, context.constant(np.array(gone, dtype=np.int64)))
    operand = context.input(index)
    if alone:
        like = operand if once == labels else apply(context, "Einsum", operand, equation=f"{labels}->{once}")
        attributes: dict[str, AttributeValue] = {"axes": tuple(alone), "keepdims": 1}
        (part,) = context.emit("ReduceSumGrad", (part, like), attributes, domain=WEFT_DOMAIN)
    if once == labels:
        return part
    return context.emit("DiagonalGrad", (part, operand), {"labels": labels}, domain=WEFT_DOMAIN)[0]


def _wide(equation: Equation, shapes: Sequence[Shape], sizes: Mapping[str, Dim]) -> Iterator[tuple[Shape, int, str]]:
    """(shape, axis, label) of each dimension of an ellipsis that is another than the result's."""
    for labels, shape in zip(equation.operands, shapes, strict=True):
        for axis, label in enumerate(labels):
            if label in equation.wide and shape[axis] != sizes[label]:
                yield shape, axis, label


def _unstretched(context: GradientContext, equation: Equation, shapes: Sequence[Shape], place: int) -> tuple[str, str]:
    """(labels, name) of operand `place` without the dimensions of 1 that are broadcast."""
    labels, name, sizes = equation.operands[place], context.input(place), sizes_of(equation, shapes)
    axes = [axis for axis, label in enumerate(labels) if shapes[place][axis] != sizes[label]]
    if not axes:
        return labels, name
    left = "".join(label for axis, label in enumerate(labels) if axis not in axes)
    return left, apply(context, "Squeeze", name, context.constant(np.array(axes, dtype=np.int64)))


EINSUM = OpSchema(
    op_type="Einsum",
    inputs=(variadic("Inputs", NUMBERS),),
    outputs=(required("Output", NUMBERS),),
    infer=_infer_einsum,
    gradient=_einsum_gradient,
    attributes={"equation": Attribute(str, required=True)},
    product=True,
)
"""Einsum: sums of products over the labels of an `equation`: `bij,bjk->bik`.

A label that stands twice in an operand is its diagonal: outside it the operand's gradient is 0.
"""


def _infer_det(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    if data.rank < 2 or not agree(*data.shape[-2:]):
        raise context.shape_error(f"the input must be square matrices, got {data}")
    return (TensorType(data.dtype, data.shape[:-2]),)


def _det_gradient(context: GradientContext) -> tuple[str | None, ...]:
    return context.emit("DetGrad", (incoming(context), context.input(0)), domain=WEFT_DOMAIN)


DET = OpSchema(
    op_type="Det",
    inputs=(required("X", FLOATS),),
    outputs=(required("Y", FLOATS),),
    infer=_infer_det,
    gradient=_det_gradient,
)
"""Det: the determinants of square matrices."""


DET_GRAD = OpSchema(
    op_type="DetGrad",
    inputs=(required("gradient", FLOATS), required("X", FLOATS)),
    outputs=(required("X_gradient", FLOATS),),
    infer=infer_like(1),
    domain=WEFT_DOMAIN,
)
"""DetGrad(gradient, X): the gradient times the cofactors of X, which singular matrices have too."""
