"""Matrix products, determinants, sums of products."""

from __future__ import annotations

import numpy as np

from weft_graph.attributes import as_float, as_int, as_str
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.shapes.einsum import parsed
from weft_kernels.arguments import optional, required
from weft_kernels.kernel import Array, Attributes, Inputs, KernelContext, Outputs, kernel
from weft_kernels.products import as_matrices, contracted, flat_rows, product, products_before, sum_stack


@kernel("MatMul", in_float32=())
def matmul(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The product of matrices or of stacks of them."""
    left, right = required(inputs)
    if context.xp is np:
        return (np.matmul(left, right, out=context.out(0)),)
    return (product(context.xp, left, right, context.out(0)),)


@kernel("MatMulLeftGrad", domain=WEFT_DOMAIN, in_float32=())
def matmul_left_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the left operand of a matrix product: gradient times right, transposed."""
    gradient, left, right = required(inputs)
    wide_gradient, wide_left, wide_right = as_matrices(gradient, left, right)
    made = product(context.xp, wide_gradient, wide_right.swapaxes(-1, -2), context.out(0, left.dtype))
    return (made if made.shape == left.shape else sum_stack(context.xp, made, wide_left.shape).reshape(left.shape),)


@kernel("MatMulRightGrad", domain=WEFT_DOMAIN, in_float32=())
def matmul_right_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Gradient of the right operand of a matrix product: left, transposed, times gradient."""
    gradient, left, right = required(inputs)
    wide_gradient, wide_left, wide_right = as_matrices(gradient, left, right)
    if wide_right.ndim == 2:
        # One matrix for the whole stack: its rows join the sum, so no stack of products is ever made.
        across, along = flat_rows(wide_left).T, flat_rows(wide_gradient)
    else:
        across, along = wide_left.swapaxes(-1, -2), wide_gradient
    made = product(context.xp, across, along, context.out(0, right.dtype))
    return (made if made.shape == right.shape else sum_stack(context.xp, made, wide_right.shape).reshape(right.shape),)


@kernel("Gemm", in_float32=())
def gemm(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """The general matrix product."""
    left, right = required(inputs, 2)
    bias = optional(inputs, 2)
    alpha, beta = as_float(attributes["alpha"]), as_float(attributes["beta"])
    result = context.xp.matmul(
        left.T if as_int(attributes["transA"]) else left,
        right.T if as_int(attributes["transB"]) else right,
        out=context.out(0, left.dtype) if alpha == 1 else None,
    )
    # The product is this kernel's own, so that what follows may write it. Integers are scaled as floats, then cut.
    if alpha != 1:
        result = _scaled(result, alpha)
    if bias is not None and beta != 0:
        result += bias if beta == 1 else _scaled(bias, beta)
    return (result,)


def _scaled(array: Array, factor: float) -> Array:
    return (array * factor).astype(array.dtype, copy=False)


@kernel("Einsum", in_float32=())
def einsum(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Sums of products over labelled dimensions."""
    arrays = required(inputs)
    equation = parsed(as_str(attributes["equation"]), [array.ndim for array in arrays])
    return (contracted(context.xp, equation, arrays),)


@kernel("Det", in_float32=("float16", "bfloat16"), waits=True)
def det(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Determinants."""
    (data,) = required(inputs)
    return (context.xp.linalg.det(data),)


@kernel("DetGrad", domain=WEFT_DOMAIN, in_float32=("float16", "bfloat16"), waits=True)
def det_grad(context: KernelContext, inputs: Inputs, attributes: Attributes) -> Outputs:
    """Cofactors, from singular values: with X = U diag(s) V they are det(UV) U diag(products of the others) V."""
    xp = context.xp
    gradient, data = required(inputs)
    left, values, right = xp.linalg.svd(data)
    by_value = values.swapaxes(0, -1)
    others = products_before(xp, by_value) * products_before(xp, by_value[::-1])[::-1]
    sign = xp.linalg.det(left) * xp.linalg.det(right)
    cofactors = xp.matmul(left * others.swapaxes(0, -1)[..., None, :], right)
    return ((gradient * sign)[..., None, None] * cofactors,)
