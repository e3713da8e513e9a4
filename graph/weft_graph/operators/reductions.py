"""Reductions over axes, running sums and products, the largest and where they are."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions import agree, larger, plus, product, smaller, times
from weft_graph.folding import reduced_by
from weft_graph.formals import ANY, BOOLEANS, FLOATS, INDICES, INT64, NUMBERS, SUMMABLE, optional, required
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, Folding, Gradient, GradientContext, InferContext, OpSchema
from weft_graph.shapes.arranging import same
from weft_graph.shapes.broadcasting import broadcasts_to, infer_axis, infer_like, normalised
from weft_graph.shapes.flops import reduced
from weft_graph.shapes.gradients import apply, given_attributes, incoming, scalar
from weft_graph.shapes.reductions import (
    PLACE_ATTRIBUTES,
    REDUCTION_ATTRIBUTES,
    by_data,
    gradient_inputs,
    infer_place,
    infer_reduction,
    infer_reduction_gradient,
    reduced_to_equals,
    reduction_gradient,
    spread,
)
from weft_graph.types import DType, TensorType


def _reduction(op_type: str, takes: frozenset[DType], gradient: Gradient, folding: Folding | None = None) -> OpSchema:
    """Over `axes`, an input or an attribute; over all of them where there are none."""
    return OpSchema(
        op_type=op_type,
        inputs=(required("data", takes), optional("axes", INT64)),
        outputs=(required("reduced", takes),),
        infer=infer_reduction,
        gradient=gradient,
        attributes=REDUCTION_ATTRIBUTES,
        flops=reduced,
        folding=folding,
    )


def _reduction_gradient(op_type: str, shape_only: tuple[int, ...] = ()) -> OpSchema:
    """What becomes of the gradient, in the shape of the data; the reduction's attributes."""
    return OpSchema(
        op_type=op_type,
        inputs=gradient_inputs(FLOATS),
        outputs=(required("data_gradient", FLOATS),),
        infer=infer_reduction_gradient,
        attributes=REDUCTION_ATTRIBUTES,
        domain=WEFT_DOMAIN,
        shape_only=shape_only,
    )


REDUCE_SUM = _reduction("ReduceSum", SUMMABLE, reduction_gradient, reduced_by(plus, 0))
"""ReduceSum: the sum over `axes`, an input or an attribute; over all of them where there are none."""


REDUCE_SUM_GRAD = _reduction_gradient("ReduceSumGrad", shape_only=(1,))
"""ReduceSumGrad(gradient, data, axes): the gradient, in the shape of data; ReduceSum's attributes."""


REDUCE_MEAN = _reduction("ReduceMean", SUMMABLE, reduction_gradient)
"""ReduceMean: the mean over `axes`, an input or an attribute; over all of them where there are none."""


REDUCE_MEAN_GRAD = _reduction_gradient("ReduceMeanGrad", shape_only=(1,))
"""ReduceMeanGrad(gradient, data, axes): what each element of data has of the gradient; ReduceMean's attributes."""


_REDUCE_MAX_DTYPES = NUMBERS | BOOLEANS


REDUCE_MAX = _reduction("ReduceMax", _REDUCE_MAX_DTYPES, reduced_to_equals, reduced_by(larger, None))
"""ReduceMax: the largest element over `axes` (an input or an attribute), or over all.

Of no elements it is the type's lowest value. Equals share the gradient.
"""


REDUCE_MIN = _reduction("ReduceMin", _REDUCE_MAX_DTYPES, reduced_to_equals, reduced_by(smaller, None))
"""ReduceMin: the smallest element over `axes` (an input or an attribute), or over all.

Of no elements it is the type's highest value. Equals share the gradient.
"""


def _reduce_prod_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), *context.node.inputs)
    attributes = given_attributes(context, REDUCTION_ATTRIBUTES)
    return by_data(context, context.emit("ReduceProdGrad", inputs, attributes, domain=WEFT_DOMAIN)[0])


REDUCE_PROD = _reduction("ReduceProd", SUMMABLE, _reduce_prod_gradient, reduced_by(times, 1))
"""ReduceProd: the product over `axes` (an input or an attribute), or over all."""


