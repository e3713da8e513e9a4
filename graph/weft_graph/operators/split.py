"""Split: pieces along `axis`, of the lengths `split` (an input, or an attribute before opset 13), or equal ones.

Of equal pieces the last is the shorter where the dimension is no multiple.
"""

from __future__ import annotations

from weft_graph.attributes import as_int
from weft_graph.formals import ANY, INT64, optional, required, variadic
from weft_graph.ir import WEFT_DOMAIN
from weft_graph.schema import Attribute, GradientContext, InferContext, OpSchema
from weft_graph.shapes.axes import infer_axis
from weft_graph.shapes.composing import given_attributes
from weft_graph.shapes.flops import moved
from weft_graph.shapes.lists import infer_amounts
from weft_graph.shapes.slicing import split_sizes
from weft_graph.shapes.viewing import part
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    data, parts = context.input(0), len(context.node.outputs)
    axis = infer_axis(context, data.rank)
    declared = context.attribute("num_outputs")
    if declared is not None and as_int(declared) != parts:
        raise context.shape_error(f"num_outputs is {declared}, and the node has {parts} outputs")
    try:
        sizes = split_sizes(data.shape[axis], parts, infer_amounts(context, 1, "split"))
    except ValueError as error:
        raise context.shape_error(str(error)) from None
    lengths = (context.unknown(data.shape[axis]) if size is None else size for size in sizes)
    return tuple(TensorType(data.dtype, (*data.shape[:axis], size, *data.shape[axis + 1 :])) for size in lengths)


def _gradient(context: GradientContext) -> tuple[str | None, ...]:
    parts = range(len(context.node.outputs))
    inputs = (context.input(0), context.input(1), *(context.gradient(index) or "" for index in parts))
    attributes = given_attributes(context, ("axis", "split"))
    (data,) = context.emit("SplitGrad", inputs, attributes, domain=WEFT_DOMAIN)
    return (data, None)[: len(context.node.inputs)]


SCHEMA = OpSchema(
    op_type="Split",
    inputs=(required("input", ANY), optional("split", INT64)),
    outputs=(variadic("outputs", ANY),),
    infer=_infer,
    gradient=_gradient,
    attributes={"axis": Attribute(int, default=0), "num_outputs": Attribute(int), "split": Attribute(tuple)},
    flops=moved,
    views=part,
)
