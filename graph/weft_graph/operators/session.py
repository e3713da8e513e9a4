"""Session(values ...): the outputs of `body`, which onnxruntime computes as one; made where a program is bound."""

from __future__ import annotations

from weft_graph.formals import ANY, variadic
from weft_graph.ir import WEFT_DOMAIN, Subgraph
from weft_graph.schema import Attribute, InferContext, OpSchema
from weft_graph.types import TensorType


def _infer(context: InferContext) -> tuple[TensorType, ...]:
    body = context.attribute("body")
    assert isinstance(body, Subgraph), "checked before inference"
    return context.body(body, [context.input(index) for index in range(len(context.node.inputs))])


SCHEMA = OpSchema(
    op_type="Session",
    inputs=(variadic("values", ANY),),
    outputs=(variadic("results", ANY),),
    infer=_infer,
    attributes={"body": Attribute(Subgraph, required=True)},
    domain=WEFT_DOMAIN,
)
