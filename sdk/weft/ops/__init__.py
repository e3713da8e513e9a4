"""One function for each of ONNX's operators, and `apply` for any operator that has a schema.

An operand is an expression, a number or an array; a number takes the element type of the operand beside it. Shapes are
checked when a function is called. `name=` asks for the node's name in the graph, which otherwise is made of the
operator's: `relu`, `relu_2`. `docs/operators.md` says which of ONNX's versions each operator takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from weft.arguments import no_attribute, says_its_words
from weft.ops.activations import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    mish,
    prelu,
    selu,
    softplus,
    softsign,
)
from weft.ops.arithmetic import (
    abs,  # noqa: A004 - ONNX's word
    ceil,
    clip,
    cos,
    erf,
    floor,
    max,  # noqa: A004 - ONNX's word
    mean,
    min,  # noqa: A004 - ONNX's word
    mod,
    reciprocal,
    round,  # noqa: A004 - ONNX's word
    sign,
    sin,
    sum,  # noqa: A004 - ONNX's word
)
from weft.ops.attending import attention, rotary_embedding
from weft.ops.choosing import compress, non_zero, reverse_sequence, top_k, unique
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
from weft.ops.generic import apply, ways_to_write
from weft.ops.linear import (
    einsum,
    gemm,
    matmul,
)
from weft.ops.logic import (
    greater_or_equal,
    is_inf,
    is_nan,
    less,
    less_or_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from weft.ops.neural import (
    average_pool,
    batch_normalization,
    conv,
    conv_transpose,
    dropout,
    global_average_pool,
    global_max_pool,
    log_softmax,
    max_pool,
    negative_log_likelihood,
    softmax,
    softmax_cross_entropy,
)
from weft.ops.normalizing import (
    group_normalization,
    instance_normalization,
    layer_normalization,
    local_response_normalization,
    lp_normalization,
    rms_normalization,
)
from weft.ops.recurrent import (
    gru,
    lstm,
    rnn,
    stop_gradient,
)
from weft.ops.reduction import (
    argmax,
    argmin,
    cum_sum,
    reduce_l1,
    reduce_l2,
    reduce_log_sum_exp,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
    reduce_sum_square,
)
from weft.ops.rows import embedding, gather, gather_elements, gather_nd, scatter_elements, scatter_nd
from weft.ops.sampling import (
    affine_grid,
    depth_to_space,
    grid_sample,
    max_pool_with_indices,
    max_unpool,
    resize,
    space_to_depth,
)
from weft.ops.shape import (
    concat,
    expand,
    flatten,
    one_hot,
    pad,
    reshape,
    slice,  # noqa: A004 - ONNX's word
    split,
    squeeze,
    tile,
    transpose,
    trilu,
    unsqueeze,
)

__all__ = [
    "abs",
    "add",
    "affine_grid",
    "apply",
    "argmax",
    "argmin",
    "attention",
    "average_pool",
    "batch_normalization",
    "cast",
    "ceil",
    "celu",
    "clip",
    "compress",
    "concat",
    "conv",
    "conv_transpose",
    "cos",
    "cum_sum",
    "depth_to_space",
    "div",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "expand",
    "flatten",
    "floor",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "gemm",
    "global_average_pool",
    "global_max_pool",
    "greater",
    "greater_or_equal",
    "grid_sample",
    "group_normalization",
    "gru",
    "hard_sigmoid",
    "hard_swish",
    "identity",
    "instance_normalization",
    "is_inf",
    "is_nan",
    "layer_normalization",
    "leaky_relu",
    "less",
    "less_or_equal",
    "local_response_normalization",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lp_normalization",
    "lstm",
    "matmul",
    "max",
    "max_pool",
    "max_pool_with_indices",
    "max_unpool",
    "mean",
    "min",
    "mish",
    "mod",
    "mul",
    "neg",
    "negative_log_likelihood",
    "non_zero",
    "one_hot",
    "pad",
    "pow",
    "prelu",
    "reciprocal",
    "reduce_l1",
    "reduce_l2",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
    "relu",
    "reshape",
    "resize",
    "reverse_sequence",
    "rms_normalization",
    "rnn",
    "rotary_embedding",
    "round",
    "scatter_elements",
    "scatter_nd",
    "selu",
    "sigmoid",
    "sign",
    "sin",
    "slice",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "space_to_depth",
    "split",
    "sqrt",
    "squeeze",
    "stop_gradient",
    "sub",
    "sum",
    "tanh",
    "tile",
    "top_k",
    "transpose",
    "trilu",
    "unique",
    "unsqueeze",
    "where",
]


if not TYPE_CHECKING:  # where wrong arguments, and names that are not there, are errors already
    for _name in __all__:
        globals()[_name] = says_its_words(globals()[_name])

    def __getattr__(name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(no_attribute(__name__, name, ()))
        raise AttributeError(no_attribute(__name__, name, __all__, ways_to_write(__all__)))
