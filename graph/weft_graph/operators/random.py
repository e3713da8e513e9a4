"""What is drawn: noise, samples, dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft_graph.attributes import as_float, as_int, as_ints
from weft_graph.formals import BOOLEANS, FLOATS, INDICES, NUMBERS, optional, required, setting
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.onnx_dtypes import NUMBER_OF_DTYPE
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import dtype_attribute, infer_unary
from weft_graph.shapes.gradients import flat, incoming
from weft_graph.types import DType, TensorType

# --- What operators of random numbers have in common: their attributes, and the types that these ask for --------------


SEED = {"seed": Attribute(float)}
"""Takes the job's place, for runs that are to draw the same in any job."""
UNIFORM = {"low": Attribute(float, default=0.0), "high": Attribute(float, default=1.0)}
NORMAL = {"mean": Attribute(float, default=0.0), "scale": Attribute(float, default=1.0)}


def drawn_dtype(context: InferContext, like: DType, allowed: frozenset[DType] = FLOATS) -> DType:
    """The attribute `dtype`, or the input's type. Raises DTypeError for a type that nothing is drawn in."""
    dtype = like if context.attribute("dtype") is None else dtype_attribute(context, "dtype")
    if dtype not in allowed:
        raise context.dtype_error(f"numbers are drawn as {', '.join(sorted(allowed))}, and not as {dtype}")
    return dtype


def check_numbers(context: InferContext, *names: str) -> None:
    """Raises ShapeError unless the attributes are finite, and a scale not below 0."""
    for name in names:
        number = as_float(context.attribute(name))
        if not math.isfinite(number) or (name == "scale" and number < 0):
            raise context.shape_error(f"{name} {number} must be finite, and a scale not below 0")


def infer_drawn(context: InferContext) -> tuple[TensorType, ...]:
    """Numbers in the attribute `shape`, float32 where `dtype` says no other. Raises ShapeError, DTypeError."""
    shape = as_ints(context.attribute("shape"))
    if min(shape, default=0) < 0:
        raise context.shape_error(f"shape {list(shape)} has a dimension below 0")
    return (TensorType(drawn_dtype(context, DType.FLOAT32), shape),)


def _distribution(op_type: str, numbers: Mapping[str, Attribute]) -> tuple[OpSchema, OpSchema]:
    """An operator that draws in the attribute `shape`, the same in every batch of a step, and one that draws in the
    shape of its input, through which no gradient flows."""

    def infer(context: InferContext) -> tuple[TensorType, ...]:
        check_numbers(context, *numbers)
        return infer_drawn(context)

    def infer_as_input(context: InferContext) -> tuple[TensorType, ...]:
        check_numbers(context, *numbers)
        data = context.input(0)
        return (TensorType(drawn_dtype(context, data.dtype), data.shape),)

    dtype = {"dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.FLOAT32])}
    drawn = OpSchema(
        op_type=op_type,
        inputs=(),
        outputs=(required("output", FLOATS),),
        infer=infer,
        attributes={**numbers, **SEED, **dtype, "shape": Attribute(tuple, required=True)},
        random=True,
    )
    like = OpSchema(
        op_type=f"{op_type}Like",
        inputs=(required("input", NUMBERS | BOOLEANS),),
        outputs=(required("output", FLOATS),),
        infer=infer_as_input,
        gradient=flat,
        attributes={**numbers, **SEED, "dtype": Attribute(int)},
        random=True,
    )
    return drawn, like


RANDOM_NORMAL, RANDOM_NORMAL_LIKE = _distribution("RandomNormal", NORMAL)
"""RandomNormal: numbers of a normal distribution of that `mean` and standard deviation `scale`."""


RANDOM_UNIFORM, RANDOM_UNIFORM_LIKE = _distribution("RandomUniform", UNIFORM)
"""RandomUniform: numbers from `low` to before `high`, all equally likely."""


_DTYPES = NUMBERS | BOOLEANS


def _infer_bernoulli(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    return (TensorType(drawn_dtype(context, data.dtype, _DTYPES), data.shape),)


BERNOULLI = OpSchema(
    op_type="Bernoulli",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", _DTYPES),),
    infer=_infer_bernoulli,
    gradient=flat,
    attributes={**SEED, "dtype": Attribute(int)},
    random=True,
)
"""Bernoulli: 1 with the probability that the input is, else 0; a function of steps, without a gradient."""


def _infer_multinomial(context: InferContext) -> tuple[TensorType, ...]:
    data, count = context.input(0), as_int(context.attribute("sample_size"))
    if data.rank != 2 or data.shape[1] == 0:
        raise context.shape_error(f"the input must be (batch, classes) with at least one class, got {data}")
    if count < 0:
        raise context.shape_error(f"sample_size {count} is below 0")
    return (TensorType(drawn_dtype(context, DType.INT32, INDICES), (data.shape[0], count)),)


MULTINOMIAL = OpSchema(
    op_type="Multinomial",
    inputs=(required("input", FLOATS),),
    outputs=(required("output", INDICES),),
    infer=_infer_multinomial,
    attributes={
        **SEED,
        "dtype": Attribute(int, default=NUMBER_OF_DTYPE[DType.INT32]),
        "sample_size": Attribute(int, default=1),
    },
    random=True,
)
"""Multinomial: for each row (batch, classes) of logarithms of weights `sample_size` classes, drawn by their weights.

A function of steps, without a gradient.
"""


def _infer_dropout(context: InferContext) -> tuple[TensorType, ...]:
    data = context.input(0)
    for index, name in ((1, "ratio"), (2, "training_mode")):
        given = context.optional_input(index)
        if given is not None and given.shape != ():
            raise context.shape_error(f"{name} must be a scalar, got {given}")
    ratio = context.constant(1) if context.optional_input(1) is not None else None
    if ratio is not None and not 0 <= float(ratio) < 1:
        raise context.shape_error(f"ratio {float(ratio)} is outside [0, 1)")
    return data, TensorType(DType.BOOL, data.shape)


def _dropout_gradient(context: GradientContext) -> tuple[str | None, ...]:
    gradient, inputs = incoming(context), context.node.inputs
    if len(inputs) < 3 or not inputs[2]:
        return (gradient, None, None)[: len(inputs)]  # without training_mode it is the identity
    (data,) = context.emit("DropoutGrad", (gradient, context.output(1), *inputs[1:]), domain=WEFT_DOMAIN)
    return data, None, None


DROPOUT = OpSchema(
    op_type="Dropout",
    inputs=(required("data", FLOATS), setting(optional("ratio", FLOATS)), optional("training_mode", BOOLEANS)),
    outputs=(required("output", FLOATS), optional("mask", BOOLEANS)),
    infer=_infer_dropout,
    gradient=_dropout_gradient,
    attributes={"seed": Attribute(int)},
    random=True,
    follows=(0,),
)
"""Dropout: in training an element is 0 with probability `ratio`, else scaled by 1 / (1 - ratio).

Without `training_mode`, or where it is false, the output is the input.
"""


DROPOUT_GRAD = OpSchema(
    op_type="DropoutGrad",
    inputs=(
        required("gradient", FLOATS),
        required("mask", BOOLEANS),
        optional("ratio", FLOATS),
        optional("training_mode", BOOLEANS),
    ),
    outputs=(required("data_gradient", FLOATS),),
    infer=infer_unary,
    domain=WEFT_DOMAIN,
)
"""DropoutGrad(gradient, mask, ratio, training_mode): the gradient where the mask is set, scaled as Dropout scaled."""