REDUCE_PROD_GRAD = _reduction_gradient("ReduceProdGrad")
"""ReduceProdGrad(gradient, data, axes): the gradient times the product of the other elements, also beside zeros."""


def _reduce_l1_gradient(context: GradientContext) -> tuple[str | None, ...]:
    slope = apply(context, "Sign", context.input(0))
    return by_data(context, apply(context, "Mul", spread(context, incoming(context)), slope))


REDUCE_L1 = _reduction("ReduceL1", SUMMABLE, _reduce_l1_gradient)
"""ReduceL1: the sum of absolute values over `axes` (an input or an attribute), or over all."""


def _reduce_l2_gradient(context: GradientContext) -> tuple[str | None, ...]:
    norm = context.output(0)
    zero = apply(context, "Equal", norm, scalar(context, 0, norm))
    safe = apply(context, "Where", zero, scalar(context, 1, norm), norm)
    share = apply(context, "Div", incoming(context), safe)
    return by_data(context, apply(context, "Mul", spread(context, share), context.input(0)))


REDUCE_L2 = _reduction("ReduceL2", SUMMABLE, _reduce_l2_gradient)
"""ReduceL2: the square root of the sum of squares over `axes` (an input or an attribute), or over all.

Where it is 0 the gradient is 0.
"""


def _reduce_log_sum_gradient(context: GradientContext) -> tuple[str | None, ...]:
    share = apply(context, "Div", incoming(context), apply(context, "Exp", context.output(0)))
    return by_data(context, spread(context, share))


REDUCE_LOG_SUM = _reduction("ReduceLogSum", FLOATS, _reduce_log_sum_gradient)
"""ReduceLogSum: the logarithm of the sum over `axes` (an input or an attribute), or over all."""


def _reduce_log_sum_exp_gradient(context: GradientContext) -> tuple[str | None, ...]:
    below = apply(context, "Sub", context.input(0), spread(context, context.output(0)))
    return by_data(context, apply(context, "Mul", spread(context, incoming(context)), apply(context, "Exp", below)))


REDUCE_LOG_SUM_EXP = _reduction("ReduceLogSumExp", FLOATS, _reduce_log_sum_exp_gradient)
"""ReduceLogSumExp: the logarithm of the sum of exponentials over `axes` (an input or an attribute), or over all."""


def _reduce_sum_square_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient = incoming(context)
    twice = apply(context, "Mul", gradient, scalar(context, 2, gradient))
    return by_data(context, apply(context, "Mul", spread(context, twice), context.input(0)))


REDUCE_SUM_SQUARE = _reduction("ReduceSumSquare", SUMMABLE, _reduce_sum_square_gradient)
"""ReduceSumSquare: the sum of squares over `axes` (an input or an attribute), or over all."""


def _infer_sum_to(context: InferContext) -> tuple[TensorType, ...]:
    data, like = context.input(0), context.input(1)
    if not broadcasts_to(like.shape, data.shape):
        raise context.shape_error(f"{like} does not broadcast to {data}")
    return (TensorType(data.dtype, like.shape),)


SUM_TO = OpSchema(
    op_type="SumTo",
    inputs=(required("data", NUMBERS), required("like", ANY)),
    outputs=(required("sum", NUMBERS),),
    infer=_infer_sum_to,
    domain=WEFT_DOMAIN,
    views=same,
    shape_only=(1,),
)
"""SumTo(data, like): data summed over the dimensions along which `like` broadcasts to it; the shape of `like`."""


def cum_sum_infer_running(context: InferContext) -> tuple[TensorType, ...]:
    """Output like input 0, along the axis that input 1 is. Raises ShapeError where there is none such."""
    data, known = context.input(0), context.constant(1)
    if not agree(product(context.input(1).shape), 1):
        raise context.shape_error(f"axis {context.input(1)} must be one number")
    try:
        normalised(0 if known is None else int(known.reshape(-1)[0]), data.rank)
    except ValueError as error:
        raise context.shape_error(f"{error} of {data}") from None
    return (data,)


