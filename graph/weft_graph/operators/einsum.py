"""Einsum: sums of products over the labels of an `equation`: `bij,bjk->bik`.

A label that stands twice in an operand is its diagonal: outside it the operand's gradient is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from weft_graph.attributes import as_str
from weft_graph.dimensions.dims import Dim, is_unknown
from weft_graph.formals import NUMBERS, required, variadic
from weft_graph.ir import WEFT_DOMAIN, AttributeValue
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.composing import apply
from weft_graph.shapes.einsum import Equation, parsed, sizes_of
from weft_graph.shapes.flow import incoming, refusal
from weft_graph.types import Shape, TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    types = [context.input(index) for index in range(len(context.node.inputs))]
    check_same_dtype(context, *range(len(types)))
    try:
        equation = parsed(as_str(context.attribute("equation")), [type_.rank for type_ in types])
        sizes = sizes_of(equation, [type_.shape for type_ in types])
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    return (TensorType(types[0].dtype, tuple(sizes[label] for label in equation.result)),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
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


SCHEMA = OpSchema(
    op_type="Einsum",
    inputs=(variadic("Inputs", NUMBERS),),
    outputs=(required("Output", NUMBERS),),
    infer=_infer,
    gradient=_gradient,
    attributes={"equation": Attribute(str, required=True)},
)
