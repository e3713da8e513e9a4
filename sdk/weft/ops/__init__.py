"""One function for each of ONNX's operators, and `apply` for any operator that has a schema.

An operand is an expression, a number or an array; a number takes the element type of the operand beside it. Shapes are
checked when a function is called. `name=` asks for the node's name in the graph, which otherwise is made of the
operator's: `relu`, `relu_2`. Semantics are those of ONNX's operator set 15.
"""

from __future__ import annotations

from weft.ops.elementwise import (
    add,
    cast,
    div,
    equal,
    exp,
    greater,
    identity,
    log,
    mul,
    neg,
    pow,  # noqa: A004 - ONNX's word
    relu,
    sigmoid,
    sqrt,
    sub,
    tanh,
    where,
)
from weft.ops.generic import apply
from weft.ops.linear import gemm, matmul
from weft.ops.neural import (
    average_pool,
    batch_normalization,
    conv,
    dropout,
    global_average_pool,
    log_softmax,
    max_pool,
    softmax,
    softmax_cross_entropy,
)
from weft.ops.reduction import argmax, reduce_mean, reduce_sum
from weft.ops.rows import embedding, gather
from weft.ops.shape import concat, flatten, reshape, squeeze, transpose, unsqueeze

__all__ = [
    "add",
    "apply",
    "argmax",
    "average_pool",
    "batch_normalization",
    "cast",
    "concat",
    "conv",
    "div",
    "dropout",
    "embedding",
    "equal",
    "exp",
    "flatten",
    "gather",
    "gemm",
    "global_average_pool",
    "greater",
    "identity",
    "log",
    "log_softmax",
    "matmul",
    "max_pool",
    "mul",
    "neg",
    "pow",
    "reduce_mean",
    "reduce_sum",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "softmax_cross_entropy",
    "sqrt",
    "squeeze",
    "sub",
    "tanh",
    "transpose",
    "unsqueeze",
    "where",
]