def _cum_sum_gradient(context: GradientContext) -> tuple[str | None, ...]:
    backwards = 1 - as_int(context.attribute("reverse"))
    attributes = {"exclusive": as_int(context.attribute("exclusive")), "reverse": backwards}
    return context.emit("CumSum", (incoming(context), context.input(1)), attributes)[0], None


CUM_SUM = OpSchema(
    op_type="CumSum",
    inputs=(required("x", SUMMABLE), required("axis", INDICES)),
    outputs=(required("y", SUMMABLE),),
    infer=cum_sum_infer_running,
    gradient=_cum_sum_gradient,
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    flops=reduced,
)
"""CumSum: the sum of all elements up to each one along `axis`; without itself, or from the end, as asked."""


def _cum_prod_gradient(context: GradientContext) -> tuple[str | None, ...]:
    attributes = given_attributes(context, ("exclusive", "reverse"))
    inputs = (incoming(context), *context.node.inputs)
    return context.emit("CumProdGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


CUM_PROD = OpSchema(
    op_type="CumProd",
    inputs=(required("x", SUMMABLE), required("axis", INDICES)),
    outputs=(required("y", SUMMABLE),),
    infer=cum_sum_infer_running,
    gradient=_cum_prod_gradient,
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    flops=reduced,
)
"""CumProd: the product of all elements up to each one along `axis`; without itself, or from the end, as asked."""


CUM_PROD_GRAD = OpSchema(
    op_type="CumProdGrad",
    inputs=(required("gradient", FLOATS), required("x", FLOATS), required("axis", INDICES)),
    outputs=(required("x_gradient", FLOATS),),
    infer=infer_like(1),
    attributes={"exclusive": Attribute(int, default=0), "reverse": Attribute(int, default=0)},
    domain=WEFT_DOMAIN,
)
"""CumProdGrad(gradient, x, axis): the gradient of x; CumProd's attributes. Zeros divide nothing."""


ARG_MAX = OpSchema(
    op_type="ArgMax",
    inputs=(required("data", NUMBERS),),
    outputs=(required("reduced", INT64),),
    infer=infer_place("largest element"),
    attributes=PLACE_ATTRIBUTES,
    flops=reduced,
)
"""ArgMax: the index of the largest element along `axis`; the first of equals, or the last."""


ARG_MIN = OpSchema(
    op_type="ArgMin",
    inputs=(required("data", NUMBERS),),
    outputs=(required("reduced", INT64),),
    infer=infer_place("smallest element"),
    attributes=PLACE_ATTRIBUTES,
    flops=reduced,
)
"""ArgMin: the index of the smallest element along `axis`; the first of equals, or the last."""


def _infer_top_k(context: InferContext) -> tuple[TensorType, ...]:
    data, count = context.input(0), context.input(1)
    axis = infer_axis(context, data.rank)
    if count.rank > 1 or not agree(product(count.shape), 1):
        raise context.shape_error(f"K {count} must be one number")
    numbers, dim = context.dims(1), data.shape[axis]
    k = context.unknown(dim) if not numbers else numbers[0]
    if isinstance(k, int) and (k < 0 or (isinstance(dim, int) and k > dim)):
        raise context.shape_error(f"K is {k}, and dimension {axis} of {data} has {dim} elements")
    shape = (*data.shape[:axis], k, *data.shape[axis + 1 :])
    return TensorType(data.dtype, shape), TensorType(DType.INT64, shape)


def _top_k_gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = (incoming(context), context.input(0), context.output(1))
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("GatherElementsGrad", inputs, attributes, domain=WEFT_DOMAIN)[0], None


TOP_K = OpSchema(
    op_type="TopK",
    inputs=(required("X", NUMBERS), required("K", INT64)),
    outputs=(required("Values", NUMBERS), optional("Indices", INT64)),
    infer=_infer_top_k,
    gradient=_top_k_gradient,
    attributes={
        "axis": Attribute(int, default=-1),
        "largest": Attribute(int, default=1),
        "sorted": Attribute(int, default=1),
    },
)
"""TopK: the k largest or smallest elements along an axis, and where they are; of equals the first come first.

They are sorted also where `sorted` does not ask for it.
"""
