"""Concat: the inputs one after the other along `axis`."""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.dimensions.dims import Dim, agree_all, settled, total
from weft_graph.formals import ANY, required, variadic
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.broadcasting import check_same_dtype
from weft_graph.shapes.flops import moved
from weft_graph.shapes.flow import incoming
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    indices = range(len(context.node.inputs))
    check_same_dtype(context, *indices)
    first = context.input(0)
    axis = infer_axis(context, first.rank)
    along: list[Dim] = []
    beside = first.shape
    for index in indices:
        part = context.input(index)
        if not agree_all((*part.shape[:axis], *part.shape[axis + 1 :]), (*beside[:axis], *beside[axis + 1 :])):
            raise context.shape_error(f"inputs differ beside axis {axis}: {first} and {part}")
        along.append(part.shape[axis])
        beside = tuple(map(settled, beside, part.shape))
    return (TensorType(first.dtype, (*beside[:axis], total(along), *beside[axis + 1 :])),)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    inputs = context.node.inputs
    attributes = {"axis": as_int(context.attribute("axis"))}
    return context.emit("ConcatGrad", (incoming(context), *inputs), attributes, domain=WEFT_DOMAIN, outputs=len(inputs))


SCHEMA = OpSchema(
    op_type="Concat",
    inputs=(variadic("inputs", ANY),),
    outputs=(required("concat_result", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, required=True)},
    flops=moved,
)
